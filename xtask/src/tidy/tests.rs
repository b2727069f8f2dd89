//! Tests of the rules: what each rule refuses and, for most of them, what it accepts.

use super::habits::*;
use super::walls::*;
use super::*;

type Check = fn(&SourceTree) -> Vec<Violation>;

/// The lines that a rule finds in one file.
fn found(rule: Check, path: &str, text: &str) -> Vec<usize> {
    rule(&SourceTree::of(&[(path, text)])).iter().map(|place| place.line).collect()
}

fn refuses(rule: Check, path: &str, text: &str) {
    assert_eq!(found(rule, path, text), [1], "in {path}: {text}");
}

fn accepts(rule: Check, path: &str, text: &str) {
    assert_eq!(found(rule, path, text), [0; 0], "in {path}: {text}");
}

#[test]
fn a_violation_reads_as_place_what_and_remedy() {
    let tree = SourceTree::of(&[("crates/core/src/machine.rs", "\nasync fn f() {}")]);
    assert_eq!(
        violations(&tree)[0],
        "crates/core/src/machine.rs:2: `async`, the machine is pure: pass time and random values as arguments"
    );
}

#[test]
fn core_depends_on_no_adapter() {
    let rule = core_depends_on_no_adapter_package;
    let manifest = "crates/core/Cargo.toml";
    assert_eq!(found(rule, manifest, "[dependencies]\nhttp.workspace = true"), [2]);
    assert_eq!(found(rule, manifest, "[dev-dependencies]\ntokio-postgres = \"1\""), [2]);
    assert_eq!(found(rule, manifest, "[dependencies]\ncache = { version = \"1\", package = \"redis\" }"), [2]);
    assert_eq!(found(rule, manifest, "[dependencies.cache]\npackage = \"redis\""), [2]);
    refuses(rule, manifest, "[target.'cfg(unix)'.dependencies.async-nats]");
    accepts(rule, manifest, "[features]\nhttp = []\n[dependencies]\nbytes = \"1\" # not http\n[lints]\nredis = 1");
}

#[test]
fn core_takes_sync_and_macros_from_tokio() {
    let rule = core_takes_little_from_tokio;
    let file = "crates/core/src/gate.rs";
    for bad in ["use tokio::time::sleep;", "use tokio::{sync::Notify, task};", "tokio::spawn(a);", "use tokio;"] {
        refuses(rule, file, bad);
    }
    for good in
        ["use tokio::sync::{Notify, watch};", "#[tokio::test]", "tokio::select! { biased; }", "use tokio_util::A;"]
    {
        accepts(rule, file, good);
    }
}

#[test]
fn the_binary_names_no_backend() {
    let rule = only_systems_name_a_backend;
    for bad in ["use hapax::stores::Sqlite;", "use hapax::{Store, brokers::NatsUrl};", "hapax::stores::Redis::with(u);"]
    {
        refuses(rule, "crates/cli/src/store/opening.rs", bad);
    }
    assert_eq!(found(rule, "crates/cli/Cargo.toml", "[dependencies]\nhapax-stores.workspace = true"), [2]);
    accepts(rule, "crates/cli/src/store/opening.rs", "use hapax::store::Inspect; use hapax_systems::StoreUrl;");
    refuses(rule, "crates/demo/src/pipeline.rs", "use hapax::brokers::KafkaSink;");
    accepts(rule, "crates/demo/src/pipeline.rs", "use hapax::stores::PostgresLedger;");
}

#[test]
fn only_the_entry_point_and_commands_use_commands() {
    let rule = nothing_depends_on_commands;
    for bad in ["use crate::commands::print::line;", "use super::commands::dead;", "crate::commands::run();"] {
        refuses(rule, "crates/cli/src/admin/api.rs", bad);
        accepts(rule, "crates/cli/src/main.rs", bad);
        accepts(rule, "crates/cli/src/commands/dead/print.rs", bad);
    }
    accepts(rule, "crates/cli/src/place.rs", "use crate::serve::exit::CommandError; fn commands() {}");
}

#[test]
fn the_runtime_takes_what_it_needs_from_tokio() {
    accepts(core_takes_little_from_tokio, "crates/core/src/runtime.rs", "use tokio::time::sleep;");
    accepts(core_takes_little_from_tokio, "crates/core/src/runtime/tokio.rs", "tokio::spawn(a);");
    accepts(core_takes_little_from_tokio, "crates/core/src/lib.rs", "pub use runtime::tokio::Tokio;");
    refuses(core_takes_little_from_tokio, "crates/core/src/runtimes.rs", "tokio::spawn(a);");
}

