//! `cargo xtask mutants`: turns each known bug on, and prints which harness fails because of it and after what
//! time. As many bugs as there are cores run at a time, each in processes of its own. A bug that no harness sees is a
//! failure.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::suites::{self, TestBinary};

/// The list of the bugs, with one name a line: `Variant = "name",`.
const LIST: &str = "crates/core/src/chaos/mutants.rs";

/// The harnesses, fastest first: the folder of a package, one of its test binaries, and arguments.
const HARNESSES: &[(&str, [&str; 2], &[&str])] = &[
    ("suite", ["crates/core", "conformance"], &[]),
    ("relay", ["crates/core", "it"], &SHORT_ON_RELAY),
    ("worlds of relays", ["verify/sim", "relays"], &[]),
    ("outbox", ["crates/stores", "outbox"], &["memory"]),
    ("unit", ["crates/core", "it"], &["--skip", "properties", "--skip", "blocked_executor", "--skip", "relay::"]),
    ("ledger", ["crates/stores", "ledger"], &["sqlite"]),
    ("ledger on PostgreSQL", ["crates/stores", "ledger"], &SHORT_ON_POSTGRES),
    ("sources", ["crates/core", "sources"], &[]),
    ("worker", ["crates/stores", "it"], &["worker::"]),
    ("files", ["crates/stores", "it"], &["ledger_unavailable::", "sink::", "moved_files::"]),
    ("sweeps", ["verify/sweeps", "gate"], &["drops::the_", "drops::every_", "panics", "protocol"]),
    ("properties", ["crates/core", "it"], &["properties"]),
    ("simulation", ["verify/sim", "seeds"], &[]),
];

/// Without the cases that take longer than all others.
const SHORT_ON_RELAY: [&str; 7] = [
    "relay::",
    "--skip",
    "the_retries_of_many_rows",
    "--skip",
    "many_undecided_rows",
    "--skip",
    "a_read_from_the_first_row",
];

/// Without the cases that run at every point, and in one of the four ways.
const SHORT_ON_POSTGRES: [&str; 7] = ["postgres", "--skip", "every", "--skip", "own_", "--skip", "run_batch"];

/// A harness that takes longer counts as one that does not see the bug.
const LIMIT: Duration = Duration::from_secs(40);

/// A test binary that is built and ready to run.
struct Harness {
    name: &'static str,
    binary: PathBuf,
    arguments: &'static [&'static str],
}

/// Runs the harnesses against every bug. Returns whether each bug was seen.
pub(crate) fn run(root: &Path) -> bool {
    match prepare(root) {
        Ok((mutants, harnesses)) => all_seen(root, &mutants, &harnesses),
        Err(why) => {
            println!("cannot run the mutants: {why}");
            false
        }
    }
}

fn prepare(root: &Path) -> Result<(Vec<String>, Vec<Harness>), String> {
    let list = fs::read_to_string(root.join(LIST)).map_err(|error| format!("{LIST}: {error}"))?;
    let mutants = names(&list);
    let built = build(root).map_err(|error| format!("cargo: {error}"))?;
    let harness = |&(name, [folder, target], arguments): &(&'static str, [&str; 2], &'static [&'static str])| {
        let binary = built.iter().find(|binary| binary.is(&root.join(folder), target));
        let binary = binary.ok_or_else(|| format!("cargo built no test `{target}` of {folder}"))?;
        Ok(Harness { name, binary: binary.program.clone(), arguments })
    };
    let harnesses = HARNESSES.iter().map(harness).collect::<Result<Vec<_>, String>>()?;
    // A harness that fails without a bug would fail with every bug.
    let passed = on_all_cores(&harnesses, |harness| seen(root, harness, None) == Some(false));
    if let Some((harness, _)) = harnesses.iter().zip(passed).find(|(_, passed)| !passed) {
        let again = format!("{} {}", harness.binary.display(), harness.arguments.join(" "));
        return Err(format!("the harness `{}` does not pass without a bug; run {again}", harness.name));
    }
    if mutants.is_empty() { Err(format!("{LIST} lists no bug")) } else { Ok((mutants, harnesses)) }
}

fn all_seen(root: &Path, mutants: &[String], harnesses: &[Harness]) -> bool {
    let seen = on_all_cores(mutants, |mutant| is_seen(root, mutant, harnesses));
    let count = seen.iter().filter(|seen| **seen).count();
    println!("mutants: {count} of {} seen", mutants.len());
    count == mutants.len()
}

/// Runs the harnesses against one bug until one fails, and prints which.
fn is_seen(root: &Path, mutant: &str, harnesses: &[Harness]) -> bool {
    let begun = Instant::now();
    let mut chosen = harnesses.iter().filter(|harness| is_for(harness.name, mutant));
    let by = chosen.find(|harness| seen(root, harness, Some(mutant)) == Some(true));
    match by {
        Some(harness) => {
            println!("  {mutant:<30} seen by {:<20} {:>5.1} s", harness.name, begun.elapsed().as_secs_f64());
        }
        None => println!("  {mutant:<30} NOT SEEN"),
    }
    by.is_some()
}

/// Calls the function for each item, for as many at a time as there are cores. Returns its results in the items' order.
fn on_all_cores<T: Sync>(items: &[T], function: impl Fn(&T) -> bool + Sync) -> Vec<bool> {
    let next = AtomicUsize::new(0);
    let results: Vec<_> = items.iter().map(|_| AtomicBool::new(false)).collect();
    let work = || loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some((item, result)) = items.get(index).zip(results.get(index)) else { break };
        result.store(function(item), Ordering::Relaxed);
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(work);
        }
    });
    results.into_iter().map(AtomicBool::into_inner).collect()
}

