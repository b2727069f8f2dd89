//! Which transactions a batch runs, and what is split, counted and run again.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::FutureExt;
use hapax_core::ErrorKind;
use hapax_core::gate::{Failure, Reason};
use hapax_core::ledger::{Batch, Entry, FaultKind, FoundRow, HandlerFailure, RecentCopies, Step, attempt};

use super::memory::{End, Handled, Memory, MemoryFault, Plain, Ran, World, drive};
use super::*;

/// Runs 256 calls, of which these always fail.
fn run_with_poison(poison: &[usize], is_named: bool) -> (Memory, Ran) {
    let mut memory = Memory::default();
    let poison: HashSet<usize> = poison.iter().copied().collect();
    let mut handler = |calls: &[usize]| match calls.iter().position(|call| poison.contains(call)) {
        Some(place) if is_named => Err(HandlerFailure::of(place, "it cannot be run".into())),
        Some(_) => Err("one of them cannot be run".into()),
        None => Ok(()),
    };
    let ran = drive(&mut memory, terms().max_attempts(8), (0..256).map(work).collect(), &mut handler);
    for (n, result) in ran.words().into_iter().enumerate() {
        assert_eq!(result, if poison.contains(&n) { "not_applied" } else { "fresh" }, "call {n}");
    }
    assert_eq!(memory.rows.len(), 256 - poison.len());
    let counted: HashSet<OperationId> = poison.iter().map(|&n| operation(u16::try_from(n).unwrap())).collect();
    assert_eq!(memory.attempts.keys().copied().collect::<HashSet<_>>(), counted, "no neighbour is counted");
    assert!(memory.attempts.values().all(|&attempts| attempts == 1), "each failure is counted once");
    (memory, ran)
}

#[test]
fn a_batch_without_failure_is_one_transaction() {
    let (_, ran) = run_with_poison(&[], false);
    assert_eq!((ran.transactions, ran.handler_calls(), ran.pauses), (1, 256, 0));
}

#[test]
fn one_poison_in_256_takes_17_transactions() {
    for poison in [0, 77, 255] {
        let (_, ran) = run_with_poison(&[poison], false);
        assert_eq!((ran.transactions, ran.handler_calls(), ran.pauses), (17, 766, 0));
    }
}

#[test]
fn sixteen_poisons_in_256_take_at_most_159_transactions() {
    // Every poison in a sixteenth of its own: the worst case.
    let spread: Vec<usize> = (0..16).map(|n| 16 * n + 5).collect();
    let (_, ran) = run_with_poison(&spread, false);
    assert_eq!(ran.transactions, 31 + 16 * 8);
    // Beside each other: the best case.
    let together: Vec<usize> = (16..32).collect();
    let (_, ran) = run_with_poison(&together, false);
    assert_eq!(ran.transactions, 9 + 30);
}

#[test]
fn a_named_poison_in_256_takes_4_transactions() {
    for (poison, transactions) in [(0, 3), (77, 4), (255, 3)] {
        let (_, ran) = run_with_poison(&[poison], true);
        assert_eq!((ran.transactions, ran.handler_calls()), (transactions, 512));
    }
    let (_, ran) = run_with_poison(&[3, 100, 200], true);
    assert_eq!(ran.transactions, 1 + 3 * 3);
}

#[test]
fn an_answer_too_few_fails_the_batch() {
    let memory = Memory::default();
    let mut batch = Batch::<String>::new(terms(), vec![work(1), work(2)]);
    let Step::Transaction(slice) = batch.step() else { panic!("the calls are new") };
    let mut open = memory.open();
    let handler = Plain(|_: &mut [Entry]| Ok(vec![String::from("one answer")]));
    let attempted = attempt(&batch, &slice, &mut open, handler).now_or_never().unwrap();
    assert!(!attempted.is_ready());
}

#[test]
fn a_batch_that_is_too_large_is_split_without_counting() {
    let mut memory = Memory { room: Some(64), ..Memory::default() };
    let mut handler = |_: &[usize]| Ok(());
    let ran = drive(&mut memory, terms().max_attempts(8), (0..256).map(work).collect(), &mut handler);
    assert_eq!((ran.transactions, ran.handled.len(), ran.pauses), (7, 4, 0));
    assert!(ran.words().iter().all(|word| *word == "fresh") && memory.attempts.is_empty());
}

