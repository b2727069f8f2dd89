//! Two gateways on one store, many copies of every key through both, and repeated crashes of one gateway.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};

use crate::harness::{Api, ClientResponse, DEADLINE, Gateway, GatewayClient};

const KEYS: usize = 200;
const RACERS: usize = 24;
const KILLS: usize = 20;

/// The final outcome that a client got for its request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum FinalOutcome {
    Answer(String),
    Unknown,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_has_one_effect_while_one_of_two_processes_crashes_repeatedly() {
    let directory = tempfile::tempdir().unwrap();
    assert_one_effect_per_key(&crate::harness::sqlite(directory.path()), directory.path()).await;
}

/// How far the test is. It says so if it comes to a stop.
#[derive(Default)]
struct Progress {
    settled: AtomicUsize,
    kills: AtomicUsize,
    restarts: AtomicUsize,
    /// The requests without an answer so far, to the steady gateway and to the other one.
    waiting: [AtomicUsize; 2],
}

impl Progress {
    fn of(count: &AtomicUsize) -> usize {
        count.load(Ordering::SeqCst)
    }

    /// Sends copies until one gets a final outcome.
    async fn settle(&self, to: &GatewayClient, key: usize, gateway: usize) -> FinalOutcome {
        let key = format!("key-{key}");
        loop {
            self.waiting[gateway].fetch_add(1, Ordering::SeqCst);
            let got = to.post("/charges", &key, "{}").await;
            self.waiting[gateway].fetch_sub(1, Ordering::SeqCst);
            if let Some(last) = got.and_then(final_outcome) {
                self.settled.fetch_add(1, Ordering::SeqCst);
                return last;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Fails the test once no copy has got its outcome for two deadlines.
    async fn watch(&self, steady: &Gateway, victim: &Mutex<Gateway>) -> std::convert::Infallible {
        let (mut settled, mut since) = (0, Instant::now());
        loop {
            hapax_testkit::pause().await;
            if Self::of(&self.settled) != settled {
                (settled, since) = (Self::of(&self.settled), Instant::now());
            }
            let is_moving = since.elapsed() < STOPPED;
            assert!(is_moving, "{}", self.report(steady, victim));
        }
    }

    fn report(&self, steady: &Gateway, victim: &Mutex<Gateway>) -> String {
        let [steady_waits, victim_waits] = self.waiting.each_ref().map(Self::of);
        format!(
            "no copy has got its outcome for {STOPPED:?}: {} have, {} kills, {} restarts, {steady_waits} requests wait \
             for the steady gateway and {victim_waits} for the other one\nthe log of the steady one:\n{}\nthat of the \
             other one:\n{}",
            Self::of(&self.settled),
            Self::of(&self.kills),
            Self::of(&self.restarts),
            steady.log_end(),
            victim.lock().unwrap().log_end(),
        )
    }
}

/// After this time without an outcome the test has come to a stop.
const STOPPED: Duration = DEADLINE.saturating_mul(2);

/// Runs the test on this store. Both gateways keep unconfirmed answers in this directory.
pub(crate) async fn assert_one_effect_per_key(store: &str, data: &Path) {
    let api = Api::start().await;
    let data = data.join("spill");
    let flags = ["--lease", "1s", "--data-dir", data.to_str().unwrap()];
    let steady = Gateway::start(api.address, store, &flags).await;
    let victim = Arc::new(Mutex::new(Gateway::start(api.address, store, &flags).await));
    let progress = Progress::default();

    let killer = async {
        for kill in 1..=KILLS {
            // Spread the kills over the whole run.
            while Progress::of(&progress.settled) < kill * KEYS * RACERS / (KILLS + 2) {
                hapax_testkit::pause().await;
            }
            let address = victim.lock().unwrap().kill_and_return_address();
            progress.kills.fetch_add(1, Ordering::SeqCst);
            let next = Gateway::start_at(api.address, store, &flags, address).await;
            *victim.lock().unwrap() = next;
            progress.restarts.fetch_add(1, Ordering::SeqCst);
        }
    };
    let racers = stream::iter((0..KEYS).flat_map(|key| (0..RACERS).map(move |racer| (key, racer))))
        .map(|(key, racer)| {
            let (steady, victim, progress) = (&steady, &victim, &progress);
            async move {
                let to = if racer % 2 == 0 { steady.client() } else { victim.lock().unwrap().client() };
                (key, progress.settle(&to, key, racer % 2).await)
            }
        })
        .buffer_unordered(96)
        .collect::<Vec<_>>();
    let outcomes = tokio::select! {
        (outcomes, ()) = async { tokio::join!(racers, killer) } => outcomes,
        never = progress.watch(&steady, &victim) => match never {},
    };
    assert_one_effect_each(&api, outcomes);
}

/// Returns the final outcome, or None if the client must retry.
fn final_outcome(got: ClientResponse) -> Option<FinalOutcome> {
    match got.status.as_u16() {
        201 => Some(FinalOutcome::Answer(got.body)),
        409 if got.problem() == "outcome-unknown" => Some(FinalOutcome::Unknown),
        _ => None,
    }
}

fn assert_one_effect_each(api: &Api, outcomes: Vec<(usize, FinalOutcome)>) {
    let mut effects: HashMap<String, usize> = HashMap::new();
    for seen in api.seen() {
        *effects.entry(seen.headers["idempotency-key"].to_str().unwrap().into()).or_default() += 1;
    }
    assert!(effects.values().all(|count| *count == 1), "a key had two effects: {effects:?}");
    let mut by_key: HashMap<usize, Vec<FinalOutcome>> = HashMap::new();
    outcomes.into_iter().for_each(|(key, last)| by_key.entry(key).or_default().push(last));
    let unknown = by_key.values().filter(|all| all.contains(&FinalOutcome::Unknown)).count();
    for (key, all) in &by_key {
        assert_eq!(all.len(), RACERS);
        let answers: Vec<_> = all.iter().filter(|last| **last != FinalOutcome::Unknown).collect();
        assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "key {key} has two answers: {answers:?}");
        assert!(
            answers.is_empty() || effects.contains_key(&format!("key-{key}")),
            "key {key} has an answer, but never ran"
        );
    }
    println!("{KEYS} keys x {RACERS} racers, {KILLS} kills: one effect each, {unknown} keys held as unknown");
}
