//! Each row of `ledger/rows.md` has an arm in the code and a test; each arm and each test names a row.

use crate::machine::rows::{defects, rows_of_table};

const TABLE: &str = include_str!("../../../src/ledger/rows.md");
const CODE: &str = include_str!("../../../src/ledger/rules.rs");
const TESTS: &str = include_str!("rules.rs");

#[test]
fn every_row_of_the_ledger_has_an_arm_and_a_test() {
    assert_eq!(rows_of_table(TABLE).len(), 31);
    assert_eq!(defects(TABLE, CODE, TESTS), Vec::<String>::new());
}