#[test]
fn one_call_that_is_too_large_is_not_applied_and_not_counted() {
    let mut memory = Memory { room: Some(0), ..Memory::default() };
    let mut handler = |_: &[usize]| Ok(());
    let ran = drive(&mut memory, terms().max_attempts(8), vec![work(1), work(2)], &mut handler);
    assert_eq!(ran.words(), ["not_applied", "not_applied"]);
    assert!(memory.attempts.is_empty() && ran.handled.is_empty());
}

/// The ends of the first transactions; the later ones commit.
struct Ends(Vec<End>);

impl World for Ends {
    fn handle(&mut self, _calls: &[usize]) -> Handled {
        Ok(())
    }

    fn end(&mut self) -> End {
        if self.0.is_empty() { End::Committed } else { self.0.remove(0) }
    }
}

const WITHOUT_EFFECT: [End; 4] = [
    End::Failed(FaultKind::Conflict),
    End::Failed(FaultKind::Unavailable),
    End::NotBegun(FaultKind::Conflict),
    End::NotBegun(FaultKind::Unavailable),
];

#[test]
fn a_conflict_neither_splits_nor_counts() {
    for end in WITHOUT_EFFECT {
        let mut memory = Memory::default();
        let ran = drive(&mut memory, terms().max_attempts(1), (0..8).map(work).collect(), &mut Ends(vec![end; 7]));
        assert_eq!((ran.transactions, ran.pauses), (8, 7), "{end:?}");
        assert!(ran.words().iter().all(|word| *word == "fresh"), "{end:?}");
        let all: Vec<usize> = (0..8).collect();
        assert!(ran.handled.iter().all(|calls| *calls == all) && ran.counted.is_empty(), "{end:?}");
    }
}

#[test]
fn a_database_that_never_lets_the_transaction_end_is_reported() {
    for end in WITHOUT_EFFECT {
        let mut memory = Memory::default();
        let ran = drive(&mut memory, terms().max_attempts(1), vec![work(1), work(2)], &mut Ends(vec![end; 8]));
        let is_conflict = matches!(end, End::Failed(FaultKind::Conflict) | End::NotBegun(FaultKind::Conflict));
        let word = if is_conflict { "not_applied" } else { "store_error" };
        assert_eq!((ran.words(), ran.transactions), (vec![word; 2], 8), "{end:?}");
        assert!(memory.attempts.is_empty() && memory.rows.is_empty(), "{end:?}");
    }
}

#[test]
fn missing_tables_are_reported_as_unusable_and_not_tried_again() {
    for end in [End::NotBegun(FaultKind::Unusable), End::Failed(FaultKind::Unusable)] {
        let mut memory = Memory::default();
        let ran = drive(&mut memory, terms().max_attempts(1), vec![work(1), work(2)], &mut Ends(vec![end; 2]));
        let reasons: Vec<Reason> = ran.results.iter().map(|result| result.as_ref().unwrap_err().reason).collect();
        assert_eq!(reasons, [Reason::Store(ErrorKind::Unusable); 2], "{end:?}");
        assert_eq!((ran.transactions, ran.counted.len()), (1, 0), "{end:?}");
    }
}

#[test]
fn a_handler_that_passes_a_conflict_on_is_run_again_and_not_counted() {
    let mut memory = Memory::default();
    let mut runs = 0;
    let mut handler = |_: &[usize]| {
        runs += 1;
        let conflict = Failure::not_applied(MemoryFault(FaultKind::Conflict));
        if runs < 4 { Err(HandlerFailure::of(0, conflict)) } else { Ok(()) }
    };
    let ran = drive(&mut memory, terms().max_attempts(1), vec![work(1), work(2)], &mut handler);
    assert_eq!((ran.words(), ran.transactions, ran.pauses), (vec!["fresh", "fresh"], 4, 3));
    assert!(ran.counted.is_empty());
}

#[test]
fn the_row_of_a_commit_without_a_reply_counts_as_fresh() {
    let mut memory = Memory::default();
    let ran = drive(&mut memory, terms(), vec![work(1), work(2)], &mut Ends(vec![End::Lost { is_committed: true }]));
    assert_eq!((ran.words(), ran.transactions, ran.handled.len()), (vec!["fresh", "fresh"], 2, 1));
}

