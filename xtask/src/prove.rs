//! `cargo xtask prove <what>`: the proofs, each a command that a person could type.

use std::path::Path;
use std::process::Command;

/// Walks through every setting of the model; with names, only those that contain one of them.
pub(crate) fn model(root: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new("cargo");
    command.args(["run", "--quiet", "--package", "hapax-model", "--"]).args(arguments);
    command.current_dir(root).status().is_ok_and(|status| status.success())
}
