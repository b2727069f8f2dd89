//! Two gateways on one store, many copies of every key through both, and repeated crashes of one gateway.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::stream::{self, StreamExt};

use crate::harness::{Api, ClientResponse, Gateway};

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

/// Runs the test on this store. Both gateways keep unconfirmed answers in this directory.
pub(crate) async fn assert_one_effect_per_key(store: &str, data: &Path) {
    let api = Api::start().await;
    let data = data.join("spill");
    let flags = ["--lease", "1s", "--data-dir", data.to_str().unwrap()];
    let steady = Gateway::start(api.address, store, &flags).await;
    let victim = Arc::new(Mutex::new(Gateway::start(api.address, store, &flags).await));
    let settled = AtomicUsize::new(0);

    let killer = async {
        for kill in 1..=KILLS {
            // Spread the kills over the whole run.
            while settled.load(Ordering::SeqCst) < kill * KEYS * RACERS / (KILLS + 2) {
                hapax_testkit::pause().await;
            }
            let address = victim.lock().unwrap().kill_and_return_address();
            let next = Gateway::start_at(api.address, store, &flags, address).await;
            *victim.lock().unwrap() = next;
        }
    };
    let racers = stream::iter((0..KEYS).flat_map(|key| (0..RACERS).map(move |racer| (key, racer))))
        .map(|(key, racer)| {
            let (steady, victim, settled) = (&steady, &victim, &settled);
            async move {
                let to = if racer % 2 == 0 { steady.client() } else { victim.lock().unwrap().client() };
                let last = loop {
                    match to.post("/charges", &format!("key-{key}"), "{}").await.and_then(final_outcome) {
                        Some(last) => break last,
                        None => tokio::task::yield_now().await,
                    }
                };
                settled.fetch_add(1, Ordering::SeqCst);
                (key, last)
            }
        })
        .buffer_unordered(96)
        .collect::<Vec<_>>();
    let (outcomes, ()) = tokio::join!(racers, killer);
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
