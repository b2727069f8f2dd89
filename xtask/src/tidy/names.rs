//! One name means one thing in the whole workspace.

use super::Violation;
use crate::measure;
use crate::source_tree::SourceTree;

/// Type names that may be defined more than once, with the reason.
const SHARED_NAMES: &[(&str, &str)] = &[
    ("Attempt", "with hapax-http, a handler of axum extracts the attempt of core under the name that it knows"),
    ("Call", "a ledger runs a `ledger::Call` once, as a gate runs a `Call`"),
    ("World", "the model and the simulation each have their world"),
];

/// The definitions of a type whose name another type of the workspace has. Test code may repeat names.
pub(super) fn type_names_are_defined_once(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (name, places) in measure::shared_type_names(tree) {
        if !SHARED_NAMES.iter().any(|(shared, _)| *shared == name) {
            let violation = |(file, line)| Violation::new(file, line, format!("another type is named `{name}` too"));
            violations.extend(places.into_iter().map(violation));
        }
    }
    violations
}
