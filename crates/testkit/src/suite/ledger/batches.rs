//! Batches, attempts and the end of attempts.

use std::collections::BTreeSet;

use bytes::Bytes;
use hapax_core::ErrorKind;
use hapax_core::ledger::{Call, Claimed, Work};

use super::delivery::{Got, Way, World, call, deliver, operation, terms};
use super::script::{Act, Script};
use super::setup::{Snapshot, StoredAttempts};

fn work(call: Call) -> Work {
    Work { call, ordering_key: None, is_redelivered: false }
}

async fn deliver_batch(world: &World<'_>, calls: impl IntoIterator<Item = u8>, script: &Script) -> Vec<Got> {
    let session = world.setup.session(terms().max_attempts(3)).await;
    let work = calls.into_iter().map(|n| work(call(n))).collect();
    session.run_batch(work, script).await.into_iter().map(Got::from).collect()
}

pub(super) async fn inbox_dup_acked_not_run(world: &World<'_>) {
    let script = Script::good();
    let got = deliver_batch(world, [1, 2, 1, 3, 1], &script).await;
    let first = got[0].clone().fresh();
    assert_eq!([&got[2], &got[4]], [&Got::Replayed(first.clone()), &Got::Replayed(first.clone())]);
    assert_eq!(script.handled(), [operation(1), operation(2), operation(3)]);
    let again = deliver_batch(world, [3, 2, 1], &script).await;
    assert_eq!((&again[2], script.handled().len()), (&Got::Replayed(first), 3));
    assert_eq!(world.contents().await.effects.len(), 3);
}

pub(super) async fn copies_in_a_batch_of_one_key_run_once(world: &World<'_>) {
    let session = world.setup.session(terms().max_attempts(3)).await;
    let ordering_key = || Some(Bytes::from_static(b"account-7"));
    let copies = [1, 2, 1, 2, 1].map(|n| Work { call: call(n), ordering_key: ordering_key(), is_redelivered: false });
    let script = Script::good();
    let got: Vec<Got> = session.run_batch(copies.into(), &script).await.into_iter().map(Got::from).collect();
    let firsts = [got[0].clone().fresh(), got[1].clone().fresh()];
    for (n, copy) in got.into_iter().enumerate().skip(2) {
        assert_eq!(copy, Got::Replayed(firsts[n % 2].clone()), "copy {n}");
    }
    assert_eq!((script.handled().len(), world.contents().await.effects.len()), (2, 2));
}

pub(super) async fn inbox_busy_not_acked(world: &World<'_>) {
    let holder = world.setup.session(terms()).await;
    holder.begin(Snapshot::PerStatement).await.expect("the database answers");
    assert!(matches!(holder.claim(&call(1)).await, Ok(Claimed::Fresh(()))));
    let got = deliver_batch(world, [1, 2], &Script::good()).await;
    assert!(got[0].is_turned_away(), "behind a held claim it got {:?}", got[0]);
    // A database with one writer turns its neighbours away, too.
    assert!(got[1].is_turned_away() || matches!(got[1], Got::Fresh(_)), "its neighbour got {:?}", got[1]);
    holder.roll_back().await;
    let got = deliver_batch(world, [1, 2], &Script::good()).await;
    assert!(got.iter().all(|got| matches!(got, Got::Fresh(_) | Got::Replayed(_))), "{got:?}");
    assert_eq!(world.contents().await.effects.len(), 2);
}

pub(super) async fn innocent_neighbours_are_not_counted(world: &World<'_>) {
    for (is_named, calls) in [(false, 1..=16), (true, 17..=32)] {
        let poison = *calls.start() + 6;
        let script = Script::good().poisoned([operation(poison)], is_named);
        let got = deliver_batch(world, calls.clone(), &script).await;
        for (n, got) in calls.zip(got) {
            match n == poison {
                true => assert_eq!(got, Got::NotApplied),
                false => drop(got.fresh()),
            }
        }
    }
    let contents = world.contents().await;
    assert_eq!((contents.effects.len(), contents.events.len()), (30, 30));
    let counted: BTreeSet<_> = contents.attempts.iter().map(|row| (row.operation, row.attempts)).collect();
    assert_eq!(counted, BTreeSet::from([(operation(7), 1), (operation(23), 1)]));
}

pub(super) async fn dead_key_closed_until_reopen(world: &World<'_>) {
    let bad = Script::new([Act::Write, Act::Emit(1), Act::Fail]);
    for attempt in 1..=3 {
        let got = world.deliver_under(terms().max_attempts(3), call(1), &bad).await;
        assert_eq!(got, if attempt == 3 { Got::Dead } else { Got::NotApplied }, "attempt {attempt}");
        let counted = StoredAttempts {
            namespace: "transfers".into(),
            operation: operation(1),
            attempts: attempt,
            is_dead: attempt == 3,
        };
        assert_eq!(world.contents().await.attempts, [counted]);
    }
    for &way in Way::ALL {
        let (session, script) = (world.setup.session(terms()).await, Script::good());
        let got = deliver(&*session, way, call(1), &script).await;
        assert_eq!((got, script.runs()), (Got::Dead, 0), "a copy of a dead operation by {way:?}");
    }
    let session = world.setup.session(terms()).await;
    for is_closed in [true, false] {
        assert_eq!(session.reopen(operation(1)).await.expect("the database answers"), is_closed);
    }
    assert!(world.contents().await.attempts.is_empty(), "attempts count from 0");
    let answer = world.deliver(&Script::good()).await.fresh();
    world.assert_once(&answer).await;
}

pub(super) async fn fewer_attempts_than_were_made_close_the_operation(world: &World<'_>) {
    let bad = Script::new([Act::Write, Act::Fail]);
    for max_attempts in [9, 9, 9, 2] {
        let got = world.deliver_under(terms().max_attempts(max_attempts), call(1), &bad).await;
        assert_eq!(got, if max_attempts == 2 { Got::Dead } else { Got::NotApplied });
    }
    let script = Script::good();
    assert_eq!((world.deliver(&script).await, script.runs()), (Got::Dead, 0));
}

pub(super) async fn a_busy_operation_is_not_counted(world: &World<'_>) {
    let holder = world.setup.session(terms()).await;
    holder.begin(Snapshot::PerStatement).await.expect("the database answers");
    assert!(matches!(holder.claim(&call(1)).await, Ok(Claimed::Fresh(()))));
    let got = world.deliver_under(terms().max_attempts(1), call(1), &Script::good()).await;
    assert!(got.is_turned_away(), "behind a held claim it got {got:?}");
    holder.roll_back().await;
    assert!(world.contents().await.attempts.is_empty());
}

/// After a failover, a connection may lead to a server that takes no writes.
pub(super) async fn a_database_that_takes_no_writes_counts_nothing(world: &World<'_>) {
    let script = Script::new([Act::Execute("set transaction read only"), Act::Write]);
    let got = world.deliver_under(terms().max_attempts(1), call(1), &script).await;
    assert_eq!(got, Got::Error(ErrorKind::NotApplied));
    assert!(world.contents().await.attempts.is_empty(), "it is no failure of the handler");
    world.assert_nothing_then_fresh().await;
}
