//! Begins: which one is granted, and the reply of all others.

use futures_util::future::join_all;
use hapax_core::machine::{Begun, Completed, Grant, Settled};
use hapax_core::store::Inserted;
use hapax_core::{Phase, State};

use super::assertions::*;
use super::clock::*;
use super::operation::*;
use super::parallel::*;
use crate::setup::Setup;

pub(super) async fn begin_grants_absent(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;

    let seen = operation.read().await;
    let record = seen.live().expect("the record is not live");
    let holding = expect_in_progress(record);
    assert_eq!((holding.lease, holding.lifetime), (LEASE, UNKNOWN));
    assert_eq!((holding.owner, grant.owner), (FIRST, FIRST));
    assert_eq!((holding.attempt, grant.attempt), (1, 1));
    assert!(!holding.takeover && !grant.takeover);
    assert_eq!(
        (record.token, grant.rk, record.fingerprint, grant.fingerprint),
        (grant.token, operation.rk(), payload("the payload"), payload("the payload"))
    );
    assert!(seen.token_high_water >= grant.token, "{seen:?}");
    assert_left(seen.lease_left, LEASE);
    assert_left(seen.life_left, UNKNOWN);
}

pub(super) async fn begin_busy_live(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    operation.grant(FIRST).await;
    forward(setup, WHILE).await;
    let before = operation.read().await;

    for ask in [operation.hold_begin(SECOND), operation.retry_begin(SECOND)] {
        expect_busy(operation.begin_as(&ask).await);
        let inserted = operation.store().begin(&ask).await;
        let Ok(Inserted::Found(found)) = inserted else {
            panic!("expected the stored record, got {inserted:?}");
        };
        assert_eq!(found.record, before.record);
    }
    operation.assert_unchanged(&before).await;
}

pub(super) async fn begin_busy_reports_remaining_lease(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    operation.grant(FIRST).await;
    assert_left(expect_busy(operation.begin(SECOND).await), LEASE);
    forward(setup, WHILE).await;
    let left = expect_busy(operation.begin(SECOND).await);
    assert_left(left, std::time::Duration::from(LEASE) - WHILE);
    assert_left(operation.read().await.lease_left, left);
}

pub(super) async fn begin_same_owner_is_mine(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    let record = operation.record().await;

    assert_eq!(expect_mine(operation.begin(FIRST).await), grant);
    assert_eq!(expect_mine(operation.retry(FIRST).await), grant);
    setup.lapse(&operation.rk()).await;
    assert_eq!(expect_mine(operation.retry(FIRST).await), grant);
    assert_eq!(operation.record().await, record);
}

pub(super) async fn begin_mine_rearms_lease(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    operation.grant(FIRST).await;
    forward(setup, WHILE).await;
    expect_mine(operation.begin(FIRST).await);
    let seen = operation.read().await;
    assert_left(seen.lease_left, LEASE);
    assert_left(seen.life_left, UNKNOWN);
}

pub(super) async fn begin_replays_completed_bytes_exact(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    let answer: Vec<u8> = (0..=255).rev().chain(0..=255).collect();
    let completion = operation.completion(&grant, answer.clone());
    assert_eq!(operation.complete_as(&completion).await, Completed::Done);
    for owner in [FIRST, SECOND] {
        assert_eq!(expect_replay(operation.begin(owner).await).answer, answer);
        assert_eq!(expect_replay(operation.retry(owner).await).answer, answer);
    }
}

pub(super) async fn begin_mismatch_when_live(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    operation.grant(FIRST).await;
    assert_mismatches(setup, &operation).await;
}

pub(super) async fn begin_mismatch_when_completed(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    operation.grant_and_complete(FIRST, "the answer").await;
    assert_mismatches(setup, &operation).await;
}

pub(super) async fn begin_mismatch_when_released(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    assert_eq!(operation.release(&grant).await, Settled::Yes);
    assert_mismatches(setup, &operation).await;
}

/// A begin for another payload is a mismatch for every owner, and changes nothing.
async fn assert_mismatches(setup: &dyn Setup, operation: &SuiteOperation) {
    forward(setup, WHILE).await;
    let before = operation.read().await;
    for owner in [FIRST, SECOND] {
        assert_eq!(operation.other_payload(owner).await, Begun::Mismatch);
    }
    operation.assert_unchanged(&before).await;
}

pub(super) async fn begin_mismatch_beats_busy(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    operation.grant(FIRST).await;
    expect_busy(operation.begin(SECOND).await);
    assert_eq!(operation.other_payload(SECOND).await, Begun::Mismatch);

    setup.lapse(&operation.rk()).await;
    assert_mismatches(setup, &operation).await;
    expect_indeterminate(operation.begin(SECOND).await);
    assert_mismatches(setup, &operation).await;
}