#[test]
fn a_lost_commit_that_did_not_happen_is_run_again() {
    let mut memory = Memory::default();
    let ran = drive(&mut memory, terms(), vec![work(1), work(2)], &mut Ends(vec![End::Lost { is_committed: false }]));
    assert_eq!((ran.words(), ran.transactions, ran.handled.len()), (vec!["fresh", "fresh"], 2, 2));
}

#[test]
fn the_row_of_somebody_else_after_a_lost_commit_is_a_replay() {
    let mut memory = Memory::default();
    memory.rows.insert(operation(2), row("theirs", Some(1_000)));
    let ends = vec![End::Lost { is_committed: true }];
    let ran = drive(&mut memory, terms(), vec![work(1), work(2)], &mut Ends(ends));
    assert_eq!(ran.words(), ["fresh", "replayed"]);
}

#[test]
fn a_commit_whose_replies_are_all_lost_is_unknown() {
    let mut memory = Memory::default();
    let ends = vec![End::Lost { is_committed: false }; 8];
    let ran = drive(&mut memory, terms().max_attempts(1), vec![work(1)], &mut Ends(ends));
    assert_eq!((ran.words(), ran.counted.len()), (vec!["unknown"], 0));
}

#[test]
fn a_lost_commit_stays_unknown_while_the_database_is_away() {
    for end in [End::NotBegun(FaultKind::Unavailable), End::NotBegun(FaultKind::Conflict)] {
        for is_committed in [false, true] {
            let mut memory = Memory::default();
            let ends = [vec![End::Lost { is_committed }], vec![end; 7]].concat();
            let ran = drive(&mut memory, terms(), vec![work(1), work(2)], &mut Ends(ends));
            assert_eq!(ran.words(), ["unknown", "unknown"], "{end:?}, committed: {is_committed}");
        }
    }
    let mut memory = Memory::default();
    let ends = vec![End::Lost { is_committed: true }, End::NotBegun(FaultKind::Unusable)];
    assert_eq!(drive(&mut memory, terms(), vec![work(1)], &mut Ends(ends)).words(), ["unknown"]);
}

#[test]
fn a_claim_after_a_lost_commit_shows_that_it_did_not_happen() {
    let mut memory = Memory::default();
    let ends = [vec![End::Lost { is_committed: false }], vec![End::Failed(FaultKind::Conflict); 7]].concat();
    let ran = drive(&mut memory, terms(), vec![work(1)], &mut Ends(ends));
    assert_eq!(ran.words(), ["not_applied"]);
}

#[test]
fn the_last_counted_failure_closes_the_operation() {
    let mut memory = Memory::default();
    let mut handler = |_: &[usize]| Err("it cannot be run".into());
    for attempt in 1..=3 {
        let ran = drive(&mut memory, terms().max_attempts(3), vec![work(1)], &mut handler);
        assert_eq!(ran.words(), [if attempt == 3 { "dead" } else { "not_applied" }]);
    }
}

#[test]
fn a_failure_that_cannot_be_counted_is_reported_as_a_fault_of_the_database() {
    for (kind, word) in [(FaultKind::Unavailable, "not_applied"), (FaultKind::Unusable, "store_error")] {
        let mut memory = Memory { uncounted: Some(kind), ..Memory::default() };
        let mut handler = |_: &[usize]| Err("it cannot be run".into());
        let ran = drive(&mut memory, terms().max_attempts(1), vec![work(1)], &mut handler);
        assert_eq!((ran.words(), ran.counted.len()), (vec![word], 0), "{kind:?}");
        let refused = ran.results[0].as_ref().unwrap_err();
        assert_eq!(std::error::Error::source(refused).unwrap().to_string(), "it cannot be run");
    }
}

#[test]
fn a_handler_that_lacks_a_table_or_a_right_is_not_tried_again_and_not_counted() {
    let mut memory = Memory::default();
    let mut handler = |_: &[usize]| {
        let missing = Failure::not_applied(MemoryFault(FaultKind::Unusable));
        Err(HandlerFailure::of(0, missing))
    };
    let ran = drive(&mut memory, terms().max_attempts(1), vec![work(1), work(2)], &mut handler);
    let reasons: Vec<Reason> = ran.results.iter().map(|result| result.as_ref().unwrap_err().reason).collect();
    assert_eq!(reasons, [Reason::Store(ErrorKind::Unusable); 2]);
    assert_eq!((ran.transactions, ran.counted.len()), (1, 0));
}

