//! The examples of the documentation name what a user of the facade can name.

use std::fs;
use std::path::{Path, PathBuf};

/// The packages behind the facade. A user depends on none of them.
const BEHIND: [&str; 3] = ["hapax_core::", "hapax_http::", "hapax_stores::"];

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("the folder is part of the repository");
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// Returns the lines of the examples in the documentation of this source.
fn example_lines(text: &str) -> Vec<&str> {
    let mut is_example = false;
    let documentation = text.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
    });
    documentation
        .filter(|line| {
            let is_fence = line.trim_start().starts_with("```");
            is_example ^= is_fence;
            is_example && !is_fence
        })
        .collect()
}

#[test]
fn no_example_names_a_package_behind_the_facade() {
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the packages have a folder");
    let mut lines = 0;
    for package in ["core", "http", "stores", "hapax"] {
        for source in sources(&packages.join(package).join("src")) {
            let text = fs::read_to_string(&source).expect("a source is text");
            let is_chapter = source.extension().is_some_and(|extension| extension == "md");
            let examples = if is_chapter { text.lines().collect() } else { example_lines(&text) };
            lines += examples.len();
            for line in examples {
                let named = BEHIND.iter().find(|name| line.contains(**name));
                assert!(named.is_none(), "{}: write hapax:: in this line: {line}", source.display());
            }
        }
    }
    assert!(lines > 500, "only {lines} lines of examples were found");
}
