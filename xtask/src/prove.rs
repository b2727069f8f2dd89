//! `cargo xtask prove <what>`: the model, the simulation and the torture. A long simulation can be resumed, and the
//! reports are committed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::{cargo, services};

/// The committed report of the simulation.
const SIM_REPORT: &str = "verify/sim/REPORT.md";

/// What decides the result of a seed: the core, the simulation, and the virtual time and faults that it runs on.
const SIMULATED: [&str; 3] = ["crates/core/src", "crates/testkit/src", "verify/sim/src"];

/// The committed report of the torture, and the sources that decide its result.
const TORTURE_REPORT: &str = "verify/torture/REPORT.md";
const TORTURED: [&str; 4] = ["crates", "examples/any-language", "examples/transfer-postgres", "verify/torture"];

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
        ["torture", rest @ ..] => torture(root, "hapax-torture", rest),
        ["target", rest @ ..] => torture(root, "hapax-torture-target", rest),
        ["worker", rest @ ..] => worker(root, rest),
        ["relay", rest @ ..] => relay(root, rest),
        ["suites"] => suites(root),
        ["suites", ..] => Err("prove suites takes no arguments".into()),
        [other, ..] => Err(format!("there is no proof `{other}`")),
        [] => Err("name what to prove: model, sim, torture, target, worker, relay, suites".into()),
    }
}

/// Visits every state of every setting of the model; with names, only settings that contain one of them.
fn model(root: &Path, settings: &[&str]) -> bool {
    let mut command = cargo();
    command.args(["run", "--quiet", "--package", "hapax-model", "--"]).args(settings);
    command.current_dir(root).status().is_ok_and(|status| status.success())
}

/// Tortures the example with a ledger, or the worker with a service behind HTTP. The binary reads the arguments, and
/// writes its section of the report.
fn torture(root: &Path, program: &str, arguments: &[&str]) -> Result<bool, String> {
    let commit = commit(root, &TORTURED).ok_or("git cannot name the commit of the tortured sources")?;
    services::unpack(root)?;
    let mut build = cargo();
    build.args(["build", "--quiet", "-p", "hapax-cli", "-p", "example-transfer-postgres", "-p", "hapax-torture"]);
    let mut run = Command::new(target(root).join("debug").join(program));
    run.args(arguments).args(["--commit", &commit, "--report", TORTURE_REPORT]);
    Ok([build, run].iter_mut().all(|command| command.current_dir(root).status().is_ok_and(|status| status.success())))
}

/// Tortures workers on one of the brokers. The binary reads the arguments, and writes the report.
fn worker(root: &Path, arguments: &[&str]) -> Result<bool, String> {
    const SOURCES: [&str; 4] = ["crates", "examples/worker-kafka", "examples/worker-rabbitmq", "verify/worker"];
    let commit = commit(root, &SOURCES).ok_or("git cannot name the commit of the tortured sources")?;
    services::unpack(root)?;
    let mut build = cargo();
    let examples = ["-p", "example-worker-kafka", "-p", "example-worker-rabbitmq"];
    build.args(["build", "--quiet", "-p", "hapax-worker-torture"]).args(examples);
    let mut run = Command::new(target(root).join("debug/hapax-worker-torture"));
    run.args(arguments).args(["--commit", &commit, "--report", "verify/worker/REPORT.md"]);
    Ok([build, run].iter_mut().all(|command| command.current_dir(root).status().is_ok_and(|status| status.success())))
}

/// Tortures relays between PostgreSQL and NATS. The binary reads the arguments, and writes the report.
fn relay(root: &Path, arguments: &[&str]) -> Result<bool, String> {
    let commit =
        commit(root, &["crates", "verify/relay"]).ok_or("git cannot name the commit of the tortured sources")?;
    services::unpack(root)?;
    let mut build = cargo();
    build.args(["build", "--quiet", "-p", "hapax-cli", "-p", "hapax-relay-torture"]);
    let mut run = Command::new(target(root).join("debug/hapax-relay-torture"));
    run.args(arguments).args(["--commit", &commit, "--report", "verify/relay/REPORT.md"]);
    Ok([build, run].iter_mut().all(|command| command.current_dir(root).status().is_ok_and(|status| status.success())))
}

