use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Where a gateway of this namespace keeps what it must not lose, when its store is on another host: among what this user's programs
/// keep. `variable` reads the environment.
pub(crate) fn directory(
    namespace: &str,
    variable: impl Fn(&'static str) -> Option<OsString>,
) -> Result<PathBuf, anyhow::Error> {
    // A relative path there is to be ignored, says the specification of these directories.
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.context("there is no place for what the store does not take: name one by data-dir")?;
    Ok(state.join("hapax").join(name(namespace)))
}

/// A namespace as the name of a file: what could lead elsewhere, or hide it, is written as in a URL.
fn name(namespace: &str) -> PathBuf {
    let mut name = String::new();
    for (place, byte) in namespace.bytes().enumerate() {
        match byte {
            b'.' if place > 0 => name.push('.'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(byte.into()),
            _ => write!(name, "%{byte:02X}").expect("a string takes everything"),
        }
    }
    Path::new(&name).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(namespace: &str, variables: &[(&str, &str)]) -> Option<String> {
        let variable = |name| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| value.into());
        directory(namespace, variable).ok().map(|path| path.display().to_string())
    }

    #[test]
    fn a_user_has_a_directory_for_state() {
        let home = ("HOME", "/home/u");
        for (variables, expected) in [
            (&[home][..], Some("/home/u/.local/state/hapax/shop")),
            (&[home, ("XDG_STATE_HOME", "/s")], Some("/s/hapax/shop")),
            (&[home, ("XDG_STATE_HOME", "s")], Some("/home/u/.local/state/hapax/shop")),
            (&[home, ("XDG_STATE_HOME", "")], Some("/home/u/.local/state/hapax/shop")),
            (&[("HOME", "")], None),
            (&[], None),
        ] {
            assert_eq!(found("shop", variables).as_deref(), expected, "{variables:?}");
        }
    }

    #[test]
    fn no_namespace_leads_elsewhere_and_no_two_to_the_same_place() {
        let names = ["shop", "shop.v2", "..", ".", "../shop", "a/b", "a%2Fb", "Zürich", "a b", "a\0b"];
        let mut places: Vec<_> = names.iter().map(|name| found(name, &[("HOME", "/h")]).unwrap()).collect();
        for place in &places {
            let name = place.strip_prefix("/h/.local/state/hapax/").unwrap();
            assert!(!name.contains(['/', '\0']) && !name.starts_with('.'), "{place}");
        }
        assert!(places[1].ends_with("/shop.v2"));
        places.sort();
        places.dedup();
        assert_eq!(places.len(), names.len());
    }
}
