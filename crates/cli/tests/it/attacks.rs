//! Cheap attacks. During each of them the memory of the process stays bounded, and other tenants get their responses.
//!
//! `docs/performance.md` records a run with HAPAX_ATTACKERS=1000 and a release build under "Under attack"; the tests
//! use fewer attackers. The tests print the waiting times of other tenants, beside those behind a bare forwarder, and
//! do not judge them.
//!
//! In production the attackers, the other tenants and the API run on other machines. Here they share the cores with the
//! gateway, so they have separate threads: the API and the other tenants have a higher priority than the gateway, the
//! attackers a lower one.

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
use crate::harness::{Api, Gateway, GatewayClient, free_address, hapax, sqlite};
use crate::raw_http::RawConnection;

const ATTACKERS: usize = 40;

/// The memory in bytes by which a process may grow under attack.
const GROWTH: u64 = 64 << 20;

/// An upper bound for one record in the memory store, in bytes: 500 were measured.
const RECORD_SIZE: u64 = 1 << 10;

/// The number of requests of another tenant, before an attack and while it holds its connections.
const OTHERS: usize = 100;
const OTHERS_RECORDED: usize = 500;
const PACE: Duration = Duration::from_millis(2);

/// During an attack the other tenant sends at least this many times as many requests as before it.
const LONGER: usize = 5;

/// The nice values of the gateway and the attackers. The API and the other tenants have 0.
pub(crate) const GATEWAY: i32 = 5;
pub(crate) const ATTACKING: i32 = 15;

/// The largest number of checks whether the attack has ended.
const MAX_CHECKS: usize = 100;

/// One attacker: sends its bytes and returns the connections that it keeps open.
type Attack = fn(SocketAddr, usize) -> BoxFuture<'static, Vec<RawConnection>>;

const ATTACKS: [(&str, Attack); 8] = [
    ("silent connections", |target, _| hold(target, String::new())),
    ("unfinished heads", |target, _| hold(target, format!("POST / HTTP/1.1\r\nx-a: {}", "a".repeat(20_000)))),
    ("oversized heads", |target, _| hold(target, format!("POST / HTTP/1.1\r\nx-a: {}", "a".repeat(1 << 20)))),
    ("unfinished bodies", |target, number| {
        hold(target, post(&format!("body-{number}"), "content-length: 200000", &"b".repeat(100_000)))
    }),
    ("oversized bodies", |target, number| {
        hold(target, post(&format!("long-{number}"), "transfer-encoding: chunked", &chunks(2 << 20)))
    }),
    ("duplicates of one key", |target, _| hold(target, post("duplicate", "content-length: 2", "{}").repeat(50))),
    ("different keys", |target, number| {
        let each = |key| post(&format!("different-{number}-{key}"), "content-length: 2", "{}");
        hold(target, (0..50).map(each).collect())
    }),
    ("resets in mid-request", |target, number| reset(target, number).boxed()),
];

/// The attacks that send complete requests and so leave records.
const WITH_KEYS: [&str; 2] = ["duplicates of one key", "different keys"];

fn post(key: &str, more: &str, body: &str) -> String {
    format!(
        "POST /charges HTTP/1.1\r\nhost: a\r\nauthorization: Bearer attacker\r\nidempotency-key: {key}\r\n\
         {more}\r\n\r\n{body}"
    )
}

fn chunks(bytes: usize) -> String {
    format!("{bytes:x}\r\n{}\r\n0\r\n\r\n", "c".repeat(bytes))
}

/// Sends these bytes and keeps the connection open.
fn hold(target: SocketAddr, bytes: String) -> BoxFuture<'static, Vec<RawConnection>> {
    async move {
        let mut wire = RawConnection::to(target).await;
        wire.send_bytes(bytes.as_bytes()).await;
        vec![wire]
    }
    .boxed()
}