#[test]
fn core_selects_with_biased_first() {
    let rule = core_selects_are_biased;
    let file = "crates/core/src/gate.rs";
    refuses(rule, file, "tokio::select! {\n    a = b => {}\n}");
    refuses(rule, file, "select!{}");
    refuses(rule, "crates/core/tests/it/main.rs", "select! { a = biased => {} }");
    accepts(rule, file, "tokio::select! {\n    // first come\n    biased;\n    a = b => {}\n}");
    accepts(rule, file, "fn select() {} // select! { }");
}

#[test]
fn the_machine_has_no_async_code_clock_or_runtime() {
    let file = "crates/core/src/machine.rs";
    for bad in ["async fn f() {}", "a.await;", "fn f(now: Instant) {}", "use crate::runtime::Runtime as R;"] {
        let lines = found(machine_is_pure, file, bad);
        assert!(!lines.is_empty(), "{bad}");
    }
    refuses(machine_is_pure, "crates/core/src/machine/rows.rs", "a.await");
    accepts(machine_is_pure, file, "use std::time::Duration; // no Instant");
    accepts(machine_is_pure, "crates/core/src/gate.rs", "async fn f() {}");
}

#[test]
fn adapters_are_independent() {
    let rule = adapters_do_not_depend_on_each_other;
    assert_eq!(found(rule, "crates/stores/Cargo.toml", "[dev-dependencies]\nhapax-http.workspace = true"), [2]);
    accepts(rule, "crates/stores/Cargo.toml", "[dependencies]\nhapax-core.workspace = true");
    accepts(rule, "crates/stores/Cargo.toml", "[dependencies]\nhapax-net.workspace = true");
    assert_eq!(found(rule, "crates/net/Cargo.toml", "[dependencies]\nhapax-stores.workspace = true"), [2]);
    accepts(rule, "crates/hapax/Cargo.toml", "[dependencies]\nhapax-http.workspace = true");
}

#[test]
fn net_is_below_the_adapters() {
    let rule = net_knows_errors_and_the_runtime;
    let file = "crates/net/src/http.rs";
    refuses(rule, file, "use hapax_core::store::Store;");
    refuses(rule, file, "use hapax_core::{Error, Key};");
    accepts(rule, file, "use hapax_core::runtime::{Runtime, timeout};\nuse hapax_core::{BoxError, Error, Result};");
    accepts(rule, "crates/stores/src/lib.rs", "use hapax_core::store::Store;");
}

#[test]
fn statements_are_included_not_written_inline() {
    let rule = sql_lives_in_sql_files;
    let file = "crates/stores/src/sqlite.rs";
    for bad in [
        "a(\"select 1\")",
        "a(\"SELECT\\n1\")",
        "a(\"  \\n\\tInsert into b\")",
        "a(r#\"update b\"#)",
        "a(b\"delete from b\")",
        "a(\"\\\n   create table b\")",
        "a(\"alter\ntable b\")",
    ] {
        refuses(rule, file, bad);
    }
    for good in
        ["a(\"selected\")", "a(\"cannot create the table\")", "a(\"update\")", "// \"select 1\"", "a('\"')", "a(\"é\")"]
    {
        accepts(rule, file, good);
    }
    accepts(rule, "crates/stores/tests/it/main.rs", "a(\"select 1\")");
}

#[test]
fn a_test_that_sleeps_is_refused() {
    for bad in [
        "std::thread::sleep(a);",
        "use tokio::time::{self, sleep};",
        "time::sleep(a).await;",
        "use std::thread::sleep as nap;",
        "runtime.sleep(a).await;",
    ] {
        refuses(tests_do_not_sleep, "crates/http/tests/it/main.rs", bad);
        refuses(tests_do_not_sleep, "crates/testkit/src/suite.rs", bad);
        accepts(tests_do_not_sleep, "crates/http/src/lib.rs", bad);
    }
    accepts(tests_do_not_sleep, "crates/testkit/src/suite.rs", "fn sleep(&self) {} // thread::sleep(a)");
}

#[test]
fn a_listed_file_may_sleep() {
    let tree = SourceTree::of(&[
        ("crates/testkit/src/poll.rs", "thread::sleep(a);"),
        ("crates/testkit/src/other.rs", "thread::sleep(a);"),
    ]);
    let violations = sleepers(&tree, &[("crates/testkit/src/poll.rs", "waits between polls")]);
    assert_eq!(violations.len(), 1);
    assert_eq!(violations[0].path, "crates/testkit/src/other.rs");
}