pub(super) async fn begin_lapsed_retry_takes_over(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    setup.lapse(&operation.rk()).await;
    let second = expect_grant(operation.retry(SECOND).await);

    assert!(second.takeover && second.token > first.token, "{second:?}");
    assert_eq!((second.owner, second.attempt, second.fingerprint), (SECOND, 2, first.fingerprint));
    let seen = operation.read().await;
    let record = seen.live().expect("the record is not live");
    let holding = expect_in_progress(record);
    assert_eq!((record.token, holding.owner), (second.token, SECOND));
    assert!(holding.takeover && holding.attempt == 2, "{holding:?}");
    assert_left(seen.lease_left, LEASE);
}

pub(super) async fn begin_lapsed_indeterminate_marks(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    setup.lapse(&operation.rk()).await;
    let lapsed = operation.read().await;
    let since = expect_indeterminate(operation.begin(SECOND).await);
    assert_same_time(since, lapsed.now);

    let record = operation.record().await;
    let State::Open(Phase::Indeterminate, holding) = &record.state else {
        panic!("expected an indeterminate record, got {record:?}");
    };
    assert_eq!((record.token, holding.owner), (first.token, FIRST));

    forward(setup, WHILE).await;
    let before = operation.read().await;
    for owner in [FIRST, SECOND] {
        assert_same_time(expect_indeterminate(operation.begin(owner).await), since);
        assert_same_time(expect_indeterminate(operation.retry(owner).await), since);
    }
    operation.assert_unchanged(&before).await;
}

pub(super) async fn begin_after_release_grants_higher_token(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    assert_eq!(operation.release(&first).await, Settled::Yes);
    let second = operation.grant(SECOND).await;
    assert!(second.token > first.token, "{second:?}");
    assert_eq!((second.attempt, second.takeover), (2, false));
}

pub(super) async fn begin_expired_ignores_old_fp(setup: &dyn Setup) {
    let operations = SuiteOperation::many(setup, 2);
    operations[0].grant(FIRST).await;
    operations[1].grant_and_complete(FIRST, "the answer").await;
    expire_all(setup, &operations).await;
    for operation in operations {
        let grant = expect_grant(operation.other_payload(SECOND).await);
        assert_eq!((grant.attempt, grant.takeover, grant.fingerprint), (1, false, payload("another payload")));
        assert_eq!(operation.begin(FIRST).await, Begun::Mismatch);
    }
}

pub(super) async fn begin_100_racers_one_grant(setup: &dyn Setup) {
    for operation in SuiteOperation::many(setup, 4) {
        let begun = race(&operation, 100, |operation, owner| async move { operation.begin(owner).await });
        let grant = only_grant(begun.await);
        assert_eq!((grant.attempt, grant.takeover), (1, false));
        assert_eq!(expect_in_progress(&operation.record().await).owner, grant.owner);
    }
}

pub(super) async fn begin_takeover_100_racers_one_winner(setup: &dyn Setup) {
    for operation in SuiteOperation::many(setup, 4) {
        let first = operation.grant(FIRST).await;
        setup.lapse(&operation.rk()).await;
        let begun = race(&operation, 100, |operation, owner| async move { operation.retry(owner).await });
        let grant = only_grant(begun.await);
        assert!(grant.takeover && grant.token > first.token, "{grant:?}");
        assert_eq!(grant.attempt, 2);
        assert_eq!(expect_in_progress(&operation.record().await).owner, grant.owner);
    }
}

/// Returns the only grant; all other racers must get Busy.
fn only_grant(begun: Vec<Begun>) -> Grant {
    let mut grants = Vec::new();
    for begun in begun {
        if let Begun::Granted(grant) = begun {
            grants.push(grant);
        } else {
            expect_busy(begun);
        }
    }
    assert_eq!(grants.len(), 1, "{grants:?}");
    grants[0]
}

pub(super) async fn begin_batch_equals_singles(setup: &dyn Setup) {
    let mut singles = Vec::new();
    for n in 0..BATCH {
        singles.push(describe(&begin_in_varied_state(setup, n).await));
    }
    let batch = (BATCH..2 * BATCH).map(|n| begin_in_varied_state(setup, n));
    let batch: Vec<_> = with_deadline(join_all(batch)).await.iter().map(describe).collect();
    assert_eq!(batch, singles);
    assert!(batch.contains(&String::from("granted, attempt 2")));
}

const BATCH: u32 = 60;