/// Only the harness with a server runs the code of its adapter, and it is too slow for all other mutants.
fn is_for(harness: &str, mutant: &str) -> bool {
    harness.ends_with("PostgreSQL") == mutant.starts_with("postgres_")
}

/// Returns whether the harness fails, or nothing if it does not end in time.
fn seen(root: &Path, harness: &Harness, mutant: Option<&str>) -> Option<bool> {
    let mut command = Command::new(&harness.binary);
    command.args(harness.arguments).current_dir(root.join("crates/core")).env_remove("HAPAX_CHAOS");
    command.envs(mutant.map(|mutant| ("HAPAX_CHAOS", mutant)));
    command.env("RUST_BACKTRACE", "0");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    // Without a bug the limit only stops a harness that hangs.
    let limit = if mutant.is_some() { LIMIT } else { 10 * LIMIT };
    ended(child, limit)
}

/// Waits for the end, or for the first test that fails. Returns whether a test failed, or nothing if the time is up.
fn ended(mut child: Child, limit: Duration) -> Option<bool> {
    let begun = Instant::now();
    let lines = BufReader::new(child.stdout.take()?).lines();
    let (failed, failure) = mpsc::channel();
    thread::spawn(move || {
        if lines.map_while(Result::ok).any(|line| line.ends_with("... FAILED")) {
            // Without a receiver the child has ended already.
            let _ = failed.send(());
        }
    });
    while begun.elapsed() < limit {
        if let Some(status) = child.try_wait().ok()? {
            return Some(!status.success());
        }
        if failure.try_recv().is_ok() {
            stop(child);
            return Some(true);
        }
        thread::sleep(Duration::from_millis(5));
    }
    stop(child);
    None
}

fn stop(mut child: Child) {
    // Either fails only if the child has ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

/// Builds with the flags of `cargo xtask test`, so that nothing is compiled twice.
fn build(root: &Path) -> io::Result<Vec<TestBinary>> {
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace", "--all-features", "--quiet"]).args(suites::BUILD.split(' '));
    suites::build(command.current_dir(root))
}

/// The names of a list of lines `Variant = "name",`.
fn names(list: &str) -> Vec<String> {
    let name = |line: &str| Some(line.trim().strip_suffix("\",")?.split_once(" = \"")?.1.to_owned());
    list.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variant_of_the_list_has_a_name() {
        let list = "mutants! {\n    /// Does this.\n    One = \"one\",\n    /// Does that.\n    Two = \"two\",\n}\n";
        assert_eq!(names(list), ["one", "two"]);
    }

    #[test]
    fn every_item_has_its_own_result() {
        let numbers: Vec<u32> = (0..100).collect();
        let even = on_all_cores(&numbers, |number| number % 2 == 0);
        assert_eq!(even.len(), 100);
        assert!(numbers.iter().zip(even).all(|(number, is_even)| is_even == (number % 2 == 0)));
    }
}
