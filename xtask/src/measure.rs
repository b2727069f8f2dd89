//! `cargo xtask measure`: figures about the source, for comparing one checkout with another.

mod callgrind;
mod counts;
mod cycles;
mod items;
mod upstream;
mod walk;

use std::path::Path;

use crate::rust::{RustToken, tokens};
use crate::source_tree::SourceTree;
use items::{Item, items};

/// Prints every figure of the checkout.
pub(crate) fn run(checkout: &Path) -> bool {
    let tree = match SourceTree::read(checkout) {
        Ok(tree) => tree,
        Err(error) => {
            println!("cannot read {}: {error}", checkout.display());
            return false;
        }
    };
    let sources = sources(&tree);
    print!("{}", counts::report(&tree, &sources));
    let cycles = cycles::cycles(&sources);
    println!("cycles between files: {}", cycles.len());
    for cycle in cycles {
        println!("  {} files: {}", cycle.len(), cycle.join(", "));
    }
    walk::report(checkout)
}

/// The Rust files of a tree that are no test code.
fn sources(tree: &SourceTree) -> Vec<Source<'_>> {
    let all = tree.rust("").map(|(file, text)| Source::read(file, text));
    all.filter(|source| !source.is_test()).collect()
}

/// The names that more than one type has, with the file and the line of each definition. Test code does not count.
pub(crate) fn shared_type_names(tree: &SourceTree) -> Vec<(String, Vec<(&str, usize)>)> {
    counts::shared_types(&sources(tree))
}

/// A Rust file with its tokens and items.
struct Source<'a> {
    file: &'a str,
    text: &'a str,
    tokens: Vec<RustToken<'a>>,
    items: Vec<Item<'a>>,
}

impl<'a> Source<'a> {
    fn read(file: &'a str, text: &'a str) -> Self {
        let tokens = tokens(text);
        let items = items(&tokens);
        Self { file, text, tokens, items }
    }

    /// Whether the whole file is test code: it lies in a `tests` folder, or is a module `tests.rs`.
    fn is_test(&self) -> bool {
        self.file.split('/').any(|part| part == "tests" || part == "tests.rs")
    }

    /// Whether a line belongs to code under `#[cfg(test)]`.
    fn is_test_line(&self, line: usize) -> bool {
        self.items.iter().any(|item| item.is_test && item.covers(line))
    }

    /// The lines outside test code, with their numbers.
    fn lines(&self) -> impl Iterator<Item = (usize, &'a str)> {
        (1..).zip(self.text.lines()).filter(|(line, _)| !self.is_test_line(*line))
    }

    /// The items outside test code.
    fn items(&self) -> impl Iterator<Item = &Item<'a>> {
        self.items.iter().filter(|item| !item.is_test)
    }
}
