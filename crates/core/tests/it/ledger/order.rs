//! The order of the calls of one ordering key, and copies of one operation in a batch.

use hapax_core::gate::Failure;
use hapax_core::ledger::HandlerFailure;

use super::memory::{Handled, Memory, drive};
use super::*;

/// Fails with the calls that the function names.
fn failing(is_bad: impl Fn(usize) -> bool) -> impl FnMut(&[usize]) -> Handled {
    move |calls| match calls.iter().position(|&call| is_bad(call)) {
        Some(place) => Err(HandlerFailure::of(place, "it cannot be run".into())),
        None => Ok(()),
    }
}

#[test]
fn a_call_waits_behind_a_busy_one_of_its_key() {
    let mut memory = Memory { locked: [operation(1)].into(), ..Memory::default() };
    let batch = vec![ordered(0, "a"), ordered(1, "a"), ordered(2, "a"), ordered(3, "b"), work(4)];
    let ran = drive(&mut memory, terms(), batch, &mut |_: &[usize]| Ok(()));
    assert_eq!(ran.words(), ["fresh", "busy", "busy", "fresh", "fresh"]);
    assert_eq!(ran.handled, [vec![0, 3, 4]]);
}

#[test]
fn a_call_waits_behind_a_failed_one_of_its_key() {
    for is_named in [false, true] {
        let mut memory = Memory::default();
        let batch = vec![ordered(0, "a"), ordered(1, "a"), ordered(2, "a"), ordered(3, "b"), work(4)];
        let mut handler = |calls: &[usize]| match calls.iter().position(|&call| call == 1) {
            Some(place) if is_named => Err(HandlerFailure::of(place, "it cannot be run".into())),
            Some(_) => Err("one cannot be run".into()),
            None => Ok(()),
        };
        let ran = drive(&mut memory, terms(), batch, &mut handler);
        assert_eq!(ran.words(), ["fresh", "not_applied", "busy", "fresh", "fresh"]);
        assert!(!memory.rows.contains_key(&operation(2)));
    }
}

#[test]
fn a_dead_or_mismatched_call_lets_its_key_go_on() {
    let mut memory = Memory { dead: [operation(0)].into(), ..Memory::default() };
    memory.rows.insert(operation(1), Row { fingerprint: OTHER_PAYLOAD, ..row("other", None) });
    let batch = vec![ordered(0, "a"), ordered(1, "a"), ordered(2, "a")];
    let ran = drive(&mut memory, terms(), batch, &mut |_: &[usize]| Ok(()));
    assert_eq!(ran.words(), ["dead", "mismatch", "fresh"]);
}

#[test]
fn a_call_waits_behind_one_of_its_key_whose_answer_cannot_be_read() {
    let mut memory = Memory::default();
    memory.rows.insert(operation(1), Row { answer: Bytes::from_static(&[0xff]), ..row("", None) });
    let batch = vec![ordered(0, "a"), ordered(1, "a"), ordered(2, "a"), ordered(3, "b"), work(4)];
    let ran = drive(&mut memory, terms(), batch, &mut |_: &[usize]| Ok(()));
    assert_eq!(ran.words(), ["fresh", "store_error", "busy", "fresh", "fresh"]);
    assert_eq!(ran.handled, [vec![0, 3, 4]]);
}

#[test]
fn a_call_that_dies_in_the_batch_lets_its_key_go_on() {
    let mut memory = Memory::default();
    let batch = vec![ordered(0, "a"), ordered(1, "a"), ordered(2, "a")];
    let ran = drive(&mut memory, terms().max_attempts(1), batch, &mut failing(|call| call == 1));
    assert_eq!(ran.words(), ["fresh", "dead", "fresh"]);
}

#[test]
fn a_final_answer_lets_its_key_go_on() {
    let mut memory = Memory::default();
    let mut handler = |calls: &[usize]| match calls.iter().position(|&call| call == 0) {
        Some(place) => Err(HandlerFailure::of(place, Failure::finally("no".into()))),
        None => Ok(()),
    };
    let ran = drive(&mut memory, terms(), vec![ordered(0, "a"), ordered(1, "a")], &mut handler);
    assert_eq!(ran.words(), ["fresh", "fresh"]);
    assert_eq!(ran.handled.last().unwrap(), &[1]);
}

#[test]
fn calls_without_an_ordering_key_do_not_wait() {
    let mut memory = Memory { locked: [operation(0)].into(), ..Memory::default() };
    let ran = drive(&mut memory, terms(), (0..3).map(work).collect(), &mut |_: &[usize]| Ok(()));
    assert_eq!(ran.words(), ["busy", "fresh", "fresh"]);
}

#[test]
fn copies_in_one_batch_run_once() {
    let mut memory = Memory::default();
    let other =
        Work { call: Call::new(operation(0)).fingerprint(OTHER_PAYLOAD), ordering_key: None, is_redelivered: false };
    let batch = vec![work(0), work(1), work(0), other, work(0), work(1)];
    let ran = drive(&mut memory, terms(), batch, &mut |_: &[usize]| Ok(()));
    assert_eq!(ran.words(), ["fresh", "fresh", "replayed", "mismatch", "replayed", "replayed"]);
    assert_eq!(ran.handled, [vec![0, 1]]);
    assert_eq!(ran.results[4].as_ref().unwrap().answer, "answer 0");
}

#[test]
fn a_copy_runs_if_the_first_one_failed() {
    let mut memory = Memory::default();
    let ran = drive(&mut memory, terms(), vec![work(0), work(1), work(0)], &mut failing(|call| call == 0));
    assert_eq!(ran.words(), ["not_applied", "fresh", "fresh"]);
}

#[test]
fn a_copy_with_an_ordering_key_waits_behind_its_failed_first() {
    let mut memory = Memory::default();
    let batch = vec![ordered(0, "a"), ordered(0, "a"), ordered(1, "a")];
    let ran = drive(&mut memory, terms(), batch, &mut failing(|call| call == 0));
    assert_eq!(ran.words(), ["not_applied", "busy", "busy"]);
}

#[test]
fn an_empty_batch_has_no_results() {
    let ran = drive(&mut Memory::default(), terms(), Vec::new(), &mut |_: &[usize]| Ok(()));
    assert_eq!((ran.results.len(), ran.transactions), (0, 0));
}
