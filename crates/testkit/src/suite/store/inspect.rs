//! What operators see and remove: `scan` and `purge`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hapax_core::machine::{Completed, Purge, Purged, Settled};
use hapax_core::store::{Protocol, RecordStatus, Scan, Scanned, Swapped};
use hapax_core::{RecordKey, Token};

use super::clock::*;
use super::operation::*;
use super::parallel::each;
use super::tokens::in_progress_under;
use crate::setup::{Setup, StoredPart};

/// The records of a whole scan, in chunks of this many. The last one that was found counts.
async fn scan(setup: &dyn Setup, ask: Scan) -> HashMap<RecordKey, Scanned> {
    let (inspect, mut ask, mut found) = (setup.inspect(), ask, HashMap::new());
    // Enough for one record a chunk.
    for _ in 0..10_000 {
        let chunk = inspect.scan(&ask).await.expect("the scan failed");
        assert_eq!(chunk.damaged, [], "no record is damaged");
        found.extend(chunk.records.into_iter().map(|scanned| (scanned.rk, scanned)));
        let Some(next) = chunk.next else { return found };
        ask = ask.from(next);
    }
    panic!("the scan does not end");
}

/// One record in each status, each after the one before by `apart`.
async fn in_each_status(setup: &dyn Setup, apart: Duration) -> Vec<(RecordStatus, SuiteOperation)> {
    let operations = SuiteOperation::many(setup, 6);
    let [lapsed, indeterminate, released, dead, completed, running] = &operations[..] else { unreachable!() };
    assert_eq!(lapsed.abandon(&lapsed.grant(FIRST).await).await, Settled::Yes);
    forward(setup, apart).await;
    indeterminate.grant(FIRST).await;
    indeterminate.lapse_and_hold(setup, SECOND).await;
    forward(setup, apart).await;
    assert_eq!(released.release(&released.grant(FIRST).await).await, Settled::Yes);
    forward(setup, apart).await;
    assert_eq!(dead.bury(&dead.grant(FIRST).await).await, Settled::Yes);
    forward(setup, apart).await;
    completed.grant_and_complete(FIRST, "the answer").await;
    forward(setup, apart).await;
    running.grant(FIRST).await;
    let statuses = [
        RecordStatus::Lapsed,
        RecordStatus::Indeterminate,
        RecordStatus::Released,
        RecordStatus::Dead,
        RecordStatus::Completed,
        RecordStatus::Running,
    ];
    statuses.into_iter().zip(operations).collect()
}

pub(super) async fn scan_finds_every_record_of_every_status(setup: &dyn Setup) {
    let records = in_each_status(setup, Duration::ZERO).await;
    let others: Vec<_> = (100..400).map(|n| SuiteOperation::nth(setup, n)).collect();
    each(&others, |operation| async move { operation.grant(FIRST).await }).await;
    for limit in [1, 7, 1000] {
        let begun = Instant::now();
        let found = scan(setup, Scan::new(limit)).await;
        assert_eq!(found.len(), records.len() + others.len(), "in chunks of {limit}");
        for (status, operation) in &records {
            let scanned = &found[&operation.rk()];
            assert_eq!((scanned.status, &scanned.record), (*status, &operation.record().await));
            // A server is slow on a busy machine, and its times are rounded.
            let (then, now) = (scanned.life_left, operation.read().await.life_left);
            let passed = begun.elapsed() + Duration::from_secs(1);
            assert!(then + Duration::from_secs(1) > now && then < now + passed, "{then:?}, {passed:?} later {now:?}");
        }
        assert!(others.iter().all(|other| found[&other.rk()].status == RecordStatus::Running));
    }
}