/// Runs the suites of sources and sinks on backends that the tests leave out to save time.
fn suites(root: &Path) -> Result<bool, String> {
    services::unpack(root)?;
    let mut tests = cargo();
    tests.args(["test", "--package", "hapax-brokers", "--all-features", "--test", "sources", "--test", "sinks"]);
    tests.args(["--", "rabbitmq3-classic"]).env("HAPAX_ALL_BACKENDS", "1").env("HAPAX_REQUIRE", "rabbitmq3");
    Ok(tests.current_dir(root).status().is_ok_and(|status| status.success()))
}

/// Runs `hapax demo` on real servers, which are killed, too. The binary reads the arguments, and writes the report.
pub(crate) fn demo_real(root: &Path, arguments: &[&str]) -> Result<bool, String> {
    let commit = commit(root, &["crates", "verify/demo"]).ok_or("git cannot name the commit of the sources")?;
    services::unpack(root)?;
    let mut build = cargo();
    build.args(["build", "--quiet", "-p", "hapax-cli", "--features", "hapax-cli/full", "-p", "hapax-demo-real"]);
    let mut run = Command::new(target(root).join("debug/hapax-demo-real"));
    run.args(arguments).args(["--commit", &commit, "--report", "verify/demo/REPORT.md"]);
    Ok([build, run].iter_mut().all(|command| command.current_dir(root).status().is_ok_and(|status| status.success())))
}

fn number<'a>(word: &'a &str) -> Result<&'a str, String> {
    word.parse::<u64>().map(|_| *word).map_err(|_| format!("`{word}` is not a number"))
}

/// Runs many seeds and writes their report.
fn simulations(root: &Path, first: &str, count: &str) -> Result<bool, String> {
    let commit = commit(root, &SIMULATED).ok_or("git cannot name the commit of the simulated sources")?;
    println!("{}", report_age(root, &fs::read_to_string(root.join(SIM_REPORT)).unwrap_or_default()));
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
    let mut command = cargo();
    command.args(["run", "--release", "--quiet", "--package", "hapax-sim", "--"]).args(arguments);
    command.current_dir(root).status().is_ok_and(|status| status.success())
}

/// The last commit that touched these sources. It ends in `-dirty` if one of them is not committed.
fn commit(root: &Path, sources: &[&str]) -> Option<String> {
    let commit = git(root, &["log", "-1", "--format=%h", "--abbrev=12", "--"], sources);
    let commit = commit.filter(|commit| !commit.is_empty())?;
    // Without the report: each run of a series writes its section.
    let changed = git(root, &["status", "--porcelain", "--", &format!(":!{TORTURE_REPORT}")], sources);
    let is_clean = changed?.is_empty();
    Some(if is_clean { commit } else { format!("{commit}-dirty") })
}

/// Says how many commits have touched the simulated sources since the committed report.
fn report_age(root: &Path, report: &str) -> String {
    let Some(commit) = reported_commit(report) else {
        return format!("{SIM_REPORT} names no commit");
    };
    match git(root, &["rev-list", "--count", &format!("{commit}..HEAD"), "--"], &SIMULATED).as_deref() {
        Some("0") => format!("{SIM_REPORT} is of commit {commit}, the last one that touched what it simulates"),
        Some(count) => {
            format!("warning: {SIM_REPORT} is of commit {commit}; {count} later ones touch what it simulates")
        }
        None => format!("warning: {SIM_REPORT} is of commit {commit}, which git does not know"),
    }
}

/// The commit in a line `| commit | d2c53aded543 |`.
fn reported_commit(report: &str) -> Option<&str> {
    report.lines().find_map(|line| line.strip_prefix("| commit | ")?.strip_suffix(" |"))
}

/// Runs git for these sources, and returns what it prints.
fn git(root: &Path, words: &[&str], sources: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).args(sources).current_dir(root).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_is_that_of_the_report() {
        let report = "| seeds | 0 to 9 |\n| commit | d2c53aded543 |\n| runs | 10 |\n";
        assert_eq!(reported_commit(report), Some("d2c53aded543"));
        assert_eq!(reported_commit("| runs | 10 |\n"), None);
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for words in [&[][..], &["sim"], &["sim", "--seeds", "many"], &["sim", "--seed"], &["luck"], &["suites", "all"]]
        {
            assert!(run(Path::new("."), words).is_err(), "{words:?}");
        }
    }
}
