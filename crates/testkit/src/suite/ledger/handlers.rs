//! What handlers do that fail, or that meddle with their transaction.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

use super::delivery::{Got, Way, World, call, deliver, terms};
use super::script::{Act, Script};

const BROKEN: &str = "insert into taken values (1)";

pub(super) async fn swallowed_error_is_not_commit(world: &World<'_>) {
    let script = Script::new([Act::Write, Act::Ignore(BROKEN), Act::Emit(1)]);
    let got = world.deliver(&script).await;
    // A database may undo the statement alone, or refuse the transaction.
    assert!(matches!(got, Got::Fresh(_) | Got::NotApplied), "it got {got:?}");
    world.assert_once_after_a_copy(&got).await;
}

pub(super) async fn partial_writes_undone_on_not_applied(world: &World<'_>) {
    for acts in [vec![Act::Write, Act::Fail], vec![Act::Write, Act::Emit(1), Act::Write, Act::Fail]] {
        assert_eq!(world.deliver(&Script::new(acts)).await, Got::NotApplied);
        assert!(world.contents().await.effects.is_empty());
    }
    world.assert_nothing_then_fresh().await;
}

pub(super) async fn other_unique_violation_is_an_error(world: &World<'_>) {
    let script = Script::new([Act::Write, Act::Emit(1), Act::Execute(BROKEN)]);
    assert_eq!(world.deliver(&script).await, Got::NotApplied);
    assert_eq!(script.runs(), 1, "the violation is no conflict with a twin");
    world.assert_nothing_then_fresh().await;
}

pub(super) async fn final_answer_keeps_no_effect(world: &World<'_>) {
    let script = Script::new([Act::Write, Act::Emit(1), Act::Final]);
    assert_eq!(world.deliver(&script).await, Got::Fresh("no".into()));
    for &way in Way::ALL {
        let (session, script) = (world.setup.session(terms()).await, Script::good());
        let got = deliver(&*session, way, call(1), &script).await;
        assert_eq!((got, script.runs()), (Got::Replayed("no".into()), 0), "a copy by {way:?}");
    }
    let contents = world.contents().await;
    assert_eq!(contents.rows.iter().map(|row| row.verdict).collect::<Vec<_>>(), [Some(2)]);
    assert!(contents.effects.is_empty() && contents.events.is_empty(), "{contents:?}");
}

pub(super) async fn a_panic_leaves_nothing(world: &World<'_>) {
    let script = Script::new([Act::Write, Act::Emit(1), Act::Panic]);
    let panicked = AssertUnwindSafe(world.deliver(&script)).catch_unwind().await;
    panicked.expect_err("the panic reaches the caller");
    assert!(world.contents().await.rows.is_empty());
    // A driver may roll back in the background.
    world.deliver_patiently(call(1)).await.fresh();
    assert_eq!(world.contents().await.effects.len(), 1);
}

pub(super) async fn a_handler_that_commits(world: &World<'_>) {
    meddle(world, "commit").await;
}

pub(super) async fn a_handler_that_rolls_back(world: &World<'_>) {
    meddle(world, "rollback").await;
}

pub(super) async fn a_handler_that_rolls_back_and_begins(world: &World<'_>) {
    let script = Script::new([Act::Write, Act::Emit(1), Act::Ignore("rollback"), Act::Ignore("begin")]);
    let got = world.deliver(&script).await;
    world.assert_once_after_a_copy(&got).await;
}

pub(super) async fn a_handler_that_resets(world: &World<'_>) {
    for (n, &reset) in (10..).zip(world.setup.resets()) {
        let script = Script::new([Act::Ignore(reset), Act::Write, Act::Emit(1)]);
        let got = world.deliver_call(call(n), &script).await;
        let copy = world.deliver_call(call(n), &Script::good()).await;
        if let Got::Fresh(answer) = got {
            assert_eq!(copy, Got::Replayed(answer), "after {reset:?}");
        } else {
            copy.fresh();
        }
        let failing = Script::new([Act::Ignore(reset), Act::Write, Act::Fail]);
        assert_eq!(world.deliver_call(call(100 + n), &failing).await, Got::NotApplied, "after {reset:?}");
        assert_eq!(world.contents().await.effects.len(), usize::from(n) - 9, "after {reset:?}");
    }
}

/// Carries a statement out after the effect and its events, and lets the handler go on.
async fn meddle(world: &World<'_>, statement: &'static str) {
    let script = Script::new([Act::Write, Act::Emit(1), Act::Ignore(statement)]);
    let got = world.deliver(&script).await;
    world.assert_once_after_a_copy(&got).await;
}