/// Resets twenty connections, each after a whole request.
async fn reset(target: SocketAddr, number: usize) -> Vec<RawConnection> {
    for turn in 0..20 {
        let mut wire = RawConnection::to(target).await;
        wire.send_bytes(post(&format!("reset-{number}-{turn}"), "content-length: 2", "{}").as_bytes()).await;
        wire.reset();
    }
    Vec::new()
}

/// The waiting time of every request of another tenant; None for a missing or wrong response.
pub(crate) type WaitTimes = Vec<Option<Duration>>;

/// The effect of an attack on other tenants and on memory.
struct AttackResult {
    /// The waiting times before the attack.
    calm: WaitTimes,
    /// The waiting times from the start of the attack until all its requests have ended.
    attacked: WaitTimes,
    /// The waiting times while the attackers keep their connections open.
    held: WaitTimes,
    /// The number of requests that the API ran since the start of the attack.
    ran: usize,
    /// The growth of the memory of the gateway in bytes.
    grown: u64,
}

impl AttackResult {
    fn waits(&self) -> [&WaitTimes; 3] {
        [&self.calm, &self.attacked, &self.held]
    }

    fn lost(&self) -> usize {
        self.waits().into_iter().flatten().filter(|wait| wait.is_none()).count()
    }
}

impl Display for AttackResult {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [calm, attacked, held] = self.waits().map(|waits| percentile(waits, 1));
        let longest = percentile(&self.attacked, 0);
        let (ran, grown, lost) = (self.ran, self.grown >> 20, self.lost());
        write!(f, "{ran} | {grown} | {lost} | {calm:.1?} | {attacked:.1?} | {longest:.1?} | {held:.1?}")
    }
}

/// Sends requests of another tenant at a steady pace and measures their waiting times. A slow response does not delay
/// the next request.
async fn send_others(target: &GatewayClient, name: &str, count: usize) -> WaitTimes {
    let name = &name.replace(' ', "-");
    let ask = |number: usize| async move {
        let began = Instant::now();
        let got = target.post("/charges", &format!("{name}-{number}"), "{}").await;
        got.is_some_and(|got| got.status == 201).then(|| began.elapsed())
    };
    let pace = stream::unfold(interval(PACE), async |mut ticks| Some((ticks.tick().await, ticks)));
    pace.take(count).enumerate().map(|(number, _)| ask(number)).buffer_unordered(count).collect().await
}

/// Returns the waiting time that all but this percentage of the requests stay within. A lost request counts as endless.
pub(crate) fn percentile(waits: &WaitTimes, except: usize) -> Duration {
    let mut sorted: Vec<_> = waits.iter().map(|wait| wait.unwrap_or(Duration::MAX)).collect();
    sorted.sort_unstable();
    sorted[(sorted.len() - 1) - sorted.len() * except / 100]
}

/// Creates a runtime whose threads have this nice value.
pub(crate) fn runtime(nice: i32) -> Runtime {
    let set_priority = move || {
        if nice > 0 {
            setpriority_process(None, nice).unwrap();
        }
    };
    Builder::new_multi_thread().worker_threads(2).on_thread_start(set_priority).enable_all().build().unwrap()
}

/// The API, the attackers and the other tenants, each with its own threads.
struct AttackSetup {
    api: Api,
    _serving: Runtime,
    forwarding: Runtime,
    attacking: Runtime,
    others: Runtime,
    attackers: usize,
    count: usize,
    is_recorded: bool,
}

impl AttackSetup {
    fn new() -> Self {
        let recorded = env::var("HAPAX_ATTACKERS").ok().map(|attackers| attackers.parse().unwrap());
        let (attackers, count) = recorded.map_or((ATTACKERS, OTHERS), |attackers| (attackers, OTHERS_RECORDED));
        let serving = runtime(0);
        Self {
            api: serving.block_on(Api::start()),
            _serving: serving,
            forwarding: runtime(GATEWAY),
            attacking: runtime(ATTACKING),
            others: Builder::new_current_thread().enable_all().build().unwrap(),
            attackers,
            count,
            is_recorded: recorded.is_some(),
        }
    }