#[test]
fn the_error_of_a_failed_handler_reaches_its_caller() {
    let mut memory = Memory::default();
    let mut handler = |_: &[usize]| Err("there is no account 7".into());
    for terms in [terms(), terms().max_attempts(3)] {
        let ran = drive(&mut memory, terms, vec![work(1)], &mut handler);
        let refused = ran.results[0].as_ref().unwrap_err();
        let shown = std::error::Error::source(refused).unwrap().to_string();
        assert_eq!(shown, "there is no account 7");
    }
}

#[test]
fn a_final_answer_of_one_call_is_recorded_as_rejected() {
    for is_named in [false, true] {
        let mut memory = Memory::default();
        let mut handler = |calls: &[usize]| match calls.iter().position(|&call| call == 1) {
            Some(place) if is_named => Err(HandlerFailure::of(place, Failure::finally("no".into()))),
            Some(_) => Err(HandlerFailure::of_any(Failure::finally("no".into()))),
            None => Ok(()),
        };
        let ran = drive(&mut memory, terms().max_attempts(1), (0..4).map(work).collect(), &mut handler);
        assert_eq!((ran.words(), ran.counted.len()), (vec!["fresh"; 4], 0));
        assert_eq!(ran.results[1].as_ref().unwrap().answer, "no");
        let verdicts: Vec<LedgerVerdict> = (0..4).map(|n| memory.rows[&operation(n)].verdict).collect();
        assert_eq!(
            verdicts,
            [LedgerVerdict::Applied, LedgerVerdict::Rejected, LedgerVerdict::Applied, LedgerVerdict::Applied]
        );
    }
}

#[test]
fn answers_belong_to_their_calls_also_if_the_handler_sorts_its_entries() {
    let memory = Memory::default();
    let mut batch = Batch::<String>::new(terms(), vec![work(2), work(1)]);
    let Step::Transaction(slice) = batch.step() else { panic!("the calls are new") };
    let mut open = memory.open();
    let handler = Plain(|entries: &mut [Entry]| {
        entries.sort_by_key(Entry::operation);
        Ok(entries.iter().map(|entry| entry.operation().to_string()).collect())
    });
    let attempted = attempt(&batch, &slice, &mut open, handler).now_or_never().unwrap();
    batch.ended(slice, attempted, Ok(()), 0);
    let answers: Vec<String> = batch.into_results().into_iter().map(|result| result.unwrap().answer).collect();
    assert_eq!(answers, [operation(2).to_string(), operation(1).to_string()]);
}

#[test]
fn a_sorted_entry_that_failed_is_the_one_that_is_run_alone() {
    let memory = Memory::default();
    let mut batch = Batch::<String>::new(terms(), vec![work(3), work(2), work(1)]);
    let Step::Transaction(slice) = batch.step() else { panic!("the calls are new") };
    let mut open = memory.open();
    let handler = Plain(|entries: &mut [Entry]| {
        entries.sort_by_key(Entry::operation);
        Err(HandlerFailure::of(0, "the smallest operation cannot be run".into()))
    });
    let attempted = attempt(&batch, &slice, &mut open, handler).now_or_never().unwrap();
    batch.ended(slice, attempted, Ok(()), 0);
    let mut slices = Vec::new();
    while let Step::Transaction(slice) = batch.step() {
        let mut open = memory.open();
        let handler = Plain(|entries: &mut [Entry]| {
            slices.push(entries.iter().map(Entry::index).collect::<Vec<_>>());
            Ok(entries.iter().map(|_| String::new()).collect())
        });
        let attempted = attempt(&batch, &slice, &mut open, handler).now_or_never().unwrap();
        batch.ended(slice, attempted, Ok(()), 0);
    }
    assert_eq!(slices, [vec![0, 1], vec![2]]);
}

