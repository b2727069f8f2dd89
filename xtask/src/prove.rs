//! `cargo xtask prove <what>`: the model and the simulation. Long runs can be resumed, and their reports are committed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The committed report of the simulation.
const SIM_REPORT: &str = "verify/sim/REPORT.md";

/// Runs one of the proofs and returns whether it passed.
///
/// # Errors
/// Wrong arguments.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<bool, String> {
    match words {
        ["model", settings @ ..] => Ok(model(root, settings)),
        ["sim", "--seed", seed] => Ok(simulation(root, &["seed", number(seed)?])),
        ["sim", "--seeds", count] => simulations(root, "0", number(count)?),
        ["sim", "--seeds", count, "--from", first] => simulations(root, number(first)?, number(count)?),
        ["sim", ..] => Err("prove sim takes --seed N, or --seeds N [--from S]".into()),
        [other, ..] => Err(format!("there is no proof `{other}`")),
        [] => Err("name what to prove: model, sim".into()),
    }
}

/// Visits every state of every setting of the model; with names, only settings that contain one of them.
fn model(root: &Path, settings: &[&str]) -> bool {
    let mut command = Command::new("cargo");
    command.args(["run", "--quiet", "--package", "hapax-model", "--"]).args(settings);
    command.current_dir(root).status().is_ok_and(|status| status.success())
}

fn number<'a>(word: &'a &str) -> Result<&'a str, String> {
    word.parse::<u64>().map(|_| *word).map_err(|_| format!("`{word}` is not a number"))
}

/// Runs many seeds and writes their report.
fn simulations(root: &Path, first: &str, count: &str) -> Result<bool, String> {
    let commit = commit(root).ok_or("git cannot name the commit of this checkout")?;
    let folder = target(root).join("prove-sim");
    if commit.ends_with("-dirty") {
        // Earlier results were made from other sources.
        let _ = fs::remove_dir_all(&folder);
    }
    let held = simulation(root, &["seeds", first, count, &commit, &folder.to_string_lossy()]);
    if held {
        let copied = fs::copy(folder.join("report.md"), root.join(SIM_REPORT));
        copied.map_err(|error| format!("{SIM_REPORT}: {error}"))?;
        println!("written to {SIM_REPORT}");
    }
    Ok(held)
}

fn simulation(root: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new("cargo");
    command.args(["run", "--release", "--quiet", "--package", "hapax-sim", "--"]).args(arguments);
    command.current_dir(root).status().is_ok_and(|status| status.success())
}

fn commit(root: &Path) -> Option<String> {
    let mut command = Command::new("git");
    let output = command
        .args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
        .current_dir(root)
        .output()
        .ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !commit.is_empty()).then_some(commit)
}

fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_arguments_are_refused() {
        for words in [&[][..], &["sim"], &["sim", "--seeds", "many"], &["sim", "--seed"], &["luck"]] {
            assert!(run(Path::new("."), words).is_err(), "{words:?}");
        }
    }
}
