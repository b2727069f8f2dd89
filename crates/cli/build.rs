//! Passes the commit of the source to `--version`: `HAPAX_COMMIT`, or in release builds what git says.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=HAPAX_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let given = std::env::var("HAPAX_COMMIT").ok().filter(|commit| !commit.is_empty());
    if let Some(commit) = given.or_else(commit_of_checkout) {
        println!("cargo::rustc-env=HAPAX_COMMIT={commit}");
    }
}

/// A debug build would be built again after each commit, so it has none.
fn commit_of_checkout() -> Option<String> {
    if std::env::var("PROFILE").ok()? != "release" {
        return None;
    }
    // This file changes with every commit, checkout and reset.
    let log = Path::new("../../.git/logs/HEAD");
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| commit.trim().to_owned())
}
