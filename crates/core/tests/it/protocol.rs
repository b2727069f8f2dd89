//! The operations of `Protocol` on a record that changes between read and swap, and the pin of a namespace.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::machine::{
    Begin, Begun, Change, Claim, Complete, Completed, Grant, Lapse, Observed, Pinned, Renewed, Resolved, Settled,
};
use hapax_core::store::{Inserted, Memory, MemorySettings, Protocol, Swapped};
use hapax_core::{Call, ErrorKind, Identity, Millis, Owner, RecordKey, Result, Seconds, Store, Timestamp};
use hapax_testkit::ManualClock;

const RK: RecordKey = RecordKey::from_bytes([5; 16]);
const LEASE: Millis = Millis(1_000);
const LIFE: Seconds = Seconds(60);

fn ask(owner: u8) -> Begin {
    Begin {
        call: Call::new(RK),
        owner: Owner([owner; 16]),
        lease: LEASE,
        unknown_retention: LIFE,
        on_lapse: Lapse::Retry,
    }
}

/// A store that renews the record before each of the next `changes` swaps.
#[derive(Debug)]
struct Contended {
    inner: Memory,
    clock: Arc<ManualClock>,
    changes: AtomicU32,
}

impl Contended {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        let inner = Memory::with(Arc::clone(&clock) as _, MemorySettings::default());
        Self { inner, clock, changes: AtomicU32::new(0) }
    }

    async fn begin_and_get_grant(&self, owner: u8) -> Grant {
        match Protocol::over(self).begin(&ask(owner)).await.unwrap() {
            Begun::Granted(grant) => grant,
            begun @ (Begun::Mine(_)
            | Begun::Busy(_)
            | Begun::Replay(_)
            | Begun::Mismatch
            | Begun::Indeterminate(_)
            | Begun::Dead) => panic!("granted was expected, not {begun:?}"),
        }
    }

    fn change_before(&self, swaps: u32) {
        self.changes.store(swaps, Ordering::SeqCst);
    }

    async fn rearm(&self) {
        self.clock.forward(Duration::from_millis(1));
        let seen = self.inner.read(&RK).await.unwrap();
        let change = Change { record: seen.record.clone().unwrap(), lifetime: LIFE };
        assert_eq!(self.inner.swap(&RK, &seen, &change).await.unwrap(), Swapped::Yes);
    }
}

#[async_trait]
impl Store for Contended {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        self.inner.begin(ask).await
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        self.inner.renew(rk, claim).await
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        // The least that the contract demands: a record under another token is left to read and swap.
        let seen = self.inner.read(rk).await?;
        match seen.live() {
            Some(record) if record.token != ask.claim.token => Ok(Completed::Lost(record.clone())),
            Some(_) | None => self.inner.complete(rk, ask).await,
        }
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        self.inner.read(rk).await
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let left = self.changes.load(Ordering::SeqCst);
        if left > 0 {
            self.changes.store(left - 1, Ordering::SeqCst);
            self.rearm().await;
        }
        self.inner.swap(rk, seen, next).await
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(self)
    }
}

#[tokio::test]
async fn an_operation_succeeds_at_the_eighth_try() {
    let store = Contended::new();
    let grant = store.begin_and_get_grant(1).await;
    // Each change makes one swap fail, so the eighth try is the first to succeed.
    store.change_before(7);
    let released = Protocol::over(&store).release(&RK, &Claim::from(&grant), LIFE).await;
    assert_eq!(released.unwrap(), Settled::Yes);
    store.change_before(7);
    assert_eq!(store.begin_and_get_grant(2).await.attempt, 2);
}

#[tokio::test]
async fn an_operation_fails_with_not_applied_when_the_record_changes_during_eight_tries() {
    let store = Contended::new();
    let grant = store.begin_and_get_grant(1).await;
    store.change_before(8);
    let before = store.inner.read(&RK).await.unwrap().record;
    let released = Protocol::over(&store).release(&RK, &Claim::from(&grant), LIFE).await;
    assert_eq!(released.expect_err("it gives up").kind(), ErrorKind::NotApplied);
    assert_eq!(store.inner.read(&RK).await.unwrap().record, before);
}

