//! Which store the answers of a journal belong to.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The kind of a store and the place of its records, as a URL without credentials: `redis://redis.example:6379/0`. A
/// journal carries the place of its store, because an answer must not be recorded in another store.
///
/// The place says nothing about the content of the store. After a store has lost its records, it still has its place,
/// and the journal has the answers that it needs.
///
/// ```
/// use hapax::journal::StorePlace;
///
/// let place = StorePlace::new("redis://redis.example:6379/0");
/// assert_eq!(place.to_string(), "redis://redis.example:6379/0");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StorePlace(String);

/// How much of a place a name of a folder shows.
const SHOWN: usize = 80;

impl StorePlace {
    /// The place that this URL names. The URL must have no credentials, and one place must have only one URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The place of a store in a file. Follows symbolic links, so that the place does not depend on the working
    /// directory of the process or on the name that it uses.
    pub fn of_file(scheme: &str, path: &Path) -> Self {
        let path = resolve(path);
        let path =
            path.to_str().map_or_else(|| path.as_os_str().as_encoded_bytes().escape_ascii().to_string(), Into::into);
        Self(format!("{scheme}://{path}"))
    }

    /// The place of a journal file whose place cannot be read.
    pub fn unknown() -> Self {
        Self("unknown".into())
    }

    /// A name for a folder that only this place has. It shows the start of the place.
    pub fn folder_name(&self) -> String {
        let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || ['.', '_'].contains(letter);
        let words = self.0.split(|letter: char| !is_plain(&letter)).filter(|word| !word.is_empty());
        let shown: String = words.collect::<Vec<_>>().join("-").chars().take(SHOWN).collect();
        let hash: String = Sha256::digest(&self.0).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        format!("{shown}-{hash}")
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The absolute path without symbolic links. Where the end of the path does not exist, it is kept as it is written.
fn resolve(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut missing: Vec<OsString> = Vec::new();
    for known in absolute.ancestors() {
        if let Ok(resolved) = known.canonicalize() {
            return missing.iter().rev().fold(resolved, |path, name| path.join(name));
        }
        missing.extend(known.file_name().map(Into::into));
    }
    absolute
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_named_after_its_place_only() {
        let long = format!("redis://{}:6379/0", "a".repeat(250));
        let places = ["redis://a:6379/0", "redis://a:6379/1", "redis://a-6379:0/0", "redis://b/../..", &long];
        let mut names: Vec<String> = places.map(|place| StorePlace::new(place).folder_name()).into();
        assert_eq!(names[0], "redis-a-6379-0-".to_owned() + &names[0][names[0].len() - 12..]);
        for name in &names {
            assert!(name.len() < 100 && !name.contains(['/', ':']) && !name.starts_with('.'), "{name}");
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), places.len());
    }

    #[test]
    fn one_file_has_one_place_whatever_name_it_is_opened_by() {
        let folder = std::env::temp_dir().join(format!("hapax-place-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (file, link) = (folder.join("hapax.db"), folder.join("link.db"));
        let missing = StorePlace::of_file("sqlite", &folder.join("sub/../hapax.db"));
        assert!(missing.to_string().starts_with("sqlite:///"), "{missing}");
        std::fs::write(&file, b"").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(StorePlace::of_file("sqlite", &link), StorePlace::of_file("sqlite", &file));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