#[test]
fn todo_markers_are_refused() {
    let rule = nothing_is_left_for_later;
    refuses(rule, "crates/core/src/gate.rs", "// TODO: more");
    refuses(rule, "crates/stores/src/sqlite/claim.sql", "-- FIXME");
    refuses(rule, "docs/http.md", "TODO");
    accepts(rule, "crates/core/src/gate.rs", "// nothing to do");
    accepts(rule, "fixtures/notes.txt", "TODO");
    accepts(rule, "xtask/src/tidy.rs", "TODO");
}

#[test]
fn root_documents_name_paths_that_exist() {
    let rule = documents_name_what_exists;
    refuses(rule, "README.md", "see `docs/absent.md`");
    refuses(rule, "ARCHITECTURE.md", "`core` and `crates/absent/`");
    refuses(rule, "CONTRIBUTING.md", "`crates/absent/<db>.rs`");
    accepts(rule, "docs/http.md", "`docs/absent.md`");
    accepts(rule, "README.md", "docs/absent.md, `cargo test`, `target/debug`\n```\n`docs/absent.md`\n```");
}

#[test]
fn documents_may_name_files_folders_and_placeholders() {
    let text = "`crates/core/src/gate.rs:12` `crates/core` `crates/core/` `crates/<name>/src` `crates/*`\n\
                `.ci/run --all` `docs/http.md#errors`";
    let tree =
        SourceTree::of(&[("README.md", text), ("crates/core/src/gate.rs", ""), (".ci/run", ""), ("docs/http.md", "")]);
    let violations = documents_name_what_exists(&tree);
    assert!(violations.is_empty(), "{violations:?}");
}

#[test]
fn the_map_names_what_exists() {
    let map = |lines: &str| {
        let text = format!("```map\n{lines}\n```\n");
        let tree = SourceTree::of(&[("ARCHITECTURE.md", &text), ("crates/core/src/gate.rs", "")]);
        the_map_is_true(&tree).len()
    };
    assert_eq!(map("crates/core/src/  the core\n  gate.rs  layer 1"), 0);
    assert_eq!(map("crates/core/src/  the core\n  lease.rs  absent"), 1);
    assert_eq!(map("crates/brokers/  absent"), 1);
}

#[test]
fn every_clause_has_a_test_and_every_test_a_clause() {
    let contract = ("docs/http.md", "| **H1** | a |\n| **H2** | b |");
    let shown = |text| clauses_are_shown_by_tests(&SourceTree::of(&[contract, ("crates/http/tests/it/keys.rs", text)]));
    assert!(shown("fn a_h1() {} fn b_h2() {} fn c_h() {} fn with_http() {}").is_empty());
    assert_eq!(shown("fn a_h1() {} // fn b_h2() {}").len(), 1);
    assert_eq!(shown("fn a_h1() {} fn b_h2() {} fn c_h3() {}").len(), 1);
}

#[test]
fn wide_lines_are_refused_except_table_rows_and_generated_files() {
    let wide = "a".repeat(121);
    let rule = lines_wrap_at_120_characters;
    for file in ["README.md", "xtask/src/main.rs", "fixtures/run.sh", "Cargo.toml"] {
        refuses(rule, file, &wide);
        accepts(rule, file, &wide[1..]);
        accepts(rule, file, &"é".repeat(120));
    }
    accepts(rule, "README.md", &format!("| {wide} |"));
    accepts(rule, "xtask/src/main.rs", &format!("/// | {wide} |"));
    accepts(rule, "docs/performance.md", &wide);
}

#[test]
fn a_missing_document_is_found() {
    let tree = SourceTree::of(&[("README.md", ""), ("ARCHITECTURE.md", ""), ("CHANGELOG.md", "")]);
    let violations = root_documents_exist(&tree);
    assert_eq!(violations.len(), 1);
    assert_eq!(violations[0].path, "CONTRIBUTING.md");
}

#[test]
fn a_rule_whose_file_moved_away_is_found() {
    let violations = guarded_places_exist(&SourceTree::of(&[("crates/core/src/protocol.rs", "")]));
    assert!(violations.iter().any(|violation| violation.path == "crates/core/src/machine.rs"));
}

#[test]
fn a_type_name_is_defined_once() {
    let found = |files: &[(&str, &str)]| names::type_names_are_defined_once(&SourceTree::of(files)).len();
    assert_eq!(found(&[("a.rs", "struct A;"), ("b.rs", "enum A {}")]), 2);
    assert_eq!(found(&[("a.rs", "struct A;"), ("b.rs", "struct B; #[cfg(test)] mod tests { struct A; }")]), 0);
    assert_eq!(found(&[("a.rs", "struct A;"), ("c/tests/b.rs", "struct A;")]), 0);
    assert_eq!(found(&[("a.rs", "struct World;"), ("b.rs", "struct World;")]), 0);
}
