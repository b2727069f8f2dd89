//! Rules about statements, tests and documents.

use super::{Violation, is_module, lines, missing, paths_in};
use crate::rust::{TokenKind, tokens};
use crate::source_tree::SourceTree;

pub(super) fn sql_lives_in_sql_files(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (file, text) in tree.rust("crates/stores/src/") {
        for token in tokens(text).iter().filter(|token| token.kind == TokenKind::Literal) {
            let verb = statement(token.text);
            violations
                .extend(verb.map(|verb| Violation::new(file, token.line, format!("a string beginning with `{verb}`"))));
        }
    }
    violations
}

/// The SQL verb at the start of a literal, in any case, after quotes and blanks.
fn statement(literal: &str) -> Option<&'static str> {
    let (_, mut body) = literal.split_once('"')?;
    let blank = |text: &str| BLANKS.iter().find(|blank| text.starts_with(**blank)).map(|blank| blank.len());
    while let Some(length) = blank(body) {
        body = &body[length..];
    }
    let is_first = |verb: &str| {
        let (start, rest) = body.split_at_checked(verb.len()).unwrap_or_default();
        start.eq_ignore_ascii_case(verb) && blank(rest).is_some()
    };
    STATEMENTS.iter().find(|verb| is_first(verb)).copied()
}

const STATEMENTS: &[&str] = &["select", "insert", "update", "delete", "create", "alter"];

/// Blanks as they are written in source: also escapes, and the backslash that continues a line.
const BLANKS: &[&str] = &[" ", "\n", "\t", "\\n", "\\t", "\\\n"];

pub(super) fn tests_do_not_sleep(tree: &SourceTree) -> Vec<Violation> {
    sleepers(tree, MAY_SLEEP)
}

/// The test files that may sleep, each with the reason.
const MAY_SLEEP: &[(&str, &str)] = &[
    ("crates/testkit/src/clock.rs", "passes the sleeps of the tested code on to the runtime"),
    ("crates/testkit/src/faulty.rs", "a slow store, in virtual time"),
    ("crates/testkit/src/memory_broker/source.rs", "a reader that waits for the end of a lease, in virtual time"),
    ("crates/testkit/src/poll.rs", "the pause between two looks"),
    ("crates/testkit/src/proxy/connection.rs", "a slow network"),
    ("crates/testkit/src/suite/sink/world.rs", "the pause between two looks, in real time"),
    ("crates/testkit/src/suite/source/ledger.rs", "a slow handler, in the time of the source"),
    ("crates/core/tests/it/relay/faulty.rs", "a slow database, under virtual time"),
    ("crates/core/tests/it/relay/world.rs", "transactions and replies that take their time, under virtual time"),
    ("crates/testkit/src/suite/source/world.rs", "the pause between two looks, in the time of the source"),
];

pub(super) fn sleepers(tree: &SourceTree, may_sleep: &[(&str, &str)]) -> Vec<Violation> {
    let applies = |file: &str| is_test(file) && !may_sleep.iter().any(|(listed, _)| *listed == file);
    let sleeps = |end: &[&str]| matches!(end, ["thread" | "time", "sleep" | "sleep_until"]);
    let mut violations = paths_in(tree, "crates/", |file, path| applies(file) && path.segments.windows(2).any(sleeps));
    for (file, text) in tree.rust("crates/").filter(|(file, _)| applies(file)) {
        for call in tokens(text).windows(3) {
            if let [".", "sleep", "("] = [call[0].text, call[1].text, call[2].text] {
                violations.push(Violation::new(file, call[1].line, "`.sleep(`"));
            }
        }
    }
    violations
}

fn is_test(file: &str) -> bool {
    let parts: Vec<&str> = file.split('/').collect();
    matches!(parts.as_slice(), ["crates", "testkit", ..] | ["crates", _, "tests", ..])
}

pub(super) fn nothing_is_left_for_later(tree: &SourceTree) -> Vec<Violation> {
    let is_read = |path: &str| READ.iter().any(|ending| path.ends_with(ending));
    // The rules and their tests contain the words that they refuse.
    let is_rule = |path: &str| is_module(path, "xtask/src/tidy");
    let mut violations = Vec::new();
    for (path, text) in tree.under("").filter(|(path, _)| is_read(path) && !is_rule(path)) {
        for (line, content) in lines(text) {
            let found = LATER.iter().filter(|word| content.contains(**word));
            violations.extend(found.map(|word| Violation::new(path, line, format!("`{word}`"))));
        }
    }
    violations
}

