//! How we write: the rules about statements, tests, words and documents.

use super::source::{Kind, tokens};
use super::tree::Tree;
use super::{Place, is_module, lines, missing, spelled};

pub(super) fn statements_live_in_files(tree: &Tree) -> Vec<Place> {
    let mut places = Vec::new();
    for (file, text) in tree.rust("crates/stores/src/") {
        for token in tokens(text).iter().filter(|token| token.kind == Kind::Literal) {
            let verb = statement(token.text);
            places.extend(verb.map(|verb| Place::new(file, token.line, format!("a string beginning with `{verb}`"))));
        }
    }
    places
}

/// The SQL verb a literal begins with, whatever its quotes, its case and the blanks before it.
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

/// As they stand in source: also the escapes, and the backslash that continues a line.
const BLANKS: &[&str] = &[" ", "\n", "\t", "\\n", "\\t", "\\\n"];

pub(super) fn tests_do_not_sleep(tree: &Tree) -> Vec<Place> {
    sleepers(tree, MAY_SLEEP)
}

/// Files that may sleep, each with its reason.
const MAY_SLEEP: &[(&str, &str)] = &[
    ("crates/testkit/src/clock.rs", "hands the sleeps of what is tested on to the runtime"),
    ("crates/testkit/src/faulty.rs", "a slow store, in virtual time"),
    ("crates/testkit/src/proxy/connection.rs", "a slow network"),
];

pub(super) fn sleepers(tree: &Tree, may_sleep: &[(&str, &str)]) -> Vec<Place> {
    let applies = |file: &str| is_test(file) && !may_sleep.iter().any(|(listed, _)| *listed == file);
    let sleeps = |end: &[&str]| matches!(end, ["thread" | "time", "sleep" | "sleep_until"]);
    let mut places = spelled(tree, "crates/", |file, path| applies(file) && path.segments.windows(2).any(sleeps));
    for (file, text) in tree.rust("crates/").filter(|(file, _)| applies(file)) {
        for call in tokens(text).windows(3) {
            if let [".", "sleep", "("] = [call[0].text, call[1].text, call[2].text] {
                places.push(Place::new(file, call[1].line, "`.sleep(`"));
            }
        }
    }
    places
}

fn is_test(file: &str) -> bool {
    let parts: Vec<&str> = file.split('/').collect();
    matches!(parts.as_slice(), ["crates", "testkit", ..] | ["crates", _, "tests", ..])
}

pub(super) fn nothing_is_left_for_later(tree: &Tree) -> Vec<Place> {
    let is_read = |path: &str| READ.iter().any(|ending| path.ends_with(ending));
    // The rules and their tests must name what they refuse.
    let is_rule = |path: &str| is_module(path, "xtask/src/tidy");
    let mut places = Vec::new();
    for (path, text) in tree.under("").filter(|(path, _)| is_read(path) && !is_rule(path)) {
        for (line, content) in lines(text) {
            let found = LATER.iter().filter(|word| content.contains(**word));
            places.extend(found.map(|word| Place::new(path, line, format!("`{word}`"))));
        }
    }
    places
}

const READ: &[&str] = &[".rs", ".sql", ".lua", ".sh", ".md"];
const LATER: &[&str] = &["TODO", "FIXME", "todo!(", "unimplemented!("];

pub(super) fn documents_name_what_exists(tree: &Tree) -> Vec<Place> {
    let mut places = Vec::new();
    for document in ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"] {
        for (line, content) in prose(tree.text(document).unwrap_or_default()) {
            let spans = content.split('`').skip(1).step_by(2);
            let absent = spans.filter_map(named_path).filter(|path| !tree.has(path));
            places.extend(absent.map(|path| Place::new(document, line, format!("`{path}` does not exist"))));
        }
    }
    places
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

/// The path in a code span: without arguments, line number or anchor, and up to a placeholder such as `<db>` or `*`.
fn named_path(span: &str) -> Option<&str> {
    let path = span.split([' ', ':', '#']).next()?;
    let path = match path.find(['<', '*', '{']) {
        Some(placeholder) => &path[..=path[..placeholder].rfind('/')?],
        None => path,
    };
    PLACES.iter().any(|place| path.starts_with(place)).then_some(path)
}

const PLACES: &[&str] = &["crates/", "docs/", "xtask/", "fixtures/", ".ci/", "examples/", "verify/", "bench/"];

pub(super) fn root_documents_exist(tree: &Tree) -> Vec<Place> {
    missing(tree, &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"])
}

const HTTP_CONTRACT: &str = "docs/http.md";

/// Each clause `**H7**` of the HTTP contract has a test whose name ends in `_h7`, and no test names a clause that is not there.
pub(super) fn clauses_are_shown_by_tests(tree: &Tree) -> Vec<Place> {
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
        .map(|(clause, number)| Place::new(HTTP_CONTRACT, *number, format!("H{clause} is shown by no test")))
        .chain(unknown.map(|(end, file, line)| Place::new(file, *line, format!("the contract has no clause H{end}"))))
        .collect()
}
