//! Two gateways on one store, many copies of every key over both, and one gateway killed again and again.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::stream::{self, StreamExt};

use crate::world::{Api, Gateway, Got};

const KEYS: usize = 200;
const RACERS: usize = 24;
const KILLS: usize = 20;

/// What a client is left with for one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Last {
    Answer(String),
    Unknown,
}

#[tokio::test(flavor = "multi_thread")]
async fn one_effect_a_key_though_one_of_two_processes_is_killed_again_and_again() {
    let directory = tempfile::tempdir().unwrap();
    one_effect_a_key(&crate::world::sqlite(directory.path()), directory.path()).await;
}

/// Whatever the store; both keep what it does not take in this directory.
pub(crate) async fn one_effect_a_key(store: &str, data: &Path) {
    let api = Api::start().await;
    let data = data.join("spill");
    let flags = ["--lease", "1s", "--data-dir", data.to_str().unwrap()];
    let steady = Gateway::start(api.address, store, &flags).await;
    let victim = Arc::new(Mutex::new(Gateway::start(api.address, store, &flags).await));
    let settled = AtomicUsize::new(0);

    let killer = async {
        for kill in 1..=KILLS {
            while settled.load(Ordering::SeqCst) < kill * KEYS * RACERS / (KILLS + 2) {
                tokio::task::yield_now().await;
            }
            let address = victim.lock().unwrap().stopped();
            let next = Gateway::start_at(api.address, store, &flags, address).await;
            *victim.lock().unwrap() = next;
        }
    };
    let racers = stream::iter((0..KEYS).flat_map(|key| (0..RACERS).map(move |racer| (key, racer))))
        .map(|(key, racer)| {
            let (steady, victim, settled) = (&steady, &victim, &settled);
            async move {
                let to = if racer % 2 == 0 { steady.caller() } else { victim.lock().unwrap().caller() };
                let last = loop {
                    match to.post("/charges", &format!("key-{key}"), "{}").await.and_then(last) {
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
    let (told, ()) = tokio::join!(racers, killer);
    judge(&api, told);
}

/// The end of a request, or nothing when it is to be sent again.
fn last(got: Got) -> Option<Last> {
    match got.status.as_u16() {
        201 => Some(Last::Answer(got.body)),
        409 if got.problem() == "outcome-unknown" => Some(Last::Unknown),
        _ => None,
    }
}

fn judge(api: &Api, told: Vec<(usize, Last)>) {
    let mut effects: HashMap<String, usize> = HashMap::new();
    for seen in api.seen() {
        *effects.entry(seen.headers["idempotency-key"].to_str().unwrap().into()).or_default() += 1;
    }
    assert!(effects.values().all(|count| *count == 1), "an effect happened twice: {effects:?}");
    let mut by_key: HashMap<usize, Vec<Last>> = HashMap::new();
    told.into_iter().for_each(|(key, last)| by_key.entry(key).or_default().push(last));
    let unknown = by_key.values().filter(|all| all.contains(&Last::Unknown)).count();
    for (key, all) in &by_key {
        assert_eq!(all.len(), RACERS);
        let answers: Vec<_> = all.iter().filter(|last| **last != Last::Unknown).collect();
        assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "key {key} has two answers: {answers:?}");
        assert!(
            answers.is_empty() || effects.contains_key(&format!("key-{key}")),
            "key {key} was answered, and never ran"
        );
    }
    println!("{KEYS} keys x {RACERS} racers, {KILLS} kills: one effect each, {unknown} keys held as unknown");
}
