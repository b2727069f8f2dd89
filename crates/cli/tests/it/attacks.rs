//! Attacks that cost the attacker little. During each, the memory of the process and the answers to other tenants stay within bounds.
//!
//! HAPAX_ATTACKERS=1000 and a release build make the run that `docs/performance.md` records under "Under attack"; the tests have fewer
//! attackers. How long others wait is shown and not judged: in the tests the attackers, the others, the API and the gateway share the cores.

use std::env;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt, join_all};

use crate::raw::Wire;
use crate::world::{Api, Gateway, sqlite};

const ATTACKERS: usize = 40;

/// What a process may grow by under attack.
const GROWTH: u64 = 64 << 20;

/// What a new key with a short answer takes in a store in memory, in bytes, at most: 500 were measured.
const KEPT: u64 = 1 << 10;

/// How often another tenant asks during an attack, and in the recorded run.
const OTHERS: usize = 100;
const OTHERS_RECORDED: usize = 1000;

/// How often they look, at most, whether the requests of the attackers have ended.
const LOOKS: usize = 100;

/// One attacker of many: says what it has to say on a connection, and holds it.
type Attack = for<'a> fn(&'a Gateway, usize) -> BoxFuture<'a, Vec<Wire>>;

const ATTACKS: [(&str, Attack); 8] = [
    ("connections that say nothing", |gateway, _| hold(gateway, String::new())),
    ("heads that never end", |gateway, _| hold(gateway, format!("POST / HTTP/1.1\r\nx-a: {}", "a".repeat(20_000)))),
    ("heads that are too long", |gateway, _| hold(gateway, format!("POST / HTTP/1.1\r\nx-a: {}", "a".repeat(1 << 20)))),
    ("bodies that never end", |gateway, number| {
        hold(gateway, post(&format!("body-{number}"), "content-length: 200000", &"b".repeat(100_000)))
    }),
    ("bodies that are too long", |gateway, number| {
        hold(gateway, post(&format!("long-{number}"), "transfer-encoding: chunked", &chunks(2 << 20)))
    }),
    ("twins of one key", |gateway, _| hold(gateway, post("twins", "content-length: 2", "{}").repeat(50))),
    ("keys of every kind", |gateway, number| {
        let each = |key| post(&format!("kind-{number}-{key}"), "content-length: 2", "{}");
        hold(gateway, (0..50).map(each).collect())
    }),
    ("resets in mid-request", |gateway, number| reset(gateway, number).boxed()),
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

fn hold(gateway: &Gateway, said: String) -> BoxFuture<'_, Vec<Wire>> {
    async move {
        let mut wire = Wire::to(gateway.public).await;
        wire.say(said.as_bytes()).await;
        vec![wire]
    }
    .boxed()
}

async fn reset(gateway: &Gateway, number: usize) -> Vec<Wire> {
    for turn in 0..20 {
        let mut wire = Wire::to(gateway.public).await;
        wire.say(post(&format!("reset-{number}-{turn}"), "content-length: 2", "{}").as_bytes()).await;
        wire.reset();
    }
    Vec::new()
}

/// The 99th percentile of how long another tenant waits for a new answer.
async fn others(gateway: &Gateway, name: &str, count: usize) -> Duration {
    let mut took = Vec::new();
    for number in 0..count {
        let began = Instant::now();
        let got = gateway.post("/charges", &format!("{}-{number}", name.replace(' ', "-")), "{}").await.unwrap();
        assert_eq!(got.status, 201, "{name}: {}", got.body);
        took.push(began.elapsed());
    }
    took.sort_unstable();
    took[count * 99 / 100]
}

/// Runs both at once, the second on a thread of its own: it must not wait for what the attackers do in their own process.
fn beside<A, B: Send>(attacking: impl Future<Output = A>, others: impl Future<Output = B> + Send) -> (A, B) {
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(others)
        });
        let held = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(attacking));
        (held, others.join().unwrap())
    })
}

/// Until none of the attackers' requests comes to the API any more: what they hold from then on, they hold without a move.
async fn still(gateway: &Gateway, api: &Api, name: &str) {
    for look in 0..LOOKS {
        let before = api.count();
        others(gateway, &format!("{name}-still-{look}"), OTHERS).await;
        if api.count() == before + OTHERS {
            return;
        }
    }
}

/// Runs every attack against a gateway of its own on this store; `kept` is what the store may take in memory for a new key.
async fn withstands(attacks: &[(&str, Attack)], store: fn(&Path) -> String, kept: u64) {
    let recorded = env::var("HAPAX_ATTACKERS").ok().map(|attackers| attackers.parse().unwrap());
    let (attackers, count) = recorded.map_or((ATTACKERS, OTHERS), |attackers| (attackers, OTHERS_RECORDED));
    let api = Api::start().await;
    println!("| attack | attackers | new keys | grown by, MiB | others' p99 calm | at the onset | while held |");
    for (name, attack) in attacks {
        let directory = tempfile::tempdir().unwrap();
        let gateway = Gateway::start(api.address, &store(directory.path()), &[]).await;
        others(&gateway, "warm", OTHERS).await;
        let (base, calm) = (gateway.resident(), others(&gateway, "calm", count).await);
        let ran = api.count();
        let attacking = join_all((0..attackers).map(|number| attack(&gateway, number)));
        let (held, onset) = beside(attacking, others(&gateway, name, OTHERS));
        let at_onset = gateway.resident();
        still(&gateway, &api, name).await;
        // Those that are still held go on for as long as it takes to look.
        let after = others(&gateway, &format!("{name}-held"), count).await;
        let (grown, keys) = (gateway.resident().max(at_onset).saturating_sub(base), api.count() - ran);
        println!("| {name} | {attackers} | {keys} | {} | {calm:.1?} | {onset:.1?} | {after:.1?} |", grown >> 20);
        let bound = GROWTH + kept * u64::try_from(keys).unwrap();
        assert!(grown <= bound, "{name}: grown by {} MiB", grown >> 20);
        drop(held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_bounded_under_attacks_that_leave_records_in_a_file() {
    let with_keys: Vec<_> = ATTACKS.into_iter().filter(|(name, _)| WITH_KEYS.contains(name)).collect();
    withstands(&with_keys, sqlite, 0).await;
}

/// It is the records' place: they are what grows, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_in_memory_grows_by_its_records_alone_during_every_attack() {
    withstands(&ATTACKS, |_| "memory:".into(), KEPT).await;
}
