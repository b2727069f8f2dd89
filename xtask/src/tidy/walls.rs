//! Rules about dependencies between packages and modules.

use super::manifest::depended_on;
use super::{Violation, is_module, missing, paths_in};
use crate::rust::tokens;
use crate::source_tree::SourceTree;

/// The manifest decides: code cannot name a package that is no dependency.
pub(super) fn core_depends_on_no_adapter_package(tree: &SourceTree) -> Vec<Violation> {
    depended_on(tree, CORE_MANIFEST, |name| {
        let is_family = |rest: &str| rest.is_empty() || rest.starts_with('_');
        OUTSIDE_CORE.iter().any(|outside| name.strip_prefix(outside).is_some_and(is_family))
    })
}

const CORE: &str = "crates/core/src/";
const CORE_MANIFEST: &str = "crates/core/Cargo.toml";

/// Each name includes its family: `tower` includes `tower_layer`, `http` includes `http_body`.
#[rustfmt::skip]
const OUTSIDE_CORE: &[&str] = &[
    "http", "hyper", "tower", "axum",
    "rusqlite", "redis", "sqlx", "tokio_postgres",
    "rdkafka", "lapin", "async_nats",
];

pub(super) fn core_takes_little_from_tokio(tree: &SourceTree) -> Vec<Violation> {
    paths_in(tree, CORE, |file, path| {
        let part = path.segments.get(1).copied().unwrap_or_default();
        let is_runtime = is_module(file, "crates/core/src/runtime");
        path.segments[0] == "tokio" && !is_runtime && !TOKIO_IN_CORE.contains(&part)
    })
}

/// `sync` and the macros that need no runtime. `test` serves the tests beside the code.
const TOKIO_IN_CORE: &[&str] = &["sync", "select", "join", "try_join", "pin", "test"];

pub(super) fn core_selects_are_biased(tree: &SourceTree) -> Vec<Violation> {
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

/// `clippy.toml` of core bans the calls of clocks and random sources. This rule keeps out what could hold one.
pub(super) fn machine_is_pure(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (file, text) in tree.rust(CORE).filter(|(file, _)| is_module(file, "crates/core/src/machine")) {
        let mut words = tokens(text);
        words.retain(|token| token.is_word() && IMPURE.contains(&token.text));
        violations.extend(words.iter().map(|word| Violation::new(file, word.line, format!("`{}`", word.text))));
    }
    violations
}

const IMPURE: &[&str] = &["async", "await", "Instant", "SystemTime", "Runtime", "runtime"];

/// The manifests decide, as for core.
pub(super) fn adapters_do_not_depend_on_each_other(tree: &SourceTree) -> Vec<Violation> {
    let others = |own: &'static str| move |name: &str| name != own && ADAPTERS.iter().any(|(_, other)| name == *other);
    let below = depended_on(tree, "crates/net/Cargo.toml", others(""));
    ADAPTERS.iter().flat_map(|(manifest, own)| depended_on(tree, manifest, others(own))).chain(below).collect()
}

pub(super) fn net_knows_errors_and_the_runtime(tree: &SourceTree) -> Vec<Violation> {
    paths_in(tree, "crates/net/src/", |_, path| {
        let part = path.segments.get(1).copied().unwrap_or_default();
        path.segments[0] == "hapax_core" && !KNOWN_TO_NET.contains(&part)
    })
}

const KNOWN_TO_NET: &[&str] = &["Error", "ErrorKind", "Result", "BoxError", "Timestamp", "runtime"];

const ADAPTERS: &[(&str, &str)] = &[
    ("crates/stores/Cargo.toml", "hapax_stores"),
    ("crates/brokers/Cargo.toml", "hapax_brokers"),
    ("crates/http/Cargo.toml", "hapax_http"),
];

/// `main.rs` picks a command. What two commands share is in a folder below them.
pub(super) fn nothing_depends_on_commands(tree: &SourceTree) -> Vec<Violation> {
    paths_in(tree, BINARY, |file, path| {
        let is_above = file == "crates/cli/src/main.rs" || is_module(file, "crates/cli/src/commands");
        let name = path.segments.iter().find(|segment| !["crate", "self", "super"].contains(*segment));
        !is_above && name == Some(&"commands")
    })
}

const BINARY: &str = "crates/cli/src/";

/// Other code takes URLs, so that a new system is a file of `crates/systems` and nothing here. The services of the demo
/// have databases of their own, which they use as a service does.
pub(super) fn only_systems_name_a_backend(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (folder, manifest, refused) in WITHOUT_BACKENDS {
        let is_refused = |part: &str| refused.contains(&part);
        let names = |path: &[&str]| matches!(path, ["hapax", part, ..] if is_refused(part));
        violations.extend(paths_in(tree, folder, |_, path| names(&path.segments)));
        violations.extend(depended_on(tree, manifest, |name| name.strip_prefix("hapax_").is_some_and(is_refused)));
    }
    violations
}

/// Folders with their manifests, and the parts of the facade that they do not name.
const WITHOUT_BACKENDS: &[(&str, &str, &[&str])] = &[
    (BINARY, "crates/cli/Cargo.toml", &["stores", "brokers"]),
    ("crates/demo/src/", "crates/demo/Cargo.toml", &["brokers"]),
];

/// A rule would pass for ever after the file that it guards has moved.
pub(super) fn guarded_places_exist(tree: &SourceTree) -> Vec<Violation> {
    missing(
        tree,
        &[
            CORE_MANIFEST,
            "crates/core/src/machine.rs",
            "crates/core/src/runtime.rs",
            "crates/cli/src/commands.rs",
            "crates/cli/src/main.rs",
            "crates/cli/Cargo.toml",
            "crates/demo/src/",
            "crates/demo/Cargo.toml",
            "crates/stores/src/",
            "crates/stores/Cargo.toml",
            "crates/http/Cargo.toml",
            "crates/net/Cargo.toml",
            "crates/net/src/",
            "crates/testkit/src/",
        ],
    )
}
