//! A server that refuses everything, and what must be true of that.

use std::sync::Arc;

use hapax_core::machine::{Change, Claim, Decision, Grant, Observed, release};
use hapax_core::store::Inserted;
use hapax_core::{ErrorKind, Result, Seconds, Store};
use hapax_stores::Redis;
use hapax_testkit::servers::{RedisServer, Reply};

use crate::world::{FIRST, Operation, SECOND, ask, completion, failure};

/// A record under way, one that is done, and one that is not there, before the server comes to its plight.
pub(crate) struct Plight<'a> {
    server: &'a RedisServer,
    store: Arc<Redis>,
    under_way: Operation,
    grant: Grant,
    seen: Observed,
    change: Change,
    done: Operation,
    absent: Operation,
    before: (Reply, Reply),
}

impl<'a> Plight<'a> {
    /// The store is one that works as yet; it is asked by the one that the test hands to `refuses`.
    pub(crate) async fn ahead(server: &'a RedisServer, store: Arc<Redis>) -> Self {
        let (under_way, done, absent) = (Operation::new("under way"), Operation::new("done"), Operation::new("absent"));
        done.cycle(&*store).await;
        let grant = under_way.granted(&*store, FIRST).await;
        let seen = store.read(&under_way.0.record_key()).await.unwrap();
        let Decision::Change(change, _) = release(&seen, &Claim::from(&grant), Seconds(600)) else {
            panic!("the grant can be released");
        };
        let before = under_way.held(server).await;
        Self { server, store, under_way, grant, seen, change, done, absent, before }
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// All operations.
    pub(crate) fn operations(&self) -> [Operation; 3] {
        [self.under_way, self.done, self.absent]
    }

    /// Every operation is refused as this, and says why.
    pub(crate) async fn refuses(&self, kind: ErrorKind, why: &str) {
        self.refuses_to(&*self.store, kind, why).await;
    }

    /// Every operation that would write is refused as this, and says why; what is there is shown, and what is done is replayed.
    pub(crate) async fn refuses_writes(&self, kind: ErrorKind, why: &str) {
        let (rk, store) = (self.under_way.0.record_key(), &*self.store);
        self.refuses_changes(store, kind, why).await;
        let Ok(Inserted::Found(seen)) = store.begin(&self.under_way.ask(SECOND)).await else {
            panic!("what is there is shown")
        };
        assert_eq!(seen.record, self.seen.record);
        assert_eq!(store.read(&rk).await.unwrap().record, self.seen.record);
        assert_eq!(store.read(&self.absent.0.record_key()).await.unwrap().record, None);
        self.done.replays(store, "done").await;
    }

    /// As [`Self::refuses`], of another store.
    pub(crate) async fn refuses_to(&self, store: &dyn Store, kind: ErrorKind, why: &str) {
        self.refuses_changes(store, kind, why).await;
        refused(store.read(&self.under_way.0.record_key()).await, kind, why);
        refused(store.begin(&self.done.ask(SECOND)).await, kind, why);
    }

    async fn refuses_changes(&self, store: &dyn Store, kind: ErrorKind, why: &str) {
        let rk = self.under_way.0.record_key();
        refused(store.begin(&self.absent.ask(FIRST)).await, kind, why);
        refused(store.renew(&rk, &Claim::from(&self.grant)).await, kind, why);
        refused(store.complete(&rk, &completion(&self.grant, "an answer")).await, kind, why);
        refused(store.swap(&rk, &self.seen, &self.change).await, kind, why);
    }

    /// Nothing of what was refused was done, and once the server is well the very same operations are carried out.
    pub(crate) async fn passes(self) {
        assert_eq!(self.under_way.held(self.server).await, self.before, "a refused operation was carried out");
        let there = ask(self.server, &[b"EXISTS", &self.absent.name()[..]]).await;
        assert_eq!(there, Reply::Integer(0), "a refused begin was carried out");
        self.absent.cycle(&*self.store).await;
        let completed = self.under_way.complete(&*self.store, &self.grant, "done").await;
        assert!(completed.is_ok(), "{completed:?}");
        self.under_way.replays(&*self.store, "done").await;
    }
}

pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, why: &str) {
    let error = failure(result);
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(format!("{error:?}").contains(why), "{error:?} does not say {why}");
}
