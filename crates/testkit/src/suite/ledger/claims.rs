//! Twins, copies, payloads and namespaces.

use std::cell::RefCell;
use std::rc::Rc;

use futures_util::FutureExt;
use hapax_core::ErrorKind;
use hapax_core::ledger::{Call, Claimed, Terms};

use super::delivery::{Got, OTHER_PAYLOAD, Way, World, call, deliver, operation, terms};
use super::script::{Act, Script};
use super::setup::Snapshot;

pub(super) async fn ledger_blocks_twin_until_commit(world: &World<'_>) {
    let twin = Rc::new(world.setup.session(terms()).await);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let way = world.way;
    let script = Script::new([Act::Write, Act::Meanwhile, Act::Emit(1)]).meanwhile({
        let seen = Rc::clone(&seen);
        move || {
            let (twin, seen) = (Rc::clone(&twin), Rc::clone(&seen));
            async move {
                let script = Script::good();
                let got = deliver(&**twin, way, call(1), &script).await;
                seen.borrow_mut().push((got, script.runs()));
            }
            .boxed_local()
        }
    });
    let answer = world.deliver(&script).await.fresh();
    for (got, runs) in &*seen.borrow() {
        assert!(got.is_turned_away() && *runs == 0, "while it runs, its twin got {got:?} and ran {runs} times");
    }
    assert_eq!(seen.borrow().len(), 1, "the handler ran once");
    world.assert_once(&answer).await;
}

pub(super) async fn ledger_twin_replays(world: &World<'_>) {
    let answer = world.deliver(&Script::good()).await.fresh();
    world.assert_once(&answer).await;
}

pub(super) async fn ledger_rollback_lets_twin_run(world: &World<'_>) {
    let script = Script::new([Act::Write, Act::Emit(1), Act::Fail]);
    assert_eq!((world.deliver(&script).await, script.runs()), (Got::NotApplied, 1));
    world.assert_nothing_then_fresh().await;
}

pub(super) async fn ledger_mismatch(world: &World<'_>) {
    let answer = world.deliver(&Script::good()).await.fresh();
    let other = Call::new(operation(1)).fingerprint(OTHER_PAYLOAD);
    let script = Script::good();
    assert_eq!((world.deliver_call(other, &script).await, script.runs()), (Got::Mismatch, 0));
    let older = other.or_older(call(1).newest_fingerprint());
    assert_eq!(world.deliver_call(older, &script).await, Got::Replayed(answer.clone()));
    world.assert_once(&answer).await;
}

pub(super) async fn rule_0_is_not_compared(world: &World<'_>) {
    let (compared, uncompared) = (call(1), Call::new(operation(1)));
    for (n, first, second) in [(1, compared, uncompared), (2, Call::new(operation(2)), call(2))] {
        let answer = world.deliver_call(first, &Script::good()).await.fresh();
        let copy = world.deliver_call(second, &Script::good()).await;
        assert_eq!(copy, Got::Replayed(answer), "operation {n}");
    }
    assert_eq!(world.contents().await.effects.len(), 2);
}

pub(super) async fn ledger_lock_timeout_busy(world: &World<'_>) {
    let holder = world.setup.session(terms()).await;
    holder.begin(Snapshot::PerStatement).await.expect("the database answers");
    assert!(matches!(holder.claim(&call(1)).await, Ok(Claimed::Fresh(()))));
    let script = Script::good();
    let got = world.deliver(&script).await;
    assert!(got.is_turned_away() && script.runs() == 0, "behind a held claim it got {got:?}");
    holder.roll_back().await;
    world.assert_nothing_then_fresh().await;
}

pub(super) async fn namespaces_do_not_meet(world: &World<'_>) {
    let answer = world.deliver(&Script::good()).await.fresh();
    let script = Script::new([Act::Write, Act::Emit(1), Act::Emit(2)]);
    let refunds = Terms::new("refunds").expect("the namespace is allowed");
    world.deliver_under(refunds, call(1), &script).await.fresh();
    let contents = world.contents().await;
    assert_eq!((contents.effects.len(), contents.rows.len(), contents.events.len()), (2, 2, 3));
    let copy = world.deliver(&Script::good()).await;
    assert_eq!(copy, Got::Replayed(answer));
}

pub(super) async fn an_unfinished_claim_cannot_commit(world: &World<'_>) {
    let session = world.setup.session(terms()).await;
    session.begin(Snapshot::PerStatement).await.expect("the database answers");
    let has_savepoint = world.way == Way::OwnSavepoint;
    if has_savepoint {
        session.execute("savepoint outer_one").await.expect("a transaction is open");
    }
    assert!(matches!(session.claim(&call(1)).await, Ok(Claimed::Fresh(()))));
    let written = Script::good().handle_own(&*session, "transfers", operation(1)).await;
    written.expect("the effect is written");
    if has_savepoint {
        session.execute("release savepoint outer_one").await.expect("the savepoint is there");
    }
    session.commit().await.expect_err("an open row cannot commit");
    world.assert_nothing_then_fresh().await;
}

