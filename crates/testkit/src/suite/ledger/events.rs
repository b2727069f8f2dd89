//! Events, dropped futures and lost replies.

use std::future::poll_fn;
use std::task::Poll;

use hapax_core::ledger::Event;

use super::delivery::{Got, Way, World, call, deliver, operation, terms};
use super::script::{Act, Script};
use super::setup::{ConnectionCut, CutRequest};

pub(super) async fn events_are_written_with_the_row(world: &World<'_>) {
    let script = Script::new([Act::Emit(1), Act::Write, Act::Emit(2), Act::Emit(3)]);
    let answer = world.deliver(&script).await.fresh();
    let mut lens: Vec<_> = world.contents().await.events.iter().map(|row| (row.number, row.payload_len)).collect();
    lens.sort_unstable();
    assert_eq!(lens, [(0, 1), (1, 2), (2, 3)]);
    world.assert_once(&answer).await;
}

pub(super) async fn ordered_events_are_written_with_the_row(world: &World<'_>) {
    // Two of one key: a transaction does not wait for itself.
    let script = Script::new([Act::Write, Act::EmitOrdered(1), Act::Emit(2), Act::EmitOrdered(3)]);
    let answer = world.deliver(&script).await.fresh();
    let events = world.contents().await.events;
    let lens: Vec<_> = events.iter().map(|row| (row.number, row.payload_len)).collect();
    assert_eq!(lens, [(0, 1), (1, 2), (2, 3)], "in the order in which they were emitted");
    assert_eq!(script.emitted(), [0, 1, 2].map(|n| operation(1).event("transfers", n)));
    world.assert_once(&answer).await;
}

pub(super) async fn an_event_that_cannot_be_written_undoes_the_effect(world: &World<'_>) {
    world.setup.refuse_events().await;
    assert_eq!(world.deliver(&Script::good()).await, Got::NotApplied);
    let contents = world.contents().await;
    assert!(contents.effects.is_empty() && contents.rows.is_empty(), "{contents:?}");
    world.deliver(&Script::new([Act::Write])).await.fresh();
}

pub(super) async fn event_ids_stable_across_attempts(world: &World<'_>) {
    let bad = Script::new([Act::Write, Act::Emit(1), Act::Emit(1), Act::Fail]);
    assert_eq!(world.deliver(&bad).await, Got::NotApplied);
    let good = Script::new([Act::Write, Act::Emit(1), Act::Emit(1)]);
    world.deliver(&good).await.fresh();
    let expected = [0, 1].map(|n| operation(1).event("transfers", n));
    assert_eq!((bad.emitted(), good.emitted()), (expected.to_vec(), expected.to_vec()));
    assert_eq!(world.contents().await.events.len(), 2);
}

pub(super) async fn the_largest_event_is_written(world: &World<'_>) {
    let answer = world.deliver(&Script::new([Act::Write, Act::Emit(Event::MAX_LEN)])).await.fresh();
    let stored = world.contents().await.events[0].payload_len;
    assert_eq!(usize::try_from(stored), Ok(Event::MAX_LEN));
    world.assert_once(&answer).await;
}

pub(super) async fn ambiguous_commit_resolves(world: &World<'_>) {
    for (n, is_carried_out) in [(1, true), (2, false)] {
        let cut = ConnectionCut { request: CutRequest::Commit, is_carried_out };
        let session = world.setup.session_with_cut(terms(), cut).await;
        let script = Script::good();
        let mut got = deliver(&*session, world.way, call(n), &script).await;
        assert!(session.was_cut(), "{cut:?}");
        // The transaction that was cut keeps its locks until the server has ended it.
        let was_busy = got == Got::Busy;
        for _ in 0..1_000 {
            if got != Got::Busy {
                break;
            }
            got = deliver(&*session, world.way, call(n), &script).await;
        }
        if let (Got::Replayed(answer), true) = (&got, was_busy && is_carried_out) {
            got = Got::Fresh(answer.clone());
        }
        let answer = got.fresh();
        assert_eq!(script.runs(), if is_carried_out { 1 } else { 2 }, "{cut:?}");
        let copy = world.deliver_call(call(n), &Script::good()).await;
        assert_eq!(copy, Got::Replayed(answer), "{cut:?}");
    }
    assert_eq!(world.contents().await.effects.len(), 2);
}

/// Cuts the connection once at the n-th request, for every n, before and after the request is carried out.
pub(super) async fn a_cut_at_every_request(world: &World<'_>) {
    for n in 1..=100_u8 {
        let request = CutRequest::After(usize::from(n - 1) / 2);
        let cut = ConnectionCut { request, is_carried_out: n % 2 == 0 };
        let session = world.setup.session_with_cut(terms(), cut).await;
        let got = deliver(&*session, world.way, call(n), &Script::good()).await;
        if !session.was_cut() {
            println!("cut at {} points", n - 1);
            return;
        }
        drop(session);
        let copy = world.deliver_patiently(call(n)).await;
        let is_runner = Way::RUNNER.contains(&world.way);
        match got {
            Got::Fresh(answer) => assert_eq!(copy, Got::Replayed(answer), "{cut:?}"),
            Got::NotApplied | Got::Error(_) if is_runner => drop(copy.fresh()),
            Got::NotApplied | Got::Error(_) | Got::Unknown | Got::Busy => {}
            Got::Replayed(_) | Got::Mismatch | Got::Dead => panic!("after {cut:?} it got {got:?}"),
        }
        assert_eq!(world.contents().await.effects.len(), usize::from(n), "{cut:?}");
    }
    panic!("the delivery takes more than 50 requests");
}

/// Drops the delivery after it was polled n times, for every n.
pub(super) async fn drop_tx_at_every_await(world: &World<'_>) {
    for n in 1..=250_u8 {
        let session = world.setup.session(terms()).await;
        let script = Script::good();
        let mut delivery = Box::pin(deliver(&*session, world.way, call(n), &script));
        let mut polls = 0;
        let got = poll_fn(|context| match delivery.as_mut().poll(context) {
            Poll::Ready(got) => Poll::Ready(Some(got)),
            Poll::Pending if polls + 1 == n => Poll::Ready(None),
            Poll::Pending => {
                polls += 1;
                Poll::Pending
            }
        });
        let got = got.await;
        drop(delivery);
        drop(session);
        let copy = world.deliver_patiently(call(n)).await;
        assert!(matches!(copy, Got::Fresh(_) | Got::Replayed(_)), "after {n} polls a copy got {copy:?}");
        assert_eq!(world.contents().await.effects.len(), usize::from(n), "after {n} polls");
        if let Some(got) = got {
            assert_eq!(copy, Got::Replayed(got.fresh()));
            println!("dropped after each of {} polls", n - 1);
            return;
        }
    }
    panic!("the delivery takes more than 250 polls");
}
