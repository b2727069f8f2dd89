//! Attacks that cost the attacker little. During each, the memory of the process stays within bounds, and other tenants are answered.
//!
//! HAPAX_ATTACKERS=1000 and a release build make the run that `docs/performance.md` records under "Under attack"; the tests have fewer
//! attackers. How long others wait is shown and not judged, beside how long they wait behind a forwarder that does nothing else.
//!
//! In the field the attackers, the others and the API have machines of their own. Here they share the cores with the gateway, so each
//! has threads of its own: the API and the others go before the gateway, and the attackers after it.

use std::env;
use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join_all};
use futures_util::stream::{self, StreamExt};
use rustix::process::setpriority_process;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, interval};

use crate::forwarder;
use crate::raw::Wire;
use crate::world::{Api, Caller, Gateway, free_address, hapax, sqlite};

const ATTACKERS: usize = 40;

/// What a process may grow by under attack.
const GROWTH: u64 = 64 << 20;

/// What a new key with a short answer takes in a store in memory, in bytes, at most: 500 were measured.
const KEPT: u64 = 1 << 10;

/// How often another tenant asks, in calm and while an attack is held, and in the recorded run.
const OTHERS: usize = 100;
const OTHERS_RECORDED: usize = 500;
const PACE: Duration = Duration::from_millis(2);

/// For how many times as long as in calm others ask from the onset of an attack, at least.
const LONGER: usize = 5;

/// How willingly the gateway and the attackers give way to the API and the others, who do not.
const GATEWAY: i32 = 5;
const ATTACKING: i32 = 15;

/// How often they look, at most, whether the requests of the attackers have ended.
const LOOKS: usize = 100;

/// One attacker of many: says what it has to say on a connection, and holds it.
type Attack = fn(SocketAddr, usize) -> BoxFuture<'static, Vec<Wire>>;

const ATTACKS: [(&str, Attack); 8] = [
    ("connections that say nothing", |target, _| hold(target, String::new())),
    ("heads that never end", |target, _| hold(target, format!("POST / HTTP/1.1\r\nx-a: {}", "a".repeat(20_000)))),
    ("heads that are too long", |target, _| hold(target, format!("POST / HTTP/1.1\r\nx-a: {}", "a".repeat(1 << 20)))),
    ("bodies that never end", |target, number| {
        hold(target, post(&format!("body-{number}"), "content-length: 200000", &"b".repeat(100_000)))
    }),
    ("bodies that are too long", |target, number| {
        hold(target, post(&format!("long-{number}"), "transfer-encoding: chunked", &chunks(2 << 20)))
    }),
    ("twins of one key", |target, _| hold(target, post("twins", "content-length: 2", "{}").repeat(50))),
    ("keys of every kind", |target, number| {
        let each = |key| post(&format!("kind-{number}-{key}"), "content-length: 2", "{}");
        hold(target, (0..50).map(each).collect())
    }),
    ("resets in mid-request", |target, number| reset(target, number).boxed()),
];

/// Those that send whole requests as fast as they can, and so leave records.
const WITH_KEYS: [&str; 2] = ["twins of one key", "keys of every kind"];

fn post(key: &str, more: &str, body: &str) -> String {
    format!(
        "POST /charges HTTP/1.1\r\nhost: a\r\nauthorization: Bearer attacker\r\nidempotency-key: {key}\r\n{more}\r\n\r\n{body}"
    )
}

fn chunks(bytes: usize) -> String {
    format!("{bytes:x}\r\n{}\r\n0\r\n\r\n", "c".repeat(bytes))
}

fn hold(target: SocketAddr, said: String) -> BoxFuture<'static, Vec<Wire>> {
    async move {
        let mut wire = Wire::to(target).await;
        wire.say(said.as_bytes()).await;
        vec![wire]
    }
    .boxed()
}

async fn reset(target: SocketAddr, number: usize) -> Vec<Wire> {
    for turn in 0..20 {
        let mut wire = Wire::to(target).await;
        wire.say(post(&format!("reset-{number}-{turn}"), "content-length: 2", "{}").as_bytes()).await;
        wire.reset();
    }
    Vec::new()
}

/// How long others waited for each of their answers; nothing for what was not answered as it should be.
type Waits = Vec<Option<Duration>>;

/// What an attack did.
struct Seen {
    /// How long others waited for a new answer before it.
    calm: Waits,
    /// From its onset on, until nothing moves any more.
    attacked: Waits,
    /// While the attackers hold what they have.
    held: Waits,
    /// What the API ran since the onset.
    ran: usize,
    /// By how many bytes the memory of who was attacked grew.
    grown: u64,
}

impl Seen {
    fn waits(&self) -> [&Waits; 3] {
        [&self.calm, &self.attacked, &self.held]
    }

    fn lost(&self) -> usize {
        self.waits().into_iter().flatten().filter(|wait| wait.is_none()).count()
    }
}

impl Display for Seen {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [calm, attacked, held] = self.waits().map(|waits| within(waits, 1));
        let longest = within(&self.attacked, 0);
        let (ran, grown, lost) = (self.ran, self.grown >> 20, self.lost());
        write!(f, "{ran} | {grown} | {lost} | {calm:.1?} | {attacked:.1?} | {longest:.1?} | {held:.1?}")
    }
}

