use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Returns the directory in which a gateway of this namespace keeps its state if the store is on another host, after
/// the XDG base directory specification. `variable` reads an environment variable.
pub(crate) fn default_path(
    namespace: &str,
    variable: impl Fn(&'static str) -> Option<OsString>,
) -> Result<PathBuf, anyhow::Error> {
    // The specification says that a relative path is to be ignored.
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.context("neither XDG_STATE_HOME nor HOME names a directory for state; set data-dir")?;
    Ok(state.join("hapax").join(file_name(namespace)))
}

/// Encodes a namespace as a file name: a leading dot and every byte that may lead to another directory is
/// percent-encoded.
fn file_name(namespace: &str) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
    let name = utf8_percent_encode(namespace, ENCODED).to_string();
    match name.strip_prefix('.') {
        Some(rest) => format!("%2E{rest}"),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(namespace: &str, variables: &[(&str, &str)]) -> Option<String> {
        let variable = |name| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| value.into());
        default_path(namespace, variable).ok().map(|path| path.display().to_string())
    }

    #[test]
    fn the_state_directory_follows_the_xdg_variables() {
        let home = ("HOME", "/home/u");
        for (variables, expected) in [
            (&[home][..], Some("/home/u/.local/state/hapax/shop")),
            (&[home, ("XDG_STATE_HOME", "/s")], Some("/s/hapax/shop")),
            (&[home, ("XDG_STATE_HOME", "s")], Some("/home/u/.local/state/hapax/shop")),
            (&[home, ("XDG_STATE_HOME", "")], Some("/home/u/.local/state/hapax/shop")),
            (&[("HOME", "")], None),
            (&[], None),
        ] {
            assert_eq!(path("shop", variables).as_deref(), expected, "{variables:?}");
        }
    }

    #[test]
    fn namespaces_have_distinct_directories_below_the_state_directory() {
        let names = ["shop", "shop.v2", "..", ".", "../shop", "a/b", "a%2Fb", "Zürich", "a b", "a\0b"];
        let mut paths: Vec<_> = names.iter().map(|name| path(name, &[("HOME", "/h")]).unwrap()).collect();
        for path in &paths {
            let name = path.strip_prefix("/h/.local/state/hapax/").unwrap();
            assert!(!name.contains(['/', '\0']) && !name.starts_with('.'), "{path}");
        }
        assert!(paths[1].ends_with("/shop.v2"));
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), names.len());
    }
}
