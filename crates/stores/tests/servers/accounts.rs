//! Keeps account of grants, by key and token, on its own: it asks only what callers were told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use hapax_core::ErrorKind::{Full, NotApplied, Unknown};
use hapax_core::machine::{Begun, Completed, Grant};
use hapax_core::{Error, Owner, Result, Store};

use crate::world::{Operation, patiently};

/// How long a caller waits for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// Some keys, everyone who wants one of them, and what they were told.
pub(crate) struct Accounts {
    store: Arc<dyn Store>,
    keys: Vec<Operation>,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    /// By key: who was granted it under which token, since the server was last declared to have forgotten.
    granted: Vec<BTreeMap<u64, Owner>>,
    /// All tokens of a key.
    tokens: Vec<BTreeSet<u64>>,
    answers: Vec<Option<String>>,
    attempts: u64,
    unknown: u64,
}

impl Accounts {
    pub(crate) fn over(store: Arc<dyn Store>, keys: usize) -> Self {
        let told = Told {
            granted: vec![BTreeMap::new(); keys],
            tokens: vec![BTreeSet::new(); keys],
            answers: vec![None; keys],
            ..Told::default()
        };
        let keys = (0..keys).map(|n| Operation::new(&format!("key {n}"))).collect();
        Self { store, keys, told: Mutex::new(told) }
    }

    pub(crate) fn keys(&self) -> &[Operation] {
        &self.keys
    }

    pub(crate) fn unknown(&self) -> u64 {
        self.told.lock().unwrap().unknown
    }

    /// From now on everything may be granted again, under another token.
    pub(crate) fn forgets(&self) {
        let mut told = self.told.lock().unwrap();
        told.granted.iter_mut().for_each(BTreeMap::clear);
        told.answers.iter_mut().for_each(|answer| *answer = None);
    }

    /// Three begin each key at once, each until it knows, and who is granted it completes it if it `completes`.
    pub(crate) async fn race(&self, completes: bool) -> u64 {
        let racers = (0..self.keys.len()).flat_map(|key| (0..3).map(move |_| self.attempt(key, completes)));
        join_all(racers).await.into_iter().map(u64::from).sum()
    }

    /// Whether it was granted.
    async fn attempt(&self, key: usize, completes: bool) -> bool {
        let owner = self.next_owner();
        let begun = self.stubbornly(|| self.keys[key].begin(&*self.store, owner)).await;
        let (Begun::Granted(grant) | Begun::Mine(grant)) = begun else {
            self.is_told(key, &begun);
            return false;
        };
        self.is_granted(key, &grant);
        if completes {
            let answer = format!("{:?}", grant.token);
            let completed = self.stubbornly(|| self.keys[key].complete(&*self.store, &grant, &answer)).await;
            assert!(
                matches!(completed, Completed::Done | Completed::Already | Completed::Recreated),
                "the answer of a grant was not taken: {completed:?}"
            );
            self.told.lock().unwrap().answers[key] = Some(answer);
        }
        true
    }

    fn next_owner(&self) -> Owner {
        let mut told = self.told.lock().unwrap();
        told.attempts += 1;
        let mut owner = [0; 16];
        owner[..8].copy_from_slice(&told.attempts.to_be_bytes());
        Owner(owner)
    }

    fn is_granted(&self, key: usize, grant: &Grant) {
        let mut told = self.told.lock().unwrap();
        let token = grant.token.0;
        assert!(told.tokens[key].insert(token), "key {key}: two grants under token {token}");
        let others = &mut told.granted[key];
        assert!(others.is_empty(), "key {key}: granted under {token} beside {others:?}, whose lease lives");
        others.insert(token, grant.owner);
        assert_eq!(told.answers[key], None, "key {key}: granted after its answer was recorded");
    }

    fn is_told(&self, key: usize, begun: &Begun) {
        match begun {
            Begun::Busy(left) => assert!(*left <= Duration::from_secs(30), "key {key}: stuck for {left:?}"),
            Begun::Replay(completion) => {
                let told = self.told.lock().unwrap();
                let answers = told.tokens[key].iter().map(|token| format!("Token({token})"));
                let known = answers.into_iter().any(|answer| completion.answer == answer.as_bytes());
                assert!(known, "key {key}: a replay of what nobody answered");
            }
            Begun::Granted(_) | Begun::Mine(_) => {}
            Begun::Mismatch | Begun::Indeterminate(_) | Begun::Dead => panic!("key {key}: {begun:?}"),
        }
    }

    /// Asks until there is an answer, and never takes an error for one.
    async fn stubbornly<T, F>(&self, mut call: impl FnMut() -> F) -> T
    where
        F: Future<Output = Result<T>>,
    {
        loop {
            let given_up = || Err(Error::new(Unknown, "nobody answered"));
            match patiently(PATIENCE, call()).await.unwrap_or_else(given_up) {
                Ok(answer) => return answer,
                Err(error) => {
                    assert!(matches!(error.kind(), Unknown | NotApplied | Full), "{error:?}");
                    self.told.lock().unwrap().unknown += u64::from(error.kind() == Unknown);
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// Every key has the answer that was told.
    pub(crate) async fn are_kept(&self) {
        for (key, operation) in self.keys.iter().enumerate() {
            let answer = self.told.lock().unwrap().answers[key].clone().expect("it was completed");
            operation.replays(&*self.store, &answer).await;
        }
    }
}
