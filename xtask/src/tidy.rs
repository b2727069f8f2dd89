//! `cargo xtask tidy`: what the compiler cannot see. The walls of ARCHITECTURE.md are held here.
//!
//! To add a rule, write its check, give it a remedy in [`RULES`], and show in `tidy/tests.rs` what it refuses and
//! what it accepts.

mod habits;
mod manifest;

#[cfg(test)]
mod tests;
mod walls;
mod width;

use std::path::Path;

use crate::rust::{RustPath, paths, tokens};
use crate::source_tree::SourceTree;
pub(crate) use width::wide_lines;

/// A function from the tree to the violations that break a rule, and what to do about them.
type Rule = (fn(&SourceTree) -> Vec<Violation>, &'static str);

#[rustfmt::skip]
const RULES: &[Rule] = &[
    (walls::core_knows_no_transport_driver_or_broker, "core is true for all of them: put it into an adapter"),
    (walls::core_takes_little_from_tokio, "core has `sync` and macros only: the rest goes through `Runtime`"),
    (walls::core_selects_in_order, "begin it with `biased;`, or the simulation cannot replay"),
    (walls::machine_is_pure, "the machine is pure: time and chance enter as arguments"),
    (walls::adapters_do_not_see_each_other, "adapters meet in core only: move what they share there"),
    (walls::backends_are_named_by_the_wiring, "take `Arc<dyn Store>`: only the wiring of cli knows what it is"),
    (walls::guarded_places_exist, "a rule guards it: when it moves, teach the rule"),
    (habits::statements_live_in_files, "put it into a .sql file beside the module and include it"),
    (habits::tests_do_not_sleep, "poll with a deadline, or step the clock of the testkit"),
    (habits::nothing_is_left_for_later, "do it now or leave it out"),
    (habits::documents_name_what_exists, "name a path that does"),
    (habits::clauses_are_shown_by_tests, "a test that shows it has the clause's number at the end of its name"),
    (habits::root_documents_exist, "every reader looks for it: write it"),
];

/// Applies every rule to the checkout and prints all findings, `path:line: what, remedy`; says whether there were none.
pub(crate) fn run(root: &Path) -> bool {
    let tree = match SourceTree::read(root) {
        Ok(tree) => tree,
        Err(error) => {
            println!("cannot read {}: {error}", root.display());
            return false;
        }
    };
    let findings = findings(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} rules, {} files, findings: {}", RULES.len(), tree.len(), findings.len());
    findings.is_empty()
}

fn findings(tree: &SourceTree) -> Vec<String> {
    let mut findings = Vec::new();
    for (check, remedy) in RULES {
        for Violation { path, line, what } in check(tree) {
            findings.push(format!("{path}:{line}: {what}, {remedy}"));
        }
    }
    findings
}

/// Where a rule is broken, and by what.
#[derive(Debug, PartialEq)]
pub(crate) struct Violation {
    path: String,
    line: usize,
    what: String,
}

impl Violation {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }
}

/// The paths spelled in the Rust files of a folder that are refused, given the file and the path.
fn spelled(tree: &SourceTree, folder: &str, refused: impl Fn(&str, &RustPath<'_>) -> bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (file, text) in tree.rust(folder) {
        let mut paths = paths(&tokens(text));
        paths.retain(|path| refused(file, path));
        violations.extend(paths.iter().map(|path| Violation::new(file, path.line, format!("`{}`", path.text()))));
    }
    violations
}

/// The words in the Rust files of a folder that are refused, given the file and the word.
fn words(tree: &SourceTree, folder: &str, refused: impl Fn(&str, &str) -> bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (file, text) in tree.rust(folder) {
        let mut words = tokens(text);
        words.retain(|token| token.is_word() && refused(file, token.text));
        violations.extend(words.iter().map(|word| Violation::new(file, word.line, format!("`{}`", word.text))));
    }
    violations
}

fn missing(tree: &SourceTree, paths: &[&str]) -> Vec<Violation> {
    let absent = paths.iter().filter(|path| !tree.has(path));
    absent.map(|path| Violation::new(path, 1, "does not exist")).collect()
}

/// Whether a file is `module.rs` or below `module/`.
fn is_module(file: &str, module: &str) -> bool {
    file.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// The lines of a text with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines())
}
