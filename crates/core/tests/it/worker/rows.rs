//! Each row of the worker's tables has an arm in the code and a test; each arm and each test names a row.

use crate::machine::rows::{defects, rows_of_table};

#[test]
fn every_row_of_the_worker_has_an_arm_and_a_test() {
    let table = include_str!("../../../src/worker/rows.md");
    assert_eq!(rows_of_table(table).len(), 22);
    let code = include_str!("../../../src/worker/rules.rs");
    assert_eq!(defects(table, code, include_str!("actions.rs")), Vec::<String>::new());
}

#[test]
fn every_row_of_the_verdicts_has_an_arm_and_a_test() {
    let table = include_str!("../../../src/ledger/verdicts.md");
    assert_eq!(rows_of_table(table).len(), 11);
    let code = include_str!("../../../src/ledger/verdicts.rs");
    assert_eq!(defects(table, code, include_str!("verdicts.rs")), Vec::<String>::new());
}