pub(super) async fn scan_finds_records_that_change_meanwhile(setup: &dyn Setup) {
    let operations = SuiteOperation::many(setup, INSTANCES);
    let mut grants = Vec::new();
    for operation in &operations {
        grants.push(operation.grant(FIRST).await);
    }
    let (inspect, mut ask, mut found, mut turn) = (setup.inspect(), Scan::new(10), HashMap::new(), 0);
    loop {
        let chunk = inspect.scan(&ask).await.expect("the scan failed");
        found.extend(chunk.records.into_iter().map(|scanned| (scanned.rk, scanned)));
        let Some(next) = chunk.next else { break };
        ask = ask.from(next);
        // Some records are renewed and completed, and others come and go.
        for n in (turn % 7..operations.len()).step_by(7) {
            operations[n].renew(&grants[n]).await;
            operations[n].complete(&grants[n], "the answer").await;
        }
        let visitor = SuiteOperation::nth(setup, 10_000 + u32::try_from(turn).expect("a small number"));
        let seen = visitor.grant_and_complete(FIRST, "the answer").await;
        if turn % 2 == 0 {
            assert_eq!(purge(setup, &visitor, seen.token, false).await, Purged::Yes);
        }
        turn += 1;
    }
    let missed = operations.iter().filter(|operation| !found.contains_key(&operation.rk())).count();
    assert_eq!(missed, 0, "of {} records that existed all the time", operations.len());
}

pub(super) async fn scan_leaves_out_what_expired(setup: &dyn Setup) {
    let [stays, expires] = [0, 1].map(|n| SuiteOperation::nth(setup, n));
    expires.release(&expires.grant(FIRST).await).await;
    stays.grant(FIRST).await;
    setup.expire(&expires.rk()).await;
    let found = scan(setup, Scan::new(100)).await;
    assert_eq!(found.keys().collect::<Vec<_>>(), [&stays.rk()]);
}

pub(super) async fn scan_filters_by_status_and_idle_time(setup: &dyn Setup) {
    let minute = Duration::from_secs(60);
    let records = in_each_status(setup, minute).await;
    for (status, operation) in &records {
        let found = scan(setup, Scan::new(2).only(&[*status])).await;
        assert_eq!(found.keys().collect::<Vec<_>>(), [&operation.rk()], "{status:?}");
    }
    // The sixth record is the youngest, and each before it is a minute older. A store may know less exactly since when
    // a record is completed.
    let open = [
        RecordStatus::Lapsed,
        RecordStatus::Indeterminate,
        RecordStatus::Released,
        RecordStatus::Dead,
        RecordStatus::Running,
    ];
    for (n, (status, _)) in (0..).zip(&records).filter(|(_, (status, _))| *status != RecordStatus::Completed) {
        let idle = minute * (5 - n);
        let found = scan(setup, Scan::new(3).only(&open).idle_for(idle)).await;
        let youngest = found.into_values().min_by_key(|scanned| scanned.idle).expect("there is one");
        assert_eq!(youngest.status, *status, "{youngest:?}");
        assert!(youngest.idle >= idle && youngest.idle < idle + minute, "{youngest:?}");
    }
    let completed = scan(setup, Scan::new(3).only(&[RecordStatus::Completed]).idle_for(minute)).await;
    assert_eq!(completed.len(), 1);
    let two = scan(setup, Scan::new(100).only(&[RecordStatus::Lapsed, RecordStatus::Dead])).await;
    assert_eq!(two.len(), 2);
    let none = scan(setup, Scan::new(100).only(&[RecordStatus::Running]).idle_for(minute)).await;
    assert_eq!(none.len(), 0);
}

pub(super) async fn scan_names_a_damaged_record(setup: &dyn Setup) {
    let [healthy, damaged] = [0, 1].map(|n| SuiteOperation::nth(setup, n));
    healthy.grant(FIRST).await;
    damaged.grant(FIRST).await;
    setup.corrupt(&damaged.rk(), StoredPart::Header).await;
    let (inspect, mut ask, mut found, mut named) = (setup.inspect(), Scan::new(1), Vec::new(), Vec::new());
    loop {
        let chunk = inspect.scan(&ask).await.expect("a damaged record does not end the scan");
        found.extend(chunk.records.iter().map(|scanned| scanned.rk));
        named.extend(chunk.damaged);
        let Some(next) = chunk.next else { break };
        ask = ask.from(next);
    }
    assert_eq!((found, named), (vec![healthy.rk()], vec![damaged.rk()]));
}

