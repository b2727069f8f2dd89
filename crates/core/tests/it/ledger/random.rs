//! Batches under random failures of handlers and of the database.

use std::collections::HashMap;

use hapax_core::gate::Failure;
use hapax_core::ledger::{FaultKind, HandlerFailure};
use proptest::prelude::*;

use super::memory::{End, Handled, Memory, Ran, World, drive};
use super::*;

/// What becomes of the operation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Applied,
    Fails,
    FailsByName,
    Rejected,
    Locked,
    Dead,
    RowExists,
    OtherRowExists,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Applied),
        1 => Just(Fate::Fails),
        1 => Just(Fate::FailsByName),
        1 => Just(Fate::Rejected),
        1 => Just(Fate::Locked),
        1 => Just(Fate::Dead),
        1 => Just(Fate::RowExists),
        1 => Just(Fate::OtherRowExists),
    ]
}

fn end() -> impl Strategy<Value = End> {
    let kind = prop_oneof![
        3 => Just(FaultKind::Conflict),
        3 => Just(FaultKind::Unavailable),
        1 => Just(FaultKind::TooLarge),
        1 => Just(FaultKind::Failed),
        1 => Just(FaultKind::Unusable),
    ];
    prop_oneof![
        6 => Just(End::Committed),
        2 => kind.clone().prop_map(End::Failed),
        1 => kind.prop_map(End::NotBegun),
        2 => any::<bool>().prop_map(|is_committed| End::Lost { is_committed }),
    ]
}

/// An operation out of 12, so that copies occur, and an ordering key out of 3, or none.
fn calls() -> impl Strategy<Value = Vec<(u16, Option<&'static str>)>> {
    prop::collection::vec((0..12u16, prop::option::of(prop::sample::select(vec!["a", "b", "c"]))), 0..24)
}

struct Random {
    fates: Vec<Fate>,
    operations: Vec<u16>,
    ends: Vec<End>,
}

impl World for Random {
    fn handle(&mut self, calls: &[usize]) -> Handled {
        let fate = |call: &usize| self.fates[usize::from(self.operations[*call])];
        let named = |place| HandlerFailure::of(place, "it cannot be run".into());
        match calls.iter().map(fate).enumerate().find(|(_, fate)| *fate != Fate::Applied) {
            Some((place, Fate::FailsByName)) => Err(named(place)),
            Some((place, Fate::Rejected)) => Err(HandlerFailure::of(place, Failure::finally("no".into()))),
            Some((_, Fate::Fails)) => Err("one of them cannot be run".into()),
            Some((_, fate)) => panic!("an operation runs although it is {fate:?}"),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> End {
        self.ends.pop().unwrap_or(End::Committed)
    }
}

fn memory_for(fates: &[Fate]) -> Memory {
    let mut memory = Memory::default();
    for (n, fate) in (0..).zip(fates) {
        match fate {
            Fate::Locked => drop(memory.locked.insert(operation(n))),
            Fate::Dead => drop(memory.dead.insert(operation(n))),
            Fate::RowExists => drop(memory.rows.insert(operation(n), row("before", None))),
            Fate::OtherRowExists => {
                memory.rows.insert(operation(n), Row { fingerprint: OTHER_PAYLOAD, ..row("before", None) });
            }
            Fate::Applied | Fate::Fails | Fate::FailsByName | Fate::Rejected => {}
        }
    }
    memory
}

/// Whether later calls of the ordering key may run.
fn is_decided(word: &str) -> bool {
    matches!(word, "fresh" | "replayed" | "mismatch" | "dead")
}

fn check(calls: &[(u16, Option<&str>)], memory: &Memory, ran: &Ran) {
    let words = ran.words();
    assert_eq!(words.len(), calls.len(), "every call has one result");
    let mut answers: HashMap<u16, &str> = HashMap::new();
    for (n, (call, word)) in calls.iter().zip(&words).enumerate() {
        let row = memory.rows.get(&operation(call.0));
        match *word {
            "fresh" | "replayed" => {
                let answer = &ran.results[n].as_ref().unwrap().answer;
                assert_eq!(row.expect("an answer has its row").answer, answer.as_bytes(), "call {n}");
                assert_eq!(answers.entry(call.0).or_insert(answer), answer, "copies get one answer");
            }
            "mismatch" => assert_eq!(row.unwrap().fingerprint, OTHER_PAYLOAD),
            // A later copy may have run, but not this call.
            "not_applied" | "store_error" | "dead" => {
                let own = Bytes::from(format!("answer {n}"));
                assert!(row.is_none_or(|row| row.answer != own), "call {n} is {word}, and has a row");
            }
            "busy" | "unknown" => {}
            other => panic!("{other} is no result of a ledger"),
        }
        let is_behind = |earlier: usize| call.1.is_some() && calls[earlier].1 == call.1;
        let has_run = |n: usize| {
            let row = memory.rows.get(&operation(calls[n].0));
            row.is_some_and(|row| row.answer == format!("answer {n}").as_bytes())
        };
        // Calls with an unknown outcome may have run together.
        let is_undecided = |earlier: usize| !is_decided(words[earlier]) && !has_run(earlier);
        if let Some(earlier) = (0..n).find(|&earlier| is_behind(earlier) && is_undecided(earlier)) {
            assert!(!has_run(n), "call {n} overtook call {earlier} of its key");
        }
    }
    for calls in &ran.handled {
        assert!(calls.is_sorted(), "a handler gets its calls in their order");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn every_call_gets_one_result_and_its_key_keeps_its_order(
        calls in calls(),
        fates in prop::collection::vec(fate(), 12),
        ends in prop::collection::vec(end(), 0..16),
        max_attempts in prop::option::of(1..3u32),
        reads_first: bool,
    ) {
        let mut memory = Memory { reads_first, ..memory_for(&fates) };
        let work = calls.iter().map(|(n, key)| Work {
            call: call(*n),
            ordering_key: key.map(|key| Bytes::from_static(key.as_bytes())),
            is_redelivered: reads_first,
        });
        let terms = max_attempts.map_or(terms(), |max| terms().max_attempts(max));
        let operations = calls.iter().map(|(n, _)| *n).collect();
        let mut world = Random { fates, operations, ends };
        let ran = drive(&mut memory, terms, work.collect(), &mut world);
        check(&calls, &memory, &ran);
    }
}
