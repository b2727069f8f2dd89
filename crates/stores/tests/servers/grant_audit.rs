//! Audits grants from the results that callers got, without reading the store: no key may have two grants that overlap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use hapax_core::ErrorKind::{Full, NotApplied, Unknown};
use hapax_core::machine::{Begun, Completed, Grant};
use hapax_core::{Error, Owner, Result, Store};

use crate::support::{Operation, with_timeout};

/// The timeout of a call.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs racing attempts on some keys and checks their results.
pub(crate) struct GrantAudit {
    store: Arc<dyn Store>,
    keys: Vec<Operation>,
    results: Mutex<AuditedResults>,
}

#[derive(Default)]
struct AuditedResults {
    /// The grants of each key, by token, since the last expected loss of data.
    granted: Vec<BTreeMap<u64, Owner>>,
    /// All tokens of each key.
    tokens: Vec<BTreeSet<u64>>,
    answers: Vec<Option<String>>,
    attempts: u64,
    unknown: u64,
}

impl GrantAudit {
    pub(crate) fn new(store: Arc<dyn Store>, keys: usize) -> Self {
        let results = AuditedResults {
            granted: vec![BTreeMap::new(); keys],
            tokens: vec![BTreeSet::new(); keys],
            answers: vec![None; keys],
            ..AuditedResults::default()
        };
        let keys = (0..keys).map(|n| Operation::new(&format!("key {n}"))).collect();
        Self { store, keys, results: Mutex::new(results) }
    }

    pub(crate) fn keys(&self) -> &[Operation] {
        &self.keys
    }

    pub(crate) fn unknown(&self) -> u64 {
        self.results.lock().unwrap().unknown
    }

    /// After a loss of data every key may be granted again, under another token.
    pub(crate) fn expect_data_loss(&self) {
        let mut results = self.results.lock().unwrap();
        results.granted.iter_mut().for_each(BTreeMap::clear);
        results.answers.iter_mut().for_each(|answer| *answer = None);
    }

    /// Begins each key three times at once, and completes each grant if `completes`. Returns the number of grants.
    pub(crate) async fn race(&self, completes: bool) -> u64 {
        let racers = (0..self.keys.len()).flat_map(|key| (0..3).map(move |_| self.attempt(key, completes)));
        join_all(racers).await.into_iter().map(u64::from).sum()
    }

    /// Returns whether the attempt was granted.
    async fn attempt(&self, key: usize, completes: bool) -> bool {
        let owner = self.next_owner();
        let begun = self.retry(|| self.keys[key].begin(&*self.store, owner)).await;
        let (Begun::Granted(grant) | Begun::Mine(grant)) = begun else {
            self.check_refusal(key, &begun);
            return false;
        };
        self.check_grant(key, &grant);
        if completes {
            // The answer names its grant, so that a replay shows which grant was recorded.
            let answer = format!("{:?}", grant.token);
            let completed = self.retry(|| self.keys[key].complete(&*self.store, &grant, &answer)).await;
            assert!(
                matches!(completed, Completed::Done | Completed::Already | Completed::Recreated),
                "the completion of a grant was refused: {completed:?}"
            );
            self.results.lock().unwrap().answers[key] = Some(answer);
        }
        true
    }

    fn next_owner(&self) -> Owner {
        let mut results = self.results.lock().unwrap();
        results.attempts += 1;
        let mut owner = [0; 16];
        owner[..8].copy_from_slice(&results.attempts.to_be_bytes());
        Owner(owner)
    }

    fn check_grant(&self, key: usize, grant: &Grant) {
        let mut results = self.results.lock().unwrap();
        let token = grant.token.0;
        assert!(results.tokens[key].insert(token), "key {key}: two grants under token {token}");
        let others = &mut results.granted[key];
        assert!(others.is_empty(), "key {key}: granted under {token} while {others:?} holds a live lease");
        others.insert(token, grant.owner);
        assert_eq!(results.answers[key], None, "key {key}: granted after its answer was recorded");
    }

    fn check_refusal(&self, key: usize, begun: &Begun) {
        match begun {
            Begun::Busy(left) => {
                assert!(*left <= Duration::from_secs(30), "key {key}: busy for {left:?}, longer than a lease");
            }
            Begun::Replay(completion) => {
                let results = self.results.lock().unwrap();
                let answers = results.tokens[key].iter().map(|token| format!("Token({token})"));
                let was_recorded = answers.into_iter().any(|answer| completion.answer == answer.as_bytes());
                assert!(was_recorded, "key {key}: the replayed answer was never recorded");
            }
            Begun::Granted(_) | Begun::Mine(_) => {}
            Begun::Mismatch | Begun::Indeterminate(_) | Begun::Dead => panic!("key {key}: {begun:?}"),
        }
    }

    /// Repeats the call until it succeeds.
    async fn retry<T, F>(&self, mut call: impl FnMut() -> F) -> T
    where
        F: Future<Output = Result<T>>,
    {
        loop {
            let timed_out = || Err(Error::new(Unknown, "no reply within the timeout"));
            match with_timeout(CALL_TIMEOUT, call()).await.unwrap_or_else(timed_out) {
                Ok(answer) => return answer,
                Err(error) => {
                    assert!(matches!(error.kind(), Unknown | NotApplied | Full), "{error:?}");
                    self.results.lock().unwrap().unknown += u64::from(error.kind() == Unknown);
                    hapax_testkit::pause().await;
                }
            }
        }
    }

    /// Every key replays its recorded answer.
    pub(crate) async fn assert_answers_stand(&self) {
        for (key, operation) in self.keys.iter().enumerate() {
            let answer = self.results.lock().unwrap().answers[key].clone().expect("the key was completed");
            operation.assert_replays(&*self.store, &answer).await;
        }
    }
}