/// Purges as an operator does.
async fn purge(setup: &dyn Setup, operation: &SuiteOperation, expected: Token, forget_unknown: bool) -> Purged {
    let ask = Purge { expected, forget_unknown };
    let purged = Protocol::over(operation.store()).purge(&*setup.inspect(), &operation.rk(), &ask).await;
    purged.expect("the purge failed")
}

pub(super) async fn purge_removes_only_what_was_seen(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    let before = operation.read().await;
    assert_eq!(operation.complete(&first, "the answer").await, Completed::Done);
    let stale = setup.inspect().purge(&operation.rk(), &before).await;
    assert_eq!(stale.expect("the purge failed"), Swapped::Changed);
    assert_eq!(purge(setup, &operation, Token(first.token.0 - 1), true).await, Purged::Stale);
    operation.assert_replays("the answer").await;

    assert_eq!(purge(setup, &operation, first.token, false).await, Purged::Yes);
    assert!(operation.read().await.live().is_none());
    assert_eq!(purge(setup, &operation, first.token, false).await, Purged::Stale, "it is gone");
}

pub(super) async fn purge_notices_renewal(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    setup.lapse(&operation.rk()).await;
    let lapsed = operation.read().await;
    // Its owner was only slow: it renews, and holds the lease again.
    operation.renew(&grant).await;
    let purged = setup.inspect().purge(&operation.rk(), &lapsed).await;
    assert_eq!(purged.expect("the purge failed"), Swapped::Changed);
    assert_eq!(operation.complete(&grant, "the answer").await, Completed::Done);
}

pub(super) async fn purge_spares_running_and_unknown(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    for forget_unknown in [false, true] {
        assert_eq!(purge(setup, &operation, grant.token, forget_unknown).await, Purged::Running);
    }
    setup.lapse(&operation.rk()).await;
    assert_eq!(purge(setup, &operation, grant.token, false).await, Purged::Unknown);
    assert_eq!(operation.record().await.token, grant.token);
    assert_eq!(purge(setup, &operation, grant.token, true).await, Purged::Yes);
    // The owner that was given up still records its effect.
    assert_eq!(operation.complete(&grant, "the answer").await, Completed::Recreated);
}

pub(super) async fn purge_frees_the_key_and_keeps_tokens_growing(setup: &dyn Setup) {
    for (n, (status, operation)) in in_each_status(setup, Duration::ZERO).await.into_iter().enumerate() {
        if status == RecordStatus::Running {
            continue;
        }
        let token = operation.record().await.token;
        assert_eq!(purge(setup, &operation, token, true).await, Purged::Yes, "{n}: {status:?}");
        let next = operation.grant(SECOND).await;
        assert!(next.token > token, "{status:?}: {next:?} after {token:?}");
        assert_eq!((next.attempt, next.takeover), (1, false), "{status:?}: the key was free");
    }
}

pub(super) async fn purge_raises_the_mark(setup: &dyn Setup) {
    for (n, token) in (0..).zip([(1 << 53) + 1, (1 << 63) + 1].map(Token)) {
        let operation = SuiteOperation::nth(setup, n);
        let seen = operation.read().await;
        assert_eq!(operation.swap(&seen, &in_progress_under(token)).await, Swapped::Yes);
        setup.lapse(&operation.rk()).await;
        assert_eq!(purge(setup, &operation, token, true).await, Purged::Yes);
        assert!(operation.read().await.token_high_water >= token, "the mark forgets {token:?}");
        let next = operation.grant(SECOND).await;
        assert!(next.token > token, "{next:?} after {token:?}");
    }
}
