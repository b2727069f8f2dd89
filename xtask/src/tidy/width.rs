//! Lines wrap at 120 characters. rustfmt leaves comments, strings and other files as they are.

use super::{Violation, lines};
use crate::source_tree::SourceTree;

const LONGEST: usize = 120;

/// Files that a program writes.
const GENERATED: &[&str] = &["docs/performance.md", "verify/sim/REPORT.md"];

/// Hand-written lines of more than 120 characters, except rows of tables.
pub(crate) fn lines_wrap_at_120_characters(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (file, text) in tree.under("").filter(|(file, _)| !GENERATED.contains(file)) {
        let wide = lines(text).filter(|(_, line)| line.chars().count() > LONGEST && !is_table_row(line));
        violations.extend(
            wide.map(|(line, text)| {
                Violation::new(file, line, format!("a line of {} characters", text.chars().count()))
            }),
        );
    }
    violations
}

/// A row of a Markdown table, also in documentation comments.
fn is_table_row(line: &str) -> bool {
    line.trim_start().trim_start_matches(['/', '!']).trim_start().starts_with('|')
}
