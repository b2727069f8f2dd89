//! Reads the names of the dependencies in a Cargo.toml.

use super::{Violation, lines};
use crate::source_tree::SourceTree;

/// The dependencies of a manifest, of all kinds, for whose name in code `refused` returns true.
pub(super) fn depended_on(tree: &SourceTree, manifest: &str, refused: impl Fn(&str) -> bool) -> Vec<Violation> {
    let mut found = dependencies(tree.text(manifest).unwrap_or_default());
    found.retain(|(_, name)| refused(name));
    let place = |(line, name): &(usize, String)| Violation::new(manifest, *line, format!("a dependency on `{name}`"));
    found.iter().map(place).collect()
}

/// Names as code spells them. A renamed package is listed under both names.
fn dependencies(manifest: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (line, content) in lines(manifest) {
        let content = content.split('#').next().unwrap_or_default().trim();
        if let Some(table) = content.strip_prefix('[') {
            inside = table.contains("dependencies");
            let single = table.trim_end_matches(']').split_once("dependencies.");
            found.extend(single.map(|(_, name)| (line, code_name(name))));
        } else if inside && let Some((key, _)) = content.split_once('=') {
            found.push((line, code_name(key.split('.').next().unwrap_or(key))));
            found.extend(renamed_from(content).map(|name| (line, code_name(name))));
        }
    }
    found
}

/// `redis` in `cache = { package = "redis" }`, and in `package = "redis"` in a table of its own.
fn renamed_from(content: &str) -> Option<&str> {
    let (_, value) = content.split_once("package")?;
    value.trim_start().strip_prefix('=')?.split('"').nth(1)
}

fn code_name(package: &str) -> String {
    package.trim().trim_matches('"').replace('-', "_")
}
