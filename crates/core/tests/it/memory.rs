//! Tests of the memory store that the suite does not contain.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::machine::{Begin, Lapse};
use hapax_core::store::{Inserted, Inspect, Memory, MemorySettings, Severity};
use hapax_core::{Call, ErrorKind, Millis, Owner, RecordKey, Result, Seconds, Store};
use hapax_testkit::ManualClock;

const LIFE: Seconds = Seconds(60);

fn small() -> (Memory, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    let settings = MemorySettings::default().max_bytes(64 << 10);
    (Memory::with(Arc::clone(&clock) as _, settings), clock)
}

async fn begin(store: &Memory, n: u32) -> Result<Inserted> {
    let mut rk = [0; 16];
    rk[12..].copy_from_slice(&n.to_be_bytes());
    let ask = Begin {
        call: Call::new(RecordKey::from_bytes(rk)),
        owner: Owner([1; 16]),
        lease: Millis(1_000),
        unknown_retention: LIFE,
        on_lapse: Lapse::Hold,
    };
    store.begin(&ask).await
}

/// The number of begins that are granted before the store is full.
async fn count_grants(store: &Memory, first: u32) -> u32 {
    for n in 0..10_000 {
        if let Err(error) = begin(store, first + n).await {
            assert_eq!(error.kind(), ErrorKind::Full);
            return n;
        }
    }
    panic!("the store is never full");
}

#[tokio::test]
async fn expired_records_make_room_for_new_ones() {
    let (store, clock) = small();
    let first = count_grants(&store, 0).await;
    assert!(first > 10, "{first} records in 64 KiB");
    assert_eq!(count_grants(&store, 100_000).await, 0, "it stays full");
    clock.forward(LIFE.into());
    // Each begin removes more expired records than it adds records, so no sweep is needed.
    let again = count_grants(&store, 200_000).await;
    assert!(again.abs_diff(first) <= 2, "{first}, then {again}");
}

#[tokio::test]
async fn a_sweep_removes_at_most_its_limit_of_expired_records() {
    let (store, clock) = small();
    for n in 0..30 {
        begin(&store, n).await.unwrap();
    }
    assert_eq!(store.sweep(100).await.unwrap(), 0, "no record is expired");
    clock.forward(Duration::from(LIFE) - Duration::from_micros(1));
    assert_eq!(store.sweep(100).await.unwrap(), 0, "no record is expired one microsecond before its end");
    clock.forward(Duration::from_micros(1));
    assert_eq!(store.sweep(20).await.unwrap(), 20);
    assert_eq!(store.sweep(20).await.unwrap(), 10);
    assert_eq!(store.sweep(20).await.unwrap(), 0);
}

#[tokio::test]
async fn a_check_warns_that_records_are_lost_with_the_process() {
    let (store, _) = small();
    let findings = store.check().await.unwrap();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].severity, Severity::Warn);
    assert!(findings[0].message.contains("forgets every key when this process ends"), "{findings:?}");
}
