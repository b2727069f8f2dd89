//! Each row of `machine/protocol.md` has an arm in the code and a test here; each arm and each test names a row.

use std::collections::BTreeSet;

const TABLE: &str = include_str!("../../../src/machine/protocol.md");
const CODE: &str = concat!(
    include_str!("../../../src/machine.rs"),
    include_str!("../../../src/machine/pin.rs"),
    include_str!("../../../src/machine/purge.rs"),
);
const TESTS: &str = concat!(
    include_str!("abandon.rs"),
    include_str!("begin.rs"),
    include_str!("bury.rs"),
    include_str!("cancel.rs"),
    include_str!("complete.rs"),
    include_str!("hold.rs"),
    include_str!("pin.rs"),
    include_str!("purge.rs"),
    include_str!("recorded_answer.rs"),
    include_str!("release.rs"),
    include_str!("renew.rs"),
    include_str!("reopen.rs"),
    include_str!("resolve.rs"),
);

/// Whether a word is the number of a row: one capital letter and digits.
fn is_row(word: &str) -> bool {
    let (letter, digits) = word.split_at(word.len().min(1));
    letter.chars().all(|c| c.is_ascii_uppercase()) && !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
}

/// The first cell of each line of a table that holds the number of a row.
pub(crate) fn rows_of_table(table: &str) -> Vec<String> {
    let first_cell = |line: &str| line.strip_prefix("| ")?.split(" |").next().map(str::to_owned);
    table.lines().filter_map(first_cell).filter(|cell| is_row(cell)).collect()
}

/// The rows in the comments at the ends of lines of code, `// B1` or `// X1, X2`.
fn rows_of_code(code: &str) -> BTreeSet<String> {
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let comments = lines.filter_map(|line| line.rsplit_once("// "));
    comments.flat_map(|(_, comment)| comment.split(", ")).filter(|word| is_row(word)).map(str::to_owned).collect()
}

/// Each test with the rows at the start of its name, `b1_` or `v3_v4_`.
fn rows_of_tests(tests: &str) -> Vec<(String, Vec<String>)> {
    let name = |test: &str| test.split_once("fn ")?.1.split_once('(').map(|(name, _)| name.to_owned());
    let names = tests.split("#[test]").skip(1).filter_map(name);
    let rows = |name: &str| name.split('_').map(str::to_uppercase).take_while(|word| is_row(word)).collect();
    names.map(|name| (name.clone(), rows(&name))).collect()
}

/// What is wrong: rows without an arm or a test, arms and tests without a row.
pub(crate) fn defects(table: &str, code: &str, tests: &str) -> Vec<String> {
    let mut defects = Vec::new();
    let rows = rows_of_table(table);
    let (arms, tests) = (rows_of_code(code), rows_of_tests(tests));
    let known: BTreeSet<_> = rows.iter().cloned().collect();
    if known.len() < rows.len() {
        defects.push("two rows have one number".to_owned());
    }
    for row in &known {
        if !arms.contains(row) {
            defects.push(format!("row {row} has no arm"));
        }
        if !tests.iter().any(|(_, rows)| rows.contains(row)) {
            defects.push(format!("row {row} has no test"));
        }
    }
    defects.extend(arms.difference(&known).map(|row| format!("an arm names row {row}, which is not in the table")));
    for (test, rows) in tests {
        if rows.is_empty() || rows.iter().any(|row| !known.contains(row)) {
            defects.push(format!("the test {test} names no row"));
        }
    }
    defects
}

#[test]
fn every_row_has_an_arm_and_a_test_and_every_test_names_a_row() {
    assert_eq!(rows_of_table(TABLE).len(), 63);
    assert_eq!(defects(TABLE, CODE, TESTS), Vec::<String>::new());
}

const MADE_UP_TABLE: &str = "| row | condition |\n|---|---|\n| B1 | absent |\n| B2 | present |\n";
const MADE_UP_CODE: &str = "/// Row B9.\nNone => first(), // B1\nSome(_) => second(), // B2\n";
const MADE_UP_TESTS: &str = "#[test]\nfn b1_b2_both() {}\nfn helper() {}\n";

#[test]
fn a_complete_made_up_table_has_no_defect() {
    assert_eq!(defects(MADE_UP_TABLE, MADE_UP_CODE, MADE_UP_TESTS), Vec::<String>::new());
}

#[test]
fn each_defect_of_a_made_up_table_is_found() {
    let found = |table: &str, code: &str, tests: &str| defects(table, code, tests).join("; ");
    let third = format!("{MADE_UP_TABLE}| B3 | neither |\n");
    assert_eq!(found(&third, MADE_UP_CODE, MADE_UP_TESTS), "row B3 has no arm; row B3 has no test");
    let twice = format!("{MADE_UP_TABLE}| B2 | again |\n");
    assert_eq!(found(&twice, MADE_UP_CODE, MADE_UP_TESTS), "two rows have one number");
    let arm = format!("{MADE_UP_CODE}_ => third(), // B2, B3\n");
    assert_eq!(found(MADE_UP_TABLE, &arm, MADE_UP_TESTS), "an arm names row B3, which is not in the table");
    let nameless = format!("{MADE_UP_TESTS}#[test]\nfn third() {{}}\n");
    assert_eq!(found(MADE_UP_TABLE, MADE_UP_CODE, &nameless), "the test third names no row");
    let unknown = format!("{MADE_UP_TESTS}#[test]\nfn b3_third() {{}}\n");
    assert_eq!(found(MADE_UP_TABLE, MADE_UP_CODE, &unknown), "the test b3_third names no row");
}