/// How long another tenant waits, who asks so many times at a steady pace: one that is slow does not hold up the next.
async fn others(target: &Caller, name: &str, count: usize) -> Waits {
    let name = &name.replace(' ', "-");
    let ask = |number: usize| async move {
        let began = Instant::now();
        let got = target.post("/charges", &format!("{name}-{number}"), "{}").await;
        got.is_some_and(|got| got.status == 201).then(|| began.elapsed())
    };
    let pace = stream::unfold(interval(PACE), async |mut ticks| Some((ticks.tick().await, ticks)));
    pace.take(count).enumerate().map(|(number, _)| ask(number)).buffer_unordered(count).collect().await
}

/// The wait that all but this many of a hundred are within.
fn within(waits: &Waits, but: usize) -> Duration {
    let mut sorted: Vec<_> = waits.iter().map(|wait| wait.unwrap_or(Duration::MAX)).collect();
    sorted.sort_unstable();
    sorted[(sorted.len() - 1) - sorted.len() * but / 100]
}

/// A runtime with threads of its own that give way this willingly.
fn apart(nice: i32) -> Runtime {
    let give_way = move || {
        if nice > 0 {
            setpriority_process(None, nice).unwrap();
        }
    };
    Builder::new_multi_thread().worker_threads(2).on_thread_start(give_way).enable_all().build().unwrap()
}

/// What attacks take place on: each part with threads of its own.
struct Stage {
    api: Api,
    _serving: Runtime,
    forwarding: Runtime,
    attacking: Runtime,
    others: Runtime,
    attackers: usize,
    count: usize,
    is_recorded: bool,
}

impl Stage {
    fn new() -> Self {
        let recorded = env::var("HAPAX_ATTACKERS").ok().map(|attackers| attackers.parse().unwrap());
        let (attackers, count) = recorded.map_or((ATTACKERS, OTHERS), |attackers| (attackers, OTHERS_RECORDED));
        let serving = apart(0);
        Self {
            api: serving.block_on(Api::start()),
            _serving: serving,
            forwarding: apart(GATEWAY),
            attacking: apart(ATTACKING),
            others: Builder::new_current_thread().enable_all().build().unwrap(),
            attackers,
            count,
            is_recorded: recorded.is_some(),
        }
    }

    /// Runs an attack on whoever answers this caller, and lets others ask before, during and after.
    async fn attack(&self, name: &str, attack: Attack, target: &Caller, resident: impl Fn() -> u64) -> Seen {
        others(target, "warm", self.count).await;
        let calm = others(target, "calm", self.count).await;
        let (base, ran) = (resident(), self.api.count());
        let (address, attackers) = (target.public, self.attackers);
        let attacking = self.attacking.spawn(join_all((0..attackers).map(move |number| attack(address, number))));
        let (mut attacked, mut most) = (Vec::new(), 0);
        for look in 0..LOOKS {
            let (is_over, before) = (attacking.is_finished(), self.api.count());
            attacked.extend(others(target, &format!("{name}-{look}"), OTHERS).await);
            most = most.max(resident());
            let is_still = is_over && self.api.count() == before + OTHERS;
            if is_still && attacked.len() >= LONGER * self.count {
                break;
            }
        }
        let wires = attacking.await.unwrap();
        let held = others(target, &format!("{name}-held"), self.count).await;
        let (grown, ran) = (resident().max(most).saturating_sub(base), self.api.count() - ran);
        drop(wires);
        Seen { calm, attacked, held, ran, grown }
    }

    /// The same attack on a forwarder that does nothing else.
    fn forwarded(&self, name: &str, attack: Attack) -> Seen {
        let listener = self.forwarding.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let target = Caller::of(listener.local_addr().unwrap());
        let forwarding = self.forwarding.spawn(forwarder::serve(listener, self.api.address));
        let seen = self.others.block_on(self.attack(name, attack, &target, || 0));
        forwarding.abort();
        seen
    }
}

/// A gateway that gives way, with the logs of everyday.
fn gateway() -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", &GATEWAY.to_string()]).arg(hapax().get_program()).env_clear();
    command
}

/// Runs every attack against a gateway of its own on this store; `kept` is what the store may take in memory for a new key.
fn withstands(attacks: &[(&str, Attack)], store: fn(&Path) -> String, kept: u64) {
    let stage = Stage::new();
    println!(
        "| attack, of {} | ran | grown by, MiB | lost by others | their p99 calm | attacked | longest | held |",
        stage.attackers
    );
    for (name, attack) in attacks {
        let directory = tempfile::tempdir().unwrap();
        let (store, upstream) = (store(directory.path()), format!("http://{}", stage.api.address));
        let flags = ["--upstream", &upstream];
        let gateway = stage.others.block_on(Gateway::run(gateway(), &store, &flags, free_address()));
        let target = gateway.caller();
        let seen = stage.others.block_on(stage.attack(name, *attack, &target, || gateway.resident()));
        println!("| {name} | {seen} |");
        if stage.is_recorded {
            let forwarded = stage.forwarded(name, *attack);
            println!("| {name}, a forwarder | {forwarded} |");
        }
        assert_eq!(seen.lost(), 0, "{name}: one of the others was not answered");
        let bound = GROWTH + kept * u64::try_from(seen.ran).unwrap();
        assert!(seen.grown <= bound, "{name}: grown by {} MiB", seen.grown >> 20);
    }
}

#[test]
fn memory_stays_bounded_under_attacks_that_leave_records_in_a_file() {
    let with_keys: Vec<_> = ATTACKS.into_iter().filter(|(name, _)| WITH_KEYS.contains(name)).collect();
    withstands(&with_keys, sqlite, 0);
}

/// It is the records' place: they are what grows, and nothing else.
#[test]
fn a_store_in_memory_grows_by_its_records_alone_during_every_attack() {
    withstands(&ATTACKS, |_| "memory:".into(), KEPT);
}