/// Brings the n-th operation into one of six states, and begins it.
async fn begin_in_varied_state(setup: &dyn Setup, n: u32) -> Begun {
    let operation = SuiteOperation::nth(setup, n);
    match n % 6 {
        0 => {}
        1 | 2 => drop(operation.grant(FIRST).await),
        3 | 4 => drop(operation.grant_and_complete(FIRST, &format!("answer {}", n % BATCH)).await),
        _ => {
            let grant = operation.grant(FIRST).await;
            assert_eq!(operation.release(&grant).await, Settled::Yes);
        }
    }
    match n % 6 {
        2 => operation.begin(FIRST).await,
        4 => operation.other_payload(SECOND).await,
        _ => operation.begin(SECOND).await,
    }
}

/// Describes a reply without its token and times.
fn describe(begun: &Begun) -> String {
    match begun {
        Begun::Granted(grant) => format!("granted, attempt {}", grant.attempt),
        Begun::Mine(grant) => format!("mine, attempt {}", grant.attempt),
        Begun::Busy(_) => "busy".into(),
        Begun::Replay(completion) => format!("replay of {:?}", completion.answer),
        Begun::Mismatch => "mismatch".into(),
        Begun::Indeterminate(_) => "indeterminate".into(),
        Begun::Dead => "dead".into(),
    }
}

pub(super) async fn begin_batch_duplicate_keys_in_batch(setup: &dyn Setup) {
    let operations = SuiteOperation::many(setup, 8);
    let begins = (0..64).map(|n| operations[n as usize % 8].hold_begin(racer(n)));
    let begins: Vec<_> = begins.collect();
    let store = setup.store();
    let inserted = with_deadline(join_all(begins.iter().map(|begin| store.begin(begin)))).await;

    let mut grants = Vec::new();
    for (begin, inserted) in begins.iter().zip(inserted) {
        match inserted.expect("the begin failed") {
            Inserted::Granted(grant) => {
                assert_eq!((grant.rk, grant.owner), (begin.call.record_key(), begin.owner));
                grants.push(grant.rk);
            }
            Inserted::Found(seen) => {
                let record = seen.live().expect("a found record is not live");
                assert_ne!(expect_in_progress(record).owner, begin.owner);
            }
        }
    }
    grants.sort();
    let mut all_keys: Vec<_> = operations.iter().map(SuiteOperation::rk).collect();
    all_keys.sort();
    assert_eq!(grants, all_keys, "one grant for each key");
}

pub(super) async fn begin_batches_opposite_order_no_deadlock(setup: &dyn Setup) {
    let operations = SuiteOperation::many(setup, INSTANCES);
    let batches = (0..8).map(|n| {
        let mut operations = operations.clone();
        if n % 2 == 1 {
            operations.reverse();
        }
        async move {
            let begins = operations.iter().map(|operation| operation.begin(racer(n)));
            let begun = join_all(begins).await;
            let is_grant = |begun: &&Begun| matches!(begun, Begun::Granted(_));
            begun.iter().filter(is_grant).count()
        }
    });
    let grants: usize = run_concurrently(batches).await.into_iter().sum();
    assert_eq!(grants, operations.len(), "one grant for each key");
}

pub(super) async fn begin_row_vanishes_mid_way(setup: &dyn Setup) {
    let operations = SuiteOperation::many(setup, 50);
    let olds = each(&operations, |operation| async move { operation.grant_and_complete(FIRST, "the answer").await });
    let olds = olds.await;
    expire_all(setup, &operations).await;

    let inspect = setup.inspect();
    // Sweep one row at a time while the begins run, so that rows vanish between a begin's insert and its read.
    let sweeps = tokio::spawn(async move {
        for _ in 0..100 {
            inspect.sweep(1).await.expect("the sweep failed");
            tokio::task::yield_now().await;
        }
    });
    let news = each(&operations, |operation| async move {
        let begins = (0..4).map(|n| operation.begin(racer(n)));
        only_grant(join_all(begins).await)
    });
    let news = news.await;
    with_deadline(sweeps).await.expect("a sweep failed");

    for ((operation, old), new) in operations.iter().zip(olds).zip(news) {
        assert!(new.token > old.token, "{new:?}");
        assert_eq!(operation.record().await.token, new.token);
    }
}

pub(super) async fn begin_own_abandoned_is_not_mine(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    assert_eq!(operation.abandon(&first).await, Settled::Yes);
    let again = expect_grant(operation.retry(FIRST).await);
    assert!(again.takeover && again.token > first.token, "{again:?}");

    assert_eq!(operation.abandon(&again).await, Settled::Yes);
    expect_indeterminate(operation.begin(FIRST).await);
}
