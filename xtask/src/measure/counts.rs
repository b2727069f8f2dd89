//! The figures that need only the text of the source.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::Source;
use super::items::Item;
use crate::rust::TokenKind;
use crate::source_tree::SourceTree;
use crate::tidy;

/// The report: one figure a line, and lists below the figures that name files.
pub(super) fn report(tree: &SourceTree, sources: &[Source<'_>]) -> String {
    let mut report = String::from("Rust code without tests/ folders, tests.rs and #[cfg(test)] modules\n");
    for (name, is_product) in [("crates/", true), ("verify, bench, examples and xtask", false)] {
        let part = || sources.iter().filter(move |source| source.file.starts_with("crates/") == is_product);
        let files = Spread::of(part().map(|source| source.lines().count()));
        let functions = Spread::of(part().flat_map(|source| function_lengths(source)));
        report += &format!("lines a file, {name}: {files}\nlines a function, {name}: {functions}\n");
    }
    let public: usize = sources.iter().map(|source| public_items(source).len()).sum();
    let undocumented: Vec<String> = sources.iter().flat_map(|source| undocumented_items(source)).collect();
    let documented = public - undocumented.len();
    let (comments, all) = sources.iter().map(comments).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let (examples, lines) = sources.iter().map(examples).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let machine = tree.text("crates/core/src/machine.rs").unwrap_or_default().lines().count();
    let wide = tidy::lines_wrap_at_120_characters(tree);
    report += &format!("public items documented: {documented} of {public} ({} %)\n", percent(documented, public));
    undocumented.iter().for_each(|item| report += &format!("  without: {item}\n"));
    report += &format!("lines over 120 characters (see the tidy rule): {}\n", wide.len());
    report += &format!("lines of crates/core/src/machine.rs: {machine}\n");
    report += &format!("comment lines inside functions: {comments} of {all} lines ({} %)\n", percent(comments, all));
    report += &format!("runnable examples: {examples}, of {lines} lines\n");
    let shared = shared_types(sources);
    report += &format!("type names defined in more than one place: {}\n", shared.len());
    for (name, places) in shared {
        let files: Vec<&str> = places.into_iter().map(|(file, _)| file).collect();
        let _ = writeln!(report, "  {name}: {}", files.join(", "));
    }
    let places = outcome_places(sources, "Dead");
    report +=
        &format!("places that name the begin outcome Dead, and that a further outcome would touch: {}\n", places.len());
    for place in places {
        let _ = writeln!(report, "  {place}");
    }
    report
}

/// The median and the tail of a list of numbers.
struct Spread {
    sorted: Vec<usize>,
}

impl Spread {
    fn of(numbers: impl Iterator<Item = usize>) -> Self {
        let mut sorted: Vec<usize> = numbers.collect();
        sorted.sort_unstable();
        Self { sorted }
    }

    /// The smallest number that so many percent do not exceed.
    fn percentile(&self, percent: usize) -> usize {
        let rank = (self.sorted.len() * percent).div_ceil(100).max(1);
        self.sorted.get(rank - 1).copied().unwrap_or(0)
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [median, p90, p99, max] = [50, 90, 99, 100].map(|percent| self.percentile(percent));
        write!(f, "median {median}, p90 {p90}, p99 {p99}, max {max} ({} in all)", self.sorted.len())
    }
}

fn percent(part: usize, whole: usize) -> String {
    format!("{:.1}", 100.0 * part as f64 / whole.max(1) as f64)
}

fn function_lengths(source: &Source<'_>) -> Vec<usize> {
    let functions = source.items().filter(|item| item.keyword == "fn" && item.has_body);
    functions.map(|item| item.lines.1 - item.lines.0 + 1).collect()
}

/// The public items. Modules are documented in their own file and do not count.
fn public_items<'s, 'a>(source: &'s Source<'a>) -> Vec<&'s Item<'a>> {
    source.items().filter(|item| item.is_public && item.keyword != "mod").collect()
}

/// The public items without documentation before their attributes.
fn undocumented_items(source: &Source<'_>) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
    let is_documented = |first: usize| {
        let before = lines[..first - 1].iter().rev();
        let mut attributes = before.skip_while(|line| line.starts_with("#[") || line.ends_with(']'));
        attributes.next().is_some_and(|line| line.starts_with("///") || line.starts_with("#[doc"))
    };
    let undocumented = public_items(source).into_iter().filter(|item| !is_documented(item.lines.0));
    undocumented.map(|item| format!("{}:{} {} {}", source.file, item.lines.0, item.keyword, item.name)).collect()
}

/// The lines inside functions that hold only a comment, and all lines of the file.
fn comments(source: &Source<'_>) -> (usize, usize) {
    let functions: Vec<_> = source.items().filter(|item| item.keyword == "fn" && item.has_body).collect();
    let is_inside = |line: usize| functions.iter().any(|function| function.covers(line));
    let is_comment = |text: &str| text.trim_start().starts_with("//");
    let commented = source.lines().filter(|(line, text)| is_comment(text) && is_inside(*line));
    (commented.count(), source.lines().count())
}

/// The code blocks of the documentation that are compiled and run, and the lines in them.
fn examples(source: &Source<'_>) -> (usize, usize) {
    let (mut examples, mut lines) = (0, 0);
    let mut runs = None;
    let documentation = source.text.lines().map(str::trim_start);
    for line in documentation.filter_map(|line| line.strip_prefix("///").or(line.strip_prefix("//!"))) {
        match (line.trim_start().strip_prefix("```"), runs) {
            (Some(info), None) => {
                let is_run = info.is_empty() || info == "rust" || info.starts_with("should_panic");
                examples += usize::from(is_run);
                runs = Some(is_run);
            }
            (Some(_), Some(_)) => runs = None,
            (None, Some(true)) => lines += 1,
            (None, _) => {}
        }
    }
    (examples, lines)
}

/// The names that more than one type definition has, with the file and the line of each definition.
pub(super) fn shared_types<'a>(sources: &[Source<'a>]) -> Vec<(String, Vec<(&'a str, usize)>)> {
    let mut definitions: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for source in sources {
        for item in source.items().filter(|item| item.is_type()) {
            definitions.entry(item.name.clone()).or_default().push((source.file, item.lines.0));
        }
    }
    definitions.into_iter().filter(|(_, places)| places.len() > 1).collect()
}

/// The folders in which an outcome of a begin travels from the protocol to the client.
const OUTCOME_FOLDERS: &[&str] =
    &["crates/core/src/gate", "crates/core/src/telemetry", "crates/http/src", "crates/cli/src"];

/// The functions, types and constants that name an outcome, except as a state of the record.
fn outcome_places(sources: &[Source<'_>], outcome: &str) -> BTreeSet<String> {
    let mut places = BTreeSet::new();
    for source in sources.iter().filter(|source| OUTCOME_FOLDERS.iter().any(|folder| source.file.starts_with(folder))) {
        for (at, token) in source.tokens.iter().enumerate() {
            let owner: Vec<&str> = source.tokens[at.saturating_sub(2)..at].iter().map(|token| token.text).collect();
            let is_state = matches!(owner.as_slice(), ["State" | "RecordState" | "Phase", "::"]);
            if token.text == outcome && token.kind == TokenKind::Word && !is_state && !source.is_test_line(token.line) {
                let around = source
                    .items()
                    .filter(|item| item.covers(token.line))
                    .min_by_key(|item| item.lines.1 - item.lines.0);
                let name = around.map_or_else(|| "-".to_owned(), |item| format!("{} {}", item.keyword, item.name));
                let within = source.items().find(|item| item.keyword == "impl" && item.covers(token.line));
                let within = within.map(|item| format!(" in impl {}", item.name)).unwrap_or_default();
                places.insert(format!("{}: {name}{within}", source.file));
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_members_of_the_list() {
        let spread = Spread::of([4, 1, 3, 2].into_iter());
        assert_eq!([50, 90, 100].map(|percent| spread.percentile(percent)), [2, 4, 4]);
        assert_eq!(Spread::of([].into_iter()).percentile(50), 0);
    }

    #[test]
    fn documentation_may_stand_before_attributes() {
        let source =
            Source::read("a.rs", "/// Yes.\n#[derive(Debug)]\npub struct A;\npub struct B;\n/// Yes.\npub fn c() {}\n");
        assert_eq!(undocumented_items(&source), ["a.rs:4 struct B"]);
    }

    #[test]
    fn comments_count_inside_functions_only() {
        let source = Source::read("a.rs", "// no\nfn f() {\n    // yes\n    g();\n}\n");
        assert_eq!(comments(&source), (1, 5));
    }

    #[test]
    fn examples_that_do_not_run_do_not_count() {
        let text = "//! ```\n//! a();\n//! ```\n//! ```text\n//! b\n//! ```\n/// ```no_run\n/// c();\n/// ```\n";
        assert_eq!(examples(&Source::read("a.rs", text)), (1, 1));
    }

    #[test]
    fn associated_types_may_share_a_name() {
        let one = Source::read("a.rs", "struct A; impl I for A { type Error = u8; } struct B;");
        let two =
            Source::read("b.rs", "enum B {} impl I for C { type Error = u8; } #[cfg(test)] mod tests { struct A; }");
        assert_eq!(shared_types(&[one, two]), [("B".to_owned(), vec![("a.rs", 1), ("b.rs", 1)])]);
    }

    #[test]
    fn a_place_is_counted_once_and_states_are_left_out() {
        let text =
            "enum E { Dead } fn f() { E::Dead; E::Dead } impl A for E { fn g() { State::Dead } fn h() { E::Dead } }";
        let places = outcome_places(&[Source::read("crates/http/src/a.rs", &text.replace(' ', "\n"))], "Dead");
        assert_eq!(places.len(), 3, "{places:?}");
    }
}
