//! Reads the output of callgrind: which files and functions ran.

use std::collections::{BTreeMap, BTreeSet};

/// The files and functions in which at least one instruction ran, and the calls between files.
#[derive(Debug, Default)]
pub(super) struct CallgrindProfile {
    pub(super) files: BTreeSet<String>,
    pub(super) functions: BTreeSet<String>,
    /// The file of the caller and the file of the called function, where they differ.
    pub(super) calls: BTreeSet<(String, String)>,
}

impl CallgrindProfile {
    /// Reads an output file. A name stands in full where it is used first, `fl=(3) src/a.rs`, and then as its number,
    /// `fl=(3)`.
    pub(super) fn read(output: &str) -> Self {
        let mut profile = Self::default();
        let (mut files, mut functions) = (BTreeMap::new(), BTreeMap::new());
        let (mut file, mut called) = (None, None);
        for (key, value) in output.lines().filter_map(|line| line.split_once('=')) {
            match key {
                // `fi` and `fe` are the files of inlined code.
                "fl" | "fi" | "fe" => {
                    file = named(&mut files, value);
                    profile.files.extend(file.clone());
                }
                "fn" => profile.functions.extend(named(&mut functions, value)),
                // A called function has an entry of its own; this line only defines its name.
                "cfn" => drop(named(&mut functions, value)),
                "cfl" | "cfi" => called = named(&mut files, value),
                // Without a file before it, the called function is in the file of its caller.
                "calls" => profile.calls.extend(file.clone().zip(called.take()).filter(|(from, to)| from != to)),
                _ => {}
            }
        }
        profile
    }
}

fn named<'a>(names: &mut BTreeMap<&'a str, &'a str>, value: &'a str) -> Option<String> {
    let (number, name) = value.split_once(") ").unwrap_or((value.trim_end_matches(')'), ""));
    if !name.is_empty() {
        names.insert(number, name);
    }
    names.get(number).map(|name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up_by_their_numbers() {
        let output = "fl=(1) a.rs\nfn=(1) a::f\n3 5\ncfi=(2) b.rs\ncfn=(2) b::g\ncalls=1 2\n3 9\n\n\
                      fl=(2)\nfn=(2)\n1 1\nfi=(3) c.rs\n";
        let profile = CallgrindProfile::read(output);
        assert_eq!(profile.files.into_iter().collect::<Vec<_>>(), ["a.rs", "b.rs", "c.rs"]);
        assert_eq!(profile.functions.into_iter().collect::<Vec<_>>(), ["a::f", "b::g"]);
        assert_eq!(profile.calls.into_iter().collect::<Vec<_>>(), [("a.rs".to_owned(), "b.rs".to_owned())]);
    }

    #[test]
    fn a_function_that_is_only_named_as_called_did_not_run() {
        let profile = CallgrindProfile::read("fl=(1) a.rs\nfn=(1) f\n1 1\ncfi=(2) b.rs\ncfn=(2) g\n");
        assert_eq!((profile.files.len(), profile.functions.len()), (1, 1));
    }
}