#[test]
fn redelivered_calls_are_read_before_a_transaction_is_opened_for_the_others() {
    let mut memory = Memory { reads_first: true, ..Memory::default() };
    memory.rows.insert(operation(1), row("before", None));
    memory.rows.insert(operation(2), Row { fingerprint: OTHER_PAYLOAD, ..row("before", None) });
    let redelivered = |n| Work { is_redelivered: true, ..work(n) };
    let copies = vec![redelivered(1), redelivered(2)];
    let ran = drive(&mut memory, terms(), copies, &mut |_: &[usize]| panic!("nothing is new"));
    assert_eq!((ran.words(), ran.reads, ran.transactions), (vec!["replayed", "mismatch"], 1, 0));
    let ran = drive(&mut memory, terms(), vec![work(1), redelivered(3)], &mut |_: &[usize]| Ok(()));
    assert_eq!((ran.words(), ran.reads, ran.transactions), (vec!["replayed", "fresh"], 1, 1));
    assert_eq!(ran.handled, [[1]]);
}

/// A worker that counts up to more failures may run it at this moment, and commit it.
#[test]
fn a_redelivered_call_of_a_dead_operation_is_busy_while_another_transaction_runs_it() {
    let mut memory = Memory { reads_first: true, dead: [operation(1), operation(2)].into(), ..Memory::default() };
    memory.locked.insert(operation(1));
    let redelivered = |n| Work { is_redelivered: true, ..work(n) };
    let calls = vec![redelivered(1), redelivered(2)];
    let ran = drive(&mut memory, terms(), calls, &mut |_: &[usize]| panic!("nothing is new"));
    assert_eq!((ran.words(), ran.reads, ran.transactions), (vec!["busy", "dead"], 1, 1));
}

#[test]
fn calls_are_read_first_after_a_lost_commit() {
    let mut memory = Memory { reads_first: true, ..Memory::default() };
    let ran = drive(&mut memory, terms(), vec![work(1), work(2)], &mut Ends(vec![End::Lost { is_committed: true }]));
    assert_eq!((ran.words(), ran.reads, ran.transactions), (vec!["fresh", "fresh"], 1, 1));
}

#[test]
fn a_batch_after_one_of_copies_is_read_first() {
    let copies = Arc::new(RecentCopies::default());
    for is_likely in [false, true] {
        let mut batch = Batch::<String>::new(terms(), (0..40).map(work).collect()).with_copies(&copies);
        let Step::Transaction(slice) = batch.step() else { panic!("the calls are new") };
        assert_eq!(batch.is_copy_likely(&slice), is_likely);
        batch.found(slice, Ok(vec![FoundRow::Row(row("before", None)); 40]), 0);
        assert!(matches!(batch.step(), Step::Done));
    }
}

/// Runs a batch of 256 calls in a transaction that nobody commits. Returns whether rows were looked for before it.
fn is_read_first(memory: &Memory, copies: &Arc<RecentCopies>) -> bool {
    let mut batch = Batch::<String>::new(terms(), (0..256).map(work).collect()).with_copies(copies);
    let Step::Transaction(mut slice) = batch.step() else { panic!("no call has its result") };
    let is_read_first = batch.is_copy_likely(&slice);
    if is_read_first {
        let found = batch.operations(&slice).into_iter().map(|operation| memory.open().find(operation)).collect();
        batch.found(slice, Ok(found), 0);
        let Step::Transaction(left) = batch.step() else { panic!("some calls are new") };
        slice = left;
    }
    let mut open = memory.open();
    let handler = Plain(|entries: &mut [Entry]| Ok(entries.iter().map(|_| String::new()).collect()));
    let attempted = attempt(&batch, &slice, &mut open, handler).now_or_never().unwrap();
    batch.ended(slice, attempted, Ok(()), 0);
    is_read_first
}

#[test]
fn batches_with_some_copies_are_read_first_for_as_long_as_they_have_some() {
    let (mut memory, copies) = (Memory::default(), Arc::default());
    memory.rows.extend((0..26).map(|n| (operation(n), row("before", None))));
    let are_read_first: Vec<bool> = (0..8).map(|_| is_read_first(&memory, &copies)).collect();
    assert_eq!(are_read_first, [false, true, true, true, true, true, true, true]);
    memory.rows.clear();
    assert_eq!([is_read_first(&memory, &copies), is_read_first(&memory, &copies)], [true, false]);
}
