//! What must hold whatever happened: no effect without its row, no row without its effect, no event without its row.

use std::collections::BTreeSet;

use super::setup::{LedgerContents, StoredEntry};

/// Asserts that everything in the database is there as a whole.
pub(super) fn assert_whole(contents: &LedgerContents) {
    let mut names = BTreeSet::new();
    for row in &contents.rows {
        assert!(!row.is_open, "an open row is committed: {row:?}");
        assert!(names.insert((row.namespace.clone(), row.operation)), "two rows for one operation: {row:?}");
        assert_row(contents, row);
    }
    for (namespace, operation) in &contents.effects {
        let is_its = |row: &&StoredEntry| row.namespace == *namespace && row.operation.to_string() == *operation;
        assert!(contents.rows.iter().any(|row| is_its(&row)), "the effect of {operation} has no row: {contents:?}");
    }
    for event in &contents.events {
        let has_row = names.contains(&(event.namespace.clone(), event.operation));
        assert!(has_row, "an event has no row: {event:?}");
    }
}

/// Asserts that a row has the effect and the events that its verdict and its answer say.
fn assert_row(contents: &LedgerContents, row: &StoredEntry) {
    let operation = row.operation.to_string();
    let is_effect = |effect: &&(String, String)| effect.0 == row.namespace && effect.1 == operation;
    let effects = contents.effects.iter().filter(is_effect).count();
    let of_row = |event: &&_| is_of(row, event);
    let mut numbers: Vec<u32> = contents.events.iter().filter(of_row).map(|event| event.number).collect();
    numbers.sort_unstable();
    let events = match row.verdict {
        Some(1) => {
            assert_eq!(effects, 1, "the effects of {row:?}");
            row.answer.split(' ').next().and_then(|events| events.parse().ok()).expect("the answer of a script")
        }
        Some(2) => {
            assert_eq!(effects, 0, "the effects of {row:?}");
            0
        }
        verdict => panic!("{verdict:?} is no verdict: {row:?}"),
    };
    assert_eq!(numbers, (0..events).collect::<Vec<u32>>(), "the events of {row:?}");
    for event in contents.events.iter().filter(of_row) {
        let id = row.operation.event(&row.namespace, event.number);
        assert_eq!(event.id, *id.as_bytes(), "the id of {event:?}");
    }
}

fn is_of(row: &StoredEntry, event: &super::setup::StoredEvent) -> bool {
    event.namespace == row.namespace && event.operation == row.operation
}