pub(super) async fn finish_after_its_claim_was_rolled_back_is_an_error(world: &World<'_>) {
    let session = world.setup.session(terms()).await;
    session.begin(Snapshot::PerStatement).await.expect("the database answers");
    session.execute("savepoint outer_one").await.expect("a transaction is open");
    assert!(matches!(session.claim(&call(1)).await, Ok(Claimed::Fresh(()))));
    let answer = Script::good().handle_own(&*session, "transfers", operation(1)).await;
    session.execute("rollback to savepoint outer_one").await.expect("the savepoint is there");
    let error = session.finish(operation(1), &answer.expect("the effect is written")).await;
    assert_eq!(error.expect_err("the claim is gone").kind(), ErrorKind::NotApplied);
    // A caller that goes on has written nothing.
    drop(session.commit().await);
    world.assert_nothing_then_fresh().await;
}

pub(super) async fn two_operations_share_a_transaction(world: &World<'_>) {
    let session = world.setup.session(terms()).await;
    session.begin(Snapshot::PerStatement).await.expect("the database answers");
    for n in [1, 2] {
        if world.way == Way::OwnSavepoint {
            session.execute("savepoint outer_one").await.expect("a transaction is open");
        }
        assert!(matches!(session.claim(&call(n)).await, Ok(Claimed::Fresh(()))));
        let answer = Script::good().handle_own(&*session, "transfers", operation(n)).await;
        session.finish(operation(n), &answer.expect("the effect is written")).await.expect("the claim is open");
    }
    session.commit().await.expect("both are finished");
    assert_eq!(world.contents().await.rows.len(), 2);
}

pub(super) async fn the_same_operation_twice_in_a_transaction_is_an_error(world: &World<'_>) {
    let session = world.setup.session(terms()).await;
    session.begin(Snapshot::PerStatement).await.expect("the database answers");
    assert!(matches!(session.claim(&call(1)).await, Ok(Claimed::Fresh(()))));
    if world.way == Way::OwnSavepoint {
        session.execute("savepoint outer_one").await.expect("a transaction is open");
    }
    let error = session.claim(&call(1)).await.expect_err("the transaction has claimed it before");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    session.roll_back().await;
    world.assert_nothing_then_fresh().await;
}

pub(super) async fn the_same_operation_again_after_its_finish_is_an_error(world: &World<'_>) {
    let other_payload = Call::new(operation(1)).fingerprint(OTHER_PAYLOAD);
    // A transaction each: a database may let no statement follow one that failed.
    for again in [call(1), other_payload] {
        let session = world.setup.session(terms()).await;
        session.begin(Snapshot::PerStatement).await.expect("the database answers");
        assert!(matches!(session.claim(&call(1)).await, Ok(Claimed::Fresh(()))));
        let answer = Script::good().handle_own(&*session, "transfers", operation(1)).await;
        session.finish(operation(1), &answer.expect("the effect is written")).await.expect("the claim is open");
        if world.way == Way::OwnSavepoint {
            session.execute("savepoint outer_one").await.expect("a transaction is open");
        }
        let error = session.claim(&again).await.expect_err("the transaction has claimed it before");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        session.roll_back().await;
    }
    world.assert_nothing_then_fresh().await;
}

pub(super) async fn foreign_keys_off_is_refused(world: &World<'_>) {
    let session = world.setup.session_without_foreign_keys(terms()).await;
    let script = Script::good();
    let got = deliver(&*session, world.way, call(1), &script).await;
    assert!(matches!(got, Got::Error(_)) && script.runs() == 0, "without foreign keys it got {got:?}");
    world.assert_nothing_then_fresh().await;
}

pub(super) async fn repeatable_read_retries_40001(world: &World<'_>) {
    let session = world.setup.session(terms()).await;
    session.begin(Snapshot::PerTransaction).await.expect("the database answers");
    session.execute("select id from taken").await.expect("the snapshot is taken");
    let answer = world.deliver(&Script::good()).await.fresh();
    let error = session.claim(&call(1)).await.expect_err("the twin's row is newer than the snapshot");
    assert_eq!(error.kind(), ErrorKind::NotApplied);
    session.roll_back().await;
    assert_eq!(deliver(&*session, world.way, call(1), &Script::good()).await, Got::Replayed(answer.clone()));
    world.assert_once(&answer).await;
}
