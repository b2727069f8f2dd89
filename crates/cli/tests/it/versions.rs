//! `docs/support.md` names the versions of the crates that show in the code of users. They are those of the manifest.

use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

/// The oldest version of a dependency, without the parts that the document leaves out.
fn oldest<'m>(manifest: &'m str, name: &str) -> &'m str {
    let line = manifest.lines().find(|line| line.split_once(" = ").is_some_and(|(dependency, _)| dependency == name));
    let line = line.unwrap_or_else(|| panic!("no dependency {name}"));
    let version = line.split('"').nth(1).unwrap_or_default().split(',').next().unwrap_or_default();
    version.trim_start_matches(">=")
}

#[test]
fn the_versions_of_crates_that_users_see_are_those_of_the_manifest() {
    let (document, manifest) = (read("docs/support.md"), read("Cargo.toml"));
    let (_, table) = document.split_once("| crate | version | where |\n|---|---|---|\n").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 8, "{rows:?}");
    for row in rows {
        let (name, version) = (row[1], row[2]);
        let shown = version.trim_end_matches(" or later");
        let oldest = oldest(&manifest, name);
        let rest = oldest.strip_prefix(shown).unwrap_or_else(|| panic!("{name}: {version}, but {oldest}"));
        assert!(rest.is_empty() || rest.starts_with('.'), "{name}: {version}, but {oldest}");
    }
}