#[tokio::test]
async fn a_begin_is_busy_when_the_record_changes_during_eight_tries() {
    let store = Contended::new();
    let grant = store.begin_and_get_grant(1).await;
    let released = Protocol::over(&store).release(&RK, &Claim::from(&grant), LIFE).await;
    assert_eq!(released.unwrap(), Settled::Yes);
    store.change_before(8);
    let begun = Protocol::over(&store).begin(&ask(2)).await.unwrap();
    assert_eq!(begun, Begun::Busy(LEASE.into()));
}

#[tokio::test]
async fn a_hold_does_not_overwrite_a_renewal_between_read_and_swap() {
    let store = Contended::new();
    let grant = store.begin_and_get_grant(1).await;
    store.clock.forward(LEASE.into());
    store.change_before(1);
    let held = Protocol::over(&store).hold(&RK, grant.token, LIFE).await.unwrap();
    assert_eq!(held, Resolved::Stale);
    assert!(store.inner.read(&RK).await.unwrap().is_running());
}

#[tokio::test]
async fn a_completion_by_swap_succeeds_at_the_eighth_try_and_fails_after_it() {
    for (changes, succeeds) in [(7, true), (8, false)] {
        let store = Contended::new();
        let first = store.begin_and_get_grant(1).await;
        store.clock.forward(LEASE.into());
        store.begin_and_get_grant(2).await;
        store.change_before(changes);
        let completion = Complete {
            claim: Claim::from(&first),
            fingerprint: first.fingerprint,
            answer: "the answer".into(),
            retention: LIFE,
            ended: Timestamp(0),
            age: Duration::ZERO,
        };
        let completed = Protocol::over(&store).complete(&RK, &completion).await;
        match completed {
            Ok(completed) => assert!(succeeds && completed == Completed::Done, "{completed:?}"),
            Err(error) => assert!(!succeeds && error.kind() == ErrorKind::NotApplied, "{error:?}"),
        }
    }
}

#[tokio::test]
async fn a_namespace_keeps_the_secret_that_it_was_pinned_to() {
    let clock = Arc::new(ManualClock::new());
    let store = Memory::with(Arc::clone(&clock) as _, MemorySettings::default());
    let pin = async |secret: Option<u8>, owner: u8| {
        let identity = secret.map_or_else(Identity::plain, |byte| Identity::keyed([byte; 32]));
        Protocol::over(&store).pin("shop", &identity, Owner([owner; 16])).await.unwrap()
    };
    assert_eq!(pin(None, 1).await, Pinned::Yes, "no process has pinned the namespace yet");
    assert_eq!(pin(Some(7), 2).await, Pinned::Yes);
    clock.forward(Duration::from_secs(19 * 365 * 24 * 3600));
    assert_eq!(pin(Some(7), 3).await, Pinned::Yes);
    assert_eq!(pin(Some(8), 4).await, Pinned::OtherSecret);
    assert_eq!(pin(None, 5).await, Pinned::OtherSecret);
}

#[tokio::test]
async fn a_pin_is_busy_while_another_process_writes_it() {
    let store = Contended::new();
    let call = Identity::keyed([7; 32]).pin("shop");
    store.begin(&Begin { call, ..ask(1) }).await.unwrap();
    let pinned = Protocol::over(&store).pin("shop", &Identity::keyed([7; 32]), Owner([2; 16])).await.unwrap();
    assert_eq!(pinned, Pinned::Busy(LEASE.into()));
    // The process that began it has stopped. The next one takes over after the lease.
    store.clock.forward(LEASE.into());
    let pinned = Protocol::over(&store).pin("shop", &Identity::keyed([7; 32]), Owner([2; 16])).await.unwrap();
    assert_eq!(pinned, Pinned::Yes);
}
