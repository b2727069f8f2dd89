//! The list of the conformance suite covers the contract.

use std::collections::BTreeSet;

use hapax_testkit::cases;

const CONTRACT: &str = include_str!("../../src/store/contract.md");

/// Clauses that no case is named after, each with the reason.
const ELSEWHERE: &[(u8, &str)] = &[
    (
        20,
        "it needs a broken connection, which the tests of each adapter have; clause 9 covers the error of a full store",
    ),
    (22, "no shared case can open a store that cannot be used; the tests of each adapter do"),
];

#[test]
fn names_are_unique() {
    let cases = cases();
    let names: BTreeSet<_> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len());
    assert!(names.len() > 80, "{} cases", names.len());
}

#[test]
fn every_clause_is_held_by_a_case_or_elsewhere() {
    let clauses: Vec<u8> = CONTRACT.lines().filter_map(|line| line.split_once(". ")?.0.parse().ok()).collect();
    assert_eq!(clauses, (1..=25).collect::<Vec<u8>>());

    let mut covered: Vec<u8> = cases().iter().map(|case| case.clause).collect();
    covered.sort_unstable();
    covered.dedup();
    covered.extend(ELSEWHERE.iter().map(|(clause, _)| clause));
    covered.sort_unstable();
    assert_eq!(covered, clauses, "neither missing, nor excepted and covered");
}

#[test]
fn the_golden_call_has_the_ids_that_were_published() {
    let call = hapax_testkit::golden_call();
    assert_eq!(call.record_key().to_string(), "74f4c5d81d49f5e68782b67250642463");
    let fingerprint = call.newest_fingerprint();
    assert_eq!(fingerprint.rule().0, 1);
    let digits: String = fingerprint.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digits, "6c51e1855b0d5bcd2b9aa36d");
}
