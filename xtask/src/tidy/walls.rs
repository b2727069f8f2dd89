//! Who may know whom: the rules about crates, modules and the names they must not say.

use super::manifest::depended_on;
use super::{Violation, is_module, missing, spelled, words};
use crate::rust::tokens;
use crate::source_tree::SourceTree;

pub(super) fn core_knows_no_transport_driver_or_broker(tree: &SourceTree) -> Vec<Violation> {
    let is_outside = |name: &str| {
        let is_family = |rest: &str| rest.is_empty() || rest.starts_with('_');
        OUTSIDE_CORE.iter().any(|outside| name.strip_prefix(outside).is_some_and(is_family))
    };
    let mut violations = spelled(tree, CORE, |_, path| is_outside(path.segments[0]));
    violations.extend(depended_on(tree, CORE_MANIFEST, is_outside));
    violations
}

const CORE: &str = "crates/core/src/";
const CORE_MANIFEST: &str = "crates/core/Cargo.toml";

/// Each stands for its family too: `tower` for `tower_layer`, `http` for `http_body`.
#[rustfmt::skip]
const OUTSIDE_CORE: &[&str] = &[
    "http", "hyper", "tower", "axum",
    "rusqlite", "redis", "tokio_postgres",
    "rdkafka", "lapin", "async_nats",
];

pub(super) fn core_takes_little_from_tokio(tree: &SourceTree) -> Vec<Violation> {
    spelled(tree, CORE, |file, path| {
        let part = path.segments.get(1).copied().unwrap_or_default();
        let is_runtime = is_module(file, "crates/core/src/runtime");
        path.segments[0] == "tokio" && !is_runtime && !TOKIO_IN_CORE.contains(&part)
    })
}

/// `sync`, and macros that need no runtime; `test` is one for the tests beside the code.
const TOKIO_IN_CORE: &[&str] = &["sync", "select", "join", "try_join", "pin", "test"];

pub(super) fn core_selects_in_order(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (file, text) in tree.rust("crates/core/") {
        let tokens = tokens(text);
        for (at, token) in tokens.iter().enumerate().filter(|(_, token)| token.text == "select") {
            let next: Vec<&str> = tokens[at + 1..].iter().take(4).map(|token| token.text).collect();
            if next.starts_with(&["!"]) && !next.ends_with(&["biased", ";"]) {
                violations.push(Violation::new(file, token.line, "`select!` in random order"));
            }
        }
    }
    violations
}

pub(super) fn machine_is_pure(tree: &SourceTree) -> Vec<Violation> {
    let is_machine = |file: &str| is_module(file, "crates/core/src/machine");
    let is_clock = |path: &[&str]| match path {
        ["std", "time", rest @ ..] => rest.first() != Some(&"Duration"),
        _ => false,
    };
    let mut violations = words(tree, CORE, |file, word| is_machine(file) && IMPURE.contains(&word));
    violations.extend(spelled(tree, CORE, |file, path| is_machine(file) && is_clock(&path.segments)));
    violations
}

const IMPURE: &[&str] = &["async", "await", "Instant", "SystemTime", "getrandom", "rand"];

pub(super) fn adapters_do_not_see_each_other(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (folder, own) in ADAPTERS {
        let is_other = |name: &str| name != *own && ADAPTERS.iter().any(|(_, other)| name == *other);
        violations.extend(words(tree, folder, |_, word| is_other(word)));
        violations.extend(depended_on(tree, &format!("{folder}Cargo.toml"), is_other));
    }
    violations
}

const ADAPTERS: &[(&str, &str)] =
    &[("crates/stores/", "hapax_stores"), ("crates/brokers/", "hapax_brokers"), ("crates/http/", "hapax_http")];

pub(super) fn backends_are_named_by_the_wiring(tree: &SourceTree) -> Vec<Violation> {
    words(tree, "crates/", |file, word| {
        let may = MAY_NAME_BACKENDS.iter().any(|place| file.starts_with(place));
        BACKENDS.contains(&word) && !may
    })
}

/// The types behind one backend each. `Memory` is core's own and free to use.
const BACKENDS: &[&str] = &["Sqlite"];

const MAY_NAME_BACKENDS: &[&str] =
    &["crates/stores/", "crates/hapax/", "crates/cli/src/store/wiring.rs", "crates/cli/tests/"];

/// A rule about a file that was moved away would pass for ever.
pub(super) fn guarded_places_exist(tree: &SourceTree) -> Vec<Violation> {
    missing(
        tree,
        &[
            CORE_MANIFEST,
            "crates/core/src/machine.rs",
            "crates/core/src/runtime.rs",
            "crates/stores/src/",
            "crates/http/src/",
            "crates/testkit/src/",
            "crates/cli/src/store/wiring.rs",
        ],
    )
}
