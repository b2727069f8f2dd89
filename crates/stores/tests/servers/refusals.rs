//! Checks a server that refuses commands: the error is right, nothing was applied, and the server recovers.

use std::sync::Arc;

use hapax_core::machine::{Change, Claim, Decision, Grant, Observed, release};
use hapax_core::store::Inserted;
use hapax_core::{ErrorKind, Result, Seconds, Store};
use hapax_stores::Redis;
use hapax_testkit::servers::{RedisServer, RespValue};

use crate::support::{FIRST, Operation, SECOND, ask, completion, expect_error};

/// A record in progress, a completed one and an absent one, set up before the server begins to refuse.
pub(crate) struct RefusalCheck<'a> {
    server: &'a RedisServer,
    store: Arc<Redis>,
    in_progress: Operation,
    grant: Grant,
    seen: Observed,
    change: Change,
    done: Operation,
    absent: Operation,
    before: (RespValue, RespValue),
}

impl<'a> RefusalCheck<'a> {
    /// Writes the records with a store that still works.
    pub(crate) async fn prepare(server: &'a RedisServer, store: Arc<Redis>) -> Self {
        let (in_progress, done, absent) =
            (Operation::new("in progress"), Operation::new("done"), Operation::new("absent"));
        done.cycle(&*store).await;
        let grant = in_progress.grant(&*store, FIRST).await;
        let seen = store.read(&in_progress.0.record_key()).await.unwrap();
        let Decision::Change(change, _) = release(&seen, &Claim::from(&grant), Seconds(600)) else {
            panic!("the grant can be released");
        };
        let before = in_progress.stored_value(server).await;
        Self { server, store, in_progress, grant, seen, change, done, absent, before }
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The three operations.
    pub(crate) fn operations(&self) -> [Operation; 3] {
        [self.in_progress, self.done, self.absent]
    }

    /// Every store operation fails with this kind, and its error contains `text`.
    pub(crate) async fn assert_refuses(&self, kind: ErrorKind, text: &str) {
        self.assert_refuses_store(&*self.store, kind, text).await;
    }

    /// Every store operation that would write fails with this kind. Reads work, and completed operations are replayed.
    pub(crate) async fn assert_refuses_writes(&self, kind: ErrorKind, text: &str) {
        let (rk, store) = (self.in_progress.0.record_key(), &*self.store);
        self.assert_refuses_changes(store, kind, text).await;
        let Ok(Inserted::Found(seen)) = store.begin(&self.in_progress.ask(SECOND)).await else {
            panic!("a begin must find the stored record")
        };
        assert_eq!(seen.record, self.seen.record);
        assert_eq!(store.read(&rk).await.unwrap().record, self.seen.record);
        assert_eq!(store.read(&self.absent.0.record_key()).await.unwrap().record, None);
        self.done.assert_replays(store, "done").await;
    }

    /// As [`Self::assert_refuses`], for another store on the server.
    pub(crate) async fn assert_refuses_store(&self, store: &dyn Store, kind: ErrorKind, text: &str) {
        self.assert_refuses_changes(store, kind, text).await;
        assert_refused(store.read(&self.in_progress.0.record_key()).await, kind, text);
        assert_refused(store.begin(&self.done.ask(SECOND)).await, kind, text);
    }

    async fn assert_refuses_changes(&self, store: &dyn Store, kind: ErrorKind, text: &str) {
        let rk = self.in_progress.0.record_key();
        assert_refused(store.begin(&self.absent.ask(FIRST)).await, kind, text);
        assert_refused(store.renew(&rk, &Claim::from(&self.grant)).await, kind, text);
        assert_refused(store.complete(&rk, &completion(&self.grant, "an answer")).await, kind, text);
        assert_refused(store.swap(&rk, &self.seen, &self.change).await, kind, text);
    }

    /// No refused operation was applied, and now that the server works again each of them succeeds.
    pub(crate) async fn assert_recovers(self) {
        assert_eq!(
            self.in_progress.stored_value(self.server).await,
            self.before,
            "a refused operation changed the record"
        );
        let exists = ask(self.server, &[b"EXISTS", &self.absent.name()[..]]).await;
        assert_eq!(exists, RespValue::Integer(0), "a refused begin inserted a record");
        self.absent.cycle(&*self.store).await;
        let completed = self.in_progress.complete(&*self.store, &self.grant, "done").await;
        assert!(completed.is_ok(), "{completed:?}");
        self.in_progress.assert_replays(&*self.store, "done").await;
    }
}

pub(crate) fn assert_refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, text: &str) {
    let error = expect_error(result);
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(format!("{error:?}").contains(text), "{error:?} does not contain {text}");
}
