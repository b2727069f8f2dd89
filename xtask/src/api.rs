//! `cargo xtask api`: the public items of each library are listed in `docs/api/`, so that no change to them goes unseen.
//!
//! It reads tokens, not types. An item that says `pub` and nothing else is one that users reach, because the lint
//! `unreachable_pub` refuses all others; its path is that of the file it stands in.

mod items;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

use crate::tidy::Tree;
use items::Items;

/// Compares the libraries with what is listed, or lists them anew; says whether they agree.
pub(crate) fn run(root: &Path, bless: bool) -> bool {
    match Tree::read(root).and_then(|tree| if bless { write(root, &tree) } else { compare(root, &tree) }) {
        Ok(agree) => agree,
        Err(error) => {
            println!("cannot read or write {LISTINGS}: {error}");
            false
        }
    }
}

const LISTINGS: &str = "docs/api";

fn write(root: &Path, tree: &Tree) -> io::Result<bool> {
    fs::create_dir_all(root.join(LISTINGS))?;
    for (name, lines) in listings(tree) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(root.join(LISTINGS).join(name), text)?;
    }
    Ok(true)
}

fn compare(root: &Path, tree: &Tree) -> io::Result<bool> {
    let (mut lines, mut differences) = (0, Vec::new());
    for (name, found) in listings(tree) {
        let listed = match fs::read_to_string(root.join(LISTINGS).join(&name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        lines += found.len();
        differences.extend(changes(&listed, &found).into_iter().map(|change| format!("{LISTINGS}/{name}: {change}")));
    }
    for difference in &differences {
        println!("{difference}");
    }
    println!("api: {lines} public items, changes that are not listed: {}", differences.len());
    if !differences.is_empty() {
        println!("if users are to have it so: cargo xtask api --bless");
    }
    Ok(differences.is_empty())
}

/// What was listed and is gone, and what is there and was not listed.
fn changes(listed: &str, found: &BTreeSet<String>) -> Vec<String> {
    let listed: BTreeSet<&str> = listed.lines().collect();
    let gone = listed.iter().filter(|line| !found.contains(**line)).map(|line| format!("- {line}"));
    let new = found.iter().filter(|line| !listed.contains(line.as_str())).map(|line| format!("+ {line}"));
    gone.chain(new).collect()
}

/// The lines of each library, by the name of the file that lists them.
fn listings(tree: &Tree) -> BTreeMap<String, BTreeSet<String>> {
    let mut libraries: BTreeMap<&str, Items<'_>> = BTreeMap::new();
    for (file, text) in tree.rust("crates/") {
        if let Some((library, inside)) = file["crates/".len()..].split_once("/src/")
            && tree.has(&format!("crates/{library}/src/lib.rs"))
            && !NOT_PUBLISHED.contains(&library)
        {
            libraries.entry(library).or_default().read(&module(library, inside), text);
        }
    }
    let listing = |(library, items): (&str, Items<'_>)| (format!("{}.txt", package(library)), items.lines());
    libraries.into_iter().map(listing).collect()
}

/// The testkit is used from tests alone.
const NOT_PUBLISHED: &[&str] = &["testkit"];

fn package(library: &str) -> String {
    if library == "hapax" { library.into() } else { format!("hapax-{library}") }
}

/// `hapax_core::gate` for `gate.rs` of `core`.
fn module(library: &str, inside: &str) -> String {
    let mut path = package(library).replace('-', "_");
    let file = inside.trim_end_matches(".rs");
    for segment in file.split('/').filter(|segment| *segment != "lib") {
        path.extend(["::", segment]);
    }
    path
}
