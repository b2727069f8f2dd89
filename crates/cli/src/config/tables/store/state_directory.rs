use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use hapax::journal::StorePlace;

/// Returns the directory for what belongs to the store at this place, if the store is on another host, after the XDG
/// base directory specification. `variable` reads an environment variable.
pub(crate) fn default_path(
    place: &StorePlace,
    variable: impl Fn(&'static str) -> Option<OsString>,
) -> Result<PathBuf, anyhow::Error> {
    // The specification says that a relative path is to be ignored.
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.context("neither XDG_STATE_HOME nor HOME names a directory for state; set data-dir")?;
    Ok(state.join("hapax").join(place.folder_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(place: &StorePlace, variables: &[(&str, &str)]) -> Option<String> {
        let variable = |name| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| value.into());
        default_path(place, variable).ok().map(|path| path.display().to_string())
    }

    #[test]
    fn the_state_directory_follows_the_xdg_variables() {
        let (home, place) = (("HOME", "/home/u"), StorePlace::new("redis://a:6379/0"));
        let name = place.folder_name();
        for (variables, expected) in [
            (&[home][..], Some("/home/u/.local/state/hapax")),
            (&[home, ("XDG_STATE_HOME", "/s")], Some("/s/hapax")),
            (&[home, ("XDG_STATE_HOME", "s")], Some("/home/u/.local/state/hapax")),
            (&[home, ("XDG_STATE_HOME", "")], Some("/home/u/.local/state/hapax")),
            (&[("HOME", "")], None),
            (&[], None),
        ] {
            let expected = expected.map(|parent| format!("{parent}/{name}"));
            assert_eq!(path(&place, variables), expected, "{variables:?}");
        }
    }
}