    /// Runs an attack on the address of this client. Other tenants send requests before, during and after it.
    async fn attack(
        &self,
        name: &str,
        attack: Attack,
        target: &GatewayClient,
        resident: impl Fn() -> u64,
    ) -> AttackResult {
        send_others(target, "warm", self.count).await;
        let calm = send_others(target, "calm", self.count).await;
        let (base, ran) = (resident(), self.api.count());
        let (address, attackers) = (target.public, self.attackers);
        let attacking = self.attacking.spawn(join_all((0..attackers).map(move |number| attack(address, number))));
        let (mut attacked, mut most) = (Vec::new(), 0);
        for check in 0..MAX_CHECKS {
            let (has_ended, before) = (attacking.is_finished(), self.api.count());
            attacked.extend(send_others(target, &format!("{name}-{check}"), OTHERS).await);
            most = most.max(resident());
            // The API ran only the requests of the other tenant, so none of the attack is left in the gateway.
            let is_quiet = has_ended && self.api.count() == before + OTHERS;
            if is_quiet && attacked.len() >= LONGER * self.count {
                break;
            }
        }
        let wires = attacking.await.unwrap();
        let held = send_others(target, &format!("{name}-held"), self.count).await;
        let (grown, ran) = (resident().max(most).saturating_sub(base), self.api.count() - ran);
        drop(wires);
        AttackResult { calm, attacked, held, ran, grown }
    }

    /// Runs the same attack on a bare forwarder.
    fn attack_forwarder(&self, name: &str, attack: Attack) -> AttackResult {
        let listener = self.forwarding.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let target = GatewayClient::of(listener.local_addr().unwrap());
        let forwarding = self.forwarding.spawn(forwarder::serve(listener, self.api.address));
        let seen = self.others.block_on(self.attack(name, attack, &target, || 0));
        forwarding.abort();
        seen
    }
}

/// Returns the command for a gateway with a lower priority and default logs.
pub(crate) fn gateway() -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", &GATEWAY.to_string()]).arg(hapax().get_program()).env_clear();
    command
}

/// Runs every attack against a new gateway on this store. `record_size` is the memory in bytes that the store may use
/// for a new key.
fn assert_withstands(attacks: &[(&str, Attack)], store: fn(&Path) -> String, record_size: u64) {
    let setup = AttackSetup::new();
    println!(
        "| attack, of {} | ran | grown by, MiB | lost by others | their p99 calm | attacked | longest | held |",
        setup.attackers
    );
    for (name, attack) in attacks {
        let directory = tempfile::tempdir().unwrap();
        let (store, upstream) = (store(directory.path()), format!("http://{}", setup.api.address));
        let flags = ["--upstream", &upstream];
        let gateway = setup.others.block_on(Gateway::run(gateway(), &store, &flags, free_address()));
        let target = gateway.client();
        let seen = setup.others.block_on(setup.attack(name, *attack, &target, || gateway.resident()));
        println!("| {name} | {seen} |");
        if setup.is_recorded {
            let forwarded = setup.attack_forwarder(name, *attack);
            println!("| {name}, a forwarder | {forwarded} |");
        }
        assert_eq!(seen.lost(), 0, "{name}: a request of another tenant got no response");
        let bound = GROWTH + record_size * u64::try_from(seen.ran).unwrap();
        assert!(seen.grown <= bound, "{name}: grown by {} MiB", seen.grown >> 20);
    }
}

#[test]
fn memory_stays_bounded_when_attacks_leave_records_in_a_file() {
    let with_keys: Vec<_> = ATTACKS.into_iter().filter(|(name, _)| WITH_KEYS.contains(name)).collect();
    assert_withstands(&with_keys, sqlite, 0);
}

/// The memory store may grow by its records only.
#[test]
fn the_memory_store_grows_only_by_its_records_during_every_attack() {
    assert_withstands(&ATTACKS, |_| "memory:".into(), RECORD_SIZE);
}
