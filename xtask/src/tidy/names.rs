//! One name means one thing in the whole workspace.

use super::Violation;
use crate::measure;
use crate::source_tree::SourceTree;

/// Type names that may be defined more than once, with the reason.
const SHARED_NAMES: &[(&str, &str)] = &[
    ("Attempt", "with hapax-http, a handler of axum extracts the attempt of core under the name that it knows"),
    ("Call", "a ledger runs a `ledger::Call` once, as a gate runs a `Call`"),
    ("Capability", "a store under test and a source of messages each declare theirs"),
    ("Event", "a ledger emits events; a source of messages reports events"),
    ("Process", "a process of the testkit runs tasks; a worker has what processes its messages"),
    ("Room", "the model of a server and a worker each have a bounded room"),
    ("Source", "tidy reads source files; a worker reads a source of messages"),
    ("Verdict", "a probe gives one about a record; what processes messages gives one about a job"),
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
