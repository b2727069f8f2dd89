//! Cycles between files: sets of files of one crate that reach each other over `use` declarations.

use std::collections::{BTreeMap, BTreeSet};

use super::Source;
use crate::rust::{RustPath, imports};

/// The sets of two or more files in which each file reaches each other one over `use`. An edge between a module and its
/// own parent does not count: a parent declares its children, and they share its types.
pub(super) fn cycles(sources: &[Source<'_>]) -> Vec<Vec<String>> {
    let modules: BTreeMap<ModulePath, &Source<'_>> =
        sources.iter().filter_map(|source| Some((ModulePath::of(source.file)?, source))).collect();
    let mut edges: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = BTreeMap::new();
    for (module, source) in &modules {
        let used = imports(&source.tokens).into_iter().filter(|path| !source.is_test_line(path.line));
        let targets = used.filter_map(|path| target(&modules, module, &path.segments, 0));
        let distant = targets.filter(|target| target != &module && !module.is_neighbour_of(target));
        edges.insert(module, distant.collect());
    }
    components(&edges)
        .into_iter()
        .map(|set| set.iter().map(|module| modules[module].file.to_owned()).collect())
        .collect()
}

/// The folder of a crate, and the names of the modules from its root.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ModulePath {
    package: String,
    names: Vec<String>,
}

impl ModulePath {
    /// The module in a file below `src/`.
    fn of(file: &str) -> Option<Self> {
        let (package, inside) = file.split_once("/src/")?;
        let mut names: Vec<String> = inside.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
        if names.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
            names.pop();
        }
        Some(Self { package: package.to_owned(), names })
    }

    fn is_neighbour_of(&self, other: &Self) -> bool {
        let is_parent =
            |parent: &Self, child: &Self| child.names.split_last().is_some_and(|(_, up)| up == parent.names);
        is_parent(self, other) || is_parent(other, self)
    }
}

/// How many re-exports a path is followed through.
const RE_EXPORTS: usize = 4;

/// The module that a `use` path in `from` leads to: the deepest one on its way, or the one that a re-export there
/// names.
fn target<'m>(
    modules: &'m BTreeMap<ModulePath, &Source<'_>>,
    from: &ModulePath,
    segments: &[&str],
    followed: usize,
) -> Option<&'m ModulePath> {
    let mut path = first_module(modules, from, segments.first()?)?;
    let mut rest = &segments[1..];
    while let [name, after @ ..] = rest {
        let names = match (*name, path.names.split_last()) {
            ("super", Some((_, up))) => up.to_vec(),
            _ => [path.names.as_slice(), &[(*name).to_owned()]].concat(),
        };
        let next = ModulePath { package: path.package.clone(), names };
        // The rest of the path names an item of this module.
        if *name != "super" && !modules.contains_key(&next) {
            break;
        }
        (path, rest) = (next, after);
    }
    let (module, source) = modules.get_key_value(&path)?;
    let re_exported = |path: &RustPath<'_>| path.segments.last() == rest.first() && path.segments.len() > 1;
    let onward =
        imports(&source.tokens).into_iter().filter(|_| !rest.is_empty() && followed < RE_EXPORTS).find(re_exported);
    onward.and_then(|path| target(modules, module, &path.segments, followed + 1)).or(Some(module))
}

/// The module that the first segment of a `use` path names.
fn first_module(modules: &BTreeMap<ModulePath, &Source<'_>>, from: &ModulePath, first: &str) -> Option<ModulePath> {
    let mut names = from.names.clone();
    match first {
        "crate" => names.clear(),
        "self" => {}
        "super" => drop(names.pop()),
        child => names.push(child.to_owned()),
    }
    let module = ModulePath { package: from.package.clone(), names };
    // Without a prefix the path names a child module or another crate, and other crates are not followed.
    let has_prefix = ["crate", "self", "super"].contains(&first);
    (has_prefix || modules.contains_key(&module)).then_some(module)
}

/// The strongly connected sets of two or more. The graphs are small, so reachability is computed for each file.
fn components<'m>(edges: &BTreeMap<&'m ModulePath, BTreeSet<&'m ModulePath>>) -> Vec<BTreeSet<&'m ModulePath>> {
    let reached: BTreeMap<_, _> = edges.keys().map(|&start| (start, reachable(edges, start))).collect();
    let mut sets: Vec<BTreeSet<&ModulePath>> = Vec::new();
    for (&module, reach) in &reached {
        let is_mutual = |&other: &&&ModulePath| reached.get(*other).is_some_and(|back| back.contains(module));
        let set: BTreeSet<_> = reach.iter().filter(is_mutual).copied().collect();
        if set.len() > 1 && !sets.contains(&set) {
            sets.push(set);
        }
    }
    sets
}

fn reachable<'m>(
    edges: &BTreeMap<&'m ModulePath, BTreeSet<&'m ModulePath>>,
    start: &'m ModulePath,
) -> BTreeSet<&'m ModulePath> {
    let mut reached = BTreeSet::new();
    let mut ahead = vec![start];
    while let Some(module) = ahead.pop() {
        let next = edges.get(module).into_iter().flatten().copied();
        ahead.extend(next.filter(|&next| reached.insert(next)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources: Vec<_> = files.iter().map(|&(file, text)| Source::read(file, text)).collect();
        cycles(&sources)
    }

    #[test]
    fn two_files_that_use_each_other_are_a_cycle() {
        let files = [("c/src/a.rs", "use crate::b::B;"), ("c/src/b.rs", "use super::a::A;"), ("c/src/lib.rs", "")];
        assert_eq!(found(&files), [["c/src/a.rs", "c/src/b.rs"]]);
    }

    #[test]
    fn a_parent_and_its_child_are_none() {
        let files = [("c/src/a.rs", "use b::B;"), ("c/src/a/b.rs", "use super::A;")];
        assert_eq!(found(&files), [[""; 0]; 0]);
    }

    #[test]
    fn a_re_export_leads_to_the_file_that_it_names() {
        let root = ("c/src/lib.rs", "pub use a::A; mod a; mod b;");
        let files = [root, ("c/src/a.rs", "use crate::b::B;"), ("c/src/b.rs", "use crate::A;")];
        assert_eq!(found(&files).len(), 1);
    }

    #[test]
    fn tests_and_other_crates_do_not_count() {
        let b = "#[cfg(test)] mod tests { use crate::a::A; }";
        assert!(found(&[("c/src/a.rs", "use crate::b::B;"), ("c/src/b.rs", b)]).is_empty());
        assert!(found(&[("c/src/a.rs", "use crate::b::B;"), ("d/src/b.rs", "use crate::a::A;")]).is_empty());
    }
}
