//! The switch of the known bugs.

use std::process::Command;

use hapax_core::chaos::Mutant;

#[test]
fn a_name_of_no_known_bug_ends_the_process() {
    let mut harness = Command::new(std::env::current_exe().unwrap());
    harness.env("HAPAX_CHAOS", "no_such_bug").args(["--exact", "handler::not_applied_frees_the_key"]);
    let output = harness.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("HAPAX_CHAOS=no_such_bug"), "{output:?}");
}

#[test]
fn no_two_known_bugs_have_one_name() {
    let mut names: Vec<_> = Mutant::ALL.iter().map(|mutant| mutant.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Mutant::ALL.len());
}