const READ: &[&str] = &[".rs", ".sql", ".lua", ".sh", ".md"];
/// In comments and documents; clippy refuses the macros `todo!` and `unimplemented!`.
const LATER: &[&str] = &["TODO", "FIXME"];

pub(super) fn documents_name_what_exists(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for document in ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"] {
        for (line, content) in prose(tree.text(document).unwrap_or_default()) {
            let spans = content.split('`').skip(1).step_by(2);
            let absent = spans.filter_map(named_path).filter(|path| !tree.has(path));
            violations.extend(absent.map(|path| Violation::new(document, line, format!("`{path}` does not exist"))));
        }
    }
    violations
}

/// The block ` ```map ` of ARCHITECTURE.md: a line without indentation names a folder, and indented lines name what is
/// in it.
pub(super) fn the_map_is_true(tree: &SourceTree) -> Vec<Violation> {
    let document = "ARCHITECTURE.md";
    let mut violations = Vec::new();
    let mut folder = "";
    let text = tree.text(document).unwrap_or_default();
    let inside = lines(text).skip_while(|(_, line)| *line != "```map").skip(1).take_while(|(_, line)| *line != "```");
    for (number, line) in inside {
        // Names and text are in columns, with at least two blanks between them.
        let columns: Vec<&str> = line.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect();
        let Some((_, names)) = columns.split_last() else { continue };
        if !line.starts_with(' ') {
            folder = names.first().copied().unwrap_or_default();
        }
        let base = if line.starts_with(' ') { folder } else { "" };
        let absent = names.iter().map(|name| format!("{base}{name}")).filter(|path| !tree.has(path));
        violations.extend(absent.map(|path| Violation::new(document, number, format!("`{path}` does not exist"))));
    }
    violations
}

/// The lines outside fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    lines(text).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// The path in a code span, without arguments, line number and anchor, and only up to a placeholder such as `<db>` or
/// `*`.
fn named_path(span: &str) -> Option<&str> {
    let path = span.split([' ', ':', '#']).next()?;
    let path = match path.find(['<', '*', '{']) {
        Some(placeholder) => &path[..=path[..placeholder].rfind('/')?],
        None => path,
    };
    PLACES.iter().any(|place| path.starts_with(place)).then_some(path)
}

const PLACES: &[&str] = &["crates/", "docs/", "xtask/", "fixtures/", ".ci/", "examples/", "verify/", "bench/"];

pub(super) fn root_documents_exist(tree: &SourceTree) -> Vec<Violation> {
    missing(tree, &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"])
}

const HTTP_CONTRACT: &str = "docs/http.md";

/// Each clause `**H7**` of the HTTP contract has a test whose name ends in `_h7`, and each such test has its clause.
pub(super) fn clauses_are_shown_by_tests(tree: &SourceTree) -> Vec<Violation> {
    let contract = tree.text(HTTP_CONTRACT).unwrap_or_default();
    let mut clauses = Vec::new();
    for (number, text) in lines(contract) {
        clauses.extend(
            text.split_once("| **H").and_then(|(_, rest)| rest.split_once("**")).map(|(clause, _)| (clause, number)),
        );
    }
    let mut shown = Vec::new();
    for (file, text) in tree.rust("crates/").filter(|(file, _)| is_test(file)) {
        for call in tokens(text).windows(2).filter(|call| call[0].text == "fn") {
            let (_, end) = call[1].text.rsplit_once("_h").unwrap_or_default();
            if end.parse::<u32>().is_ok() {
                shown.push((end, file, call[1].line));
            }
        }
    }
    let not_shown = clauses.iter().filter(|(clause, _)| !shown.iter().any(|(end, _, _)| end == clause));
    let unknown = shown.iter().filter(|(end, _, _)| !clauses.iter().any(|(clause, _)| clause == end));
    not_shown
        .map(|(clause, number)| Violation::new(HTTP_CONTRACT, *number, format!("H{clause} is shown by no test")))
        .chain(
            unknown.map(|(end, file, line)| Violation::new(file, *line, format!("the contract has no clause H{end}"))),
        )
        .collect()
}
