//! The paths of a checkout and the text of its text files.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

/// Every file by its path from the root, with `/` on all systems. Files other than text files have an empty text.
#[derive(Debug, Default)]
pub(crate) struct SourceTree {
    files: BTreeMap<String, String>,
}

impl SourceTree {
    /// Reads the checkout below `root`.
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.add_folder(root, "")?;
        Ok(tree)
    }

    /// A tree in memory, for the tests of the rules.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let owned = |&(path, text): &(&str, &str)| (path.to_owned(), text.to_owned());
        Self { files: files.iter().map(owned).collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// All files below a folder (`crates/core/`) or all files (empty string), with their text.
    pub(crate) fn under(&self, folder: &str) -> impl Iterator<Item = (&str, &str)> {
        let all = self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        all.filter(move |(path, _)| path.starts_with(folder))
    }

    /// The Rust files below a folder, with their text.
    pub(crate) fn rust(&self, folder: &str) -> impl Iterator<Item = (&str, &str)> {
        self.under(folder).filter(|(path, _)| path.ends_with(".rs"))
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether the path names a file, or a folder that contains one.
    pub(crate) fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        let is_file = self.files.contains_key(path);
        is_file || self.files.range(folder.clone()..).next().is_some_and(|(next, _)| next.starts_with(&folder))
    }

    fn add_folder(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() && is_source(&entry.path(), &name) {
                self.add_folder(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() {
                let text = if is_text(&name) { fs::read(entry.path())? } else { Vec::new() };
                self.files.insert(path, String::from_utf8_lossy(&text).into_owned());
            }
        }
        Ok(())
    }
}

/// Whether a folder belongs to the source: not git's, an editor's or cargo's.
fn is_source(folder: &Path, name: &str) -> bool {
    let hidden = name.starts_with('.') && ![".cargo", ".ci"].contains(&name);
    let built = name == "target" || folder.join("CACHEDIR.TAG").exists();
    !hidden && !built
}

fn is_text(name: &str) -> bool {
    [".rs", ".toml", ".md", ".sql", ".lua", ".sh", ".c"].iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_tools_are_not_read() {
        let root = std::env::temp_dir().join(format!("hapax-xtask-tree-{}", std::process::id()));
        for path in [".ci/run", "a/b/c.rs", "a/d.bin", ".git/e.rs", "target/f.rs", "out/CACHEDIR.TAG", "out/g.rs"] {
            let file = root.join(path);
            fs::create_dir_all(file.parent().expect("it is below the root")).expect("a folder");
            fs::write(file, path).expect("a file");
        }
        let tree = SourceTree::read(&root).expect("the tree was just written");
        fs::remove_dir_all(&root).expect("this test created the folder");
        let found: Vec<_> = tree.under("").collect();
        assert_eq!(found, [(".ci/run", ""), ("a/b/c.rs", "a/b/c.rs"), ("a/d.bin", "")]);
    }

    #[test]
    fn a_path_may_name_a_file_or_a_folder() {
        let tree = SourceTree::of(&[("a/b/c.rs", ""), ("a/bc.rs", "")]);
        for path in ["a", "a/", "a/b", "a/b/", "a/b/c.rs"] {
            assert!(tree.has(path), "{path}");
        }
        for path in ["b", "a/c", "a/b/c", "a/b/c.rs/d"] {
            assert!(!tree.has(path), "{path}");
        }
    }
}
