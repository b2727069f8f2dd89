//! `cargo xtask tidy`: rules about the source tree that rustc and clippy do not cover.
//!
//! To add a rule, write its check, add it to [`RULES`] with a remedy, and test in `tidy/tests.rs` what it refuses and
//! what it accepts.

mod habits;
mod manifest;
mod names;

#[cfg(test)]
mod tests;
mod walls;
mod width;

use std::path::Path;

use crate::rust::{RustPath, paths, tokens};
use crate::source_tree::SourceTree;
pub(crate) use width::lines_wrap_at_120_characters;

/// A rule: the check that finds its violations, and the remedy that is printed with each.
type TidyRule = (fn(&SourceTree) -> Vec<Violation>, &'static str);

#[rustfmt::skip]
const RULES: &[TidyRule] = &[
    (walls::core_depends_on_no_adapter_package, "core serves all adapters: move the code into an adapter"),
    (walls::core_takes_little_from_tokio, "core uses tokio's `sync` and macros only: use `Runtime` for the rest"),
    (walls::core_selects_are_biased, "start it with `biased;`, so that the simulation can replay it"),
    (walls::machine_is_pure, "the machine is pure: pass time and random values as arguments"),
    (walls::adapters_do_not_depend_on_each_other, "adapters share code through core and net only: move it there"),
    (walls::net_knows_errors_and_the_runtime, "net is below the adapters: it knows no record, store or broker"),
    (walls::only_systems_name_a_backend, "only crates/systems names a backend: take what a URL of it names"),
    (walls::nothing_depends_on_commands, "commands are at the bottom: move what others use into a folder of its own"),
    (walls::guarded_places_exist, "a rule guards this path: change the rule when the file moves"),
    (habits::sql_lives_in_sql_files, "move it into a .sql file beside the module and include that"),
    (habits::tests_do_not_sleep, "poll with a deadline, or step the clock of the testkit"),
    (habits::nothing_is_left_for_later, "do it now or leave it out"),
    (habits::documents_name_what_exists, "name a path that exists"),
    (habits::the_map_is_true, "draw the map as the tree is"),
    (habits::clauses_are_shown_by_tests, "add a test of the clause whose name ends in its number, as in `_h7`"),
    (lines_wrap_at_120_characters, "wrap it; only rows of tables may be wider"),
    (names::type_names_are_defined_once, "rename one of them, so that its name says what it is"),
    (habits::root_documents_exist, "write it: every reader looks for it"),
];

/// Applies every rule to the checkout and prints each violation as `path:line: what, remedy`. Returns whether there
/// were none.
pub(crate) fn run(root: &Path) -> bool {
    let tree = match SourceTree::read(root) {
        Ok(tree) => tree,
        Err(error) => {
            println!("cannot read {}: {error}", root.display());
            return false;
        }
    };
    let violations = violations(&tree);
    for violation in &violations {
        println!("{violation}");
    }
    println!("tidy: {} rules, {} files, violations: {}", RULES.len(), tree.len(), violations.len());
    violations.is_empty()
}

/// Applies every rule and returns the line that is printed for each violation.
fn violations(tree: &SourceTree) -> Vec<String> {
    let mut lines = Vec::new();
    for (check, remedy) in RULES {
        for Violation { path, line, what } in check(tree) {
            lines.push(format!("{path}:{line}: {what}, {remedy}"));
        }
    }
    lines
}

/// The place where a rule is broken, and what is wrong there.
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

/// Finds the Rust paths in a folder that `is_refused` refuses. `is_refused` gets the file and the Rust path.
fn paths_in(tree: &SourceTree, folder: &str, is_refused: impl Fn(&str, &RustPath<'_>) -> bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (file, text) in tree.rust(folder) {
        let mut paths = paths(&tokens(text));
        paths.retain(|path| is_refused(file, path));
        violations.extend(paths.iter().map(|path| Violation::new(file, path.line, format!("`{}`", path.text()))));
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
