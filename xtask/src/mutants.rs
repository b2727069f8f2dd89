//! `cargo xtask mutants`: turns each known bug on, and runs the test that a list names for it, which must fail then and
//! pass without the bug. For a bug that is not in the list it runs harness after harness until a test fails, and prints
//! the line that the list needs. As many bugs as there are cores run at a time, each in processes of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::cargo;
use crate::suites::{self, TestBinary};

/// The list of the bugs, with one name a line: `Variant = "name",`.
const LIST: &str = "crates/core/src/chaos/mutants.rs";

/// The list of the tests that see them: `bug = harness: test`.
const TESTS: &str = "xtask/mutants.txt";

/// The harnesses, fastest first: the folder of a package, one of its test binaries, and arguments.
const HARNESSES: &[(&str, [&str; 2], &[&str])] = &[
    ("suite", ["crates/core", "conformance"], &[]),
    ("unit", ["crates/core", "it"], &["--skip", "properties", "--skip", "blocked_executor", "--skip", "relay::"]),
    ("outbox", ["crates/stores", "outbox"], &["memory"]),
    ("ledger", ["crates/stores", "ledger"], &["sqlite"]),
    ("ledger on PostgreSQL", ["crates/stores", "ledger"], &SHORT_ON_POSTGRES),
    ("claims on PostgreSQL", ["crates/stores", "servers"], &["postgres::a_claim"]),
    ("sources", ["crates/core", "sources"], &[]),
    ("worker", ["crates/stores", "it"], &["worker::"]),
    ("files", ["crates/stores", "it"], &["ledger_unavailable::", "sink::", "moved_files::"]),
    ("relay", ["crates/core", "it"], &SHORT_ON_RELAY),
    ("worlds of relays", ["verify/sim", "relays"], &[]),
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

/// A test that takes longer counts as one that does not see the bug.
const LIMIT: Duration = Duration::from_secs(120);

/// A test binary that is built and ready to run.
struct Harness {
    name: &'static str,
    binary: PathBuf,
    arguments: &'static [&'static str],
}

/// One test of a harness.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NamedTest {
    harness: String,
    test: String,
}

/// The known bugs, and the tests that run for them.
struct MutantPlan {
    root: PathBuf,
    mutants: Vec<String>,
    harnesses: Vec<Harness>,
    tests: BTreeMap<String, NamedTest>,
}

/// How the tests of a process ended.
enum MutantEnding {
    Passed,
    /// The first test that failed, where the process printed its name.
    Failed(Option<String>),
    /// The time was up, or the process could not start.
    Unknown,
}

/// Runs the tests against every bug. Returns whether each bug was seen.
pub(crate) fn run(root: &Path) -> bool {
    match prepare(root) {
        Ok(plan) => plan.sees_all(),
        Err(why) => {
            println!("cannot run the mutants: {why}");
            false
        }
    }
}

fn prepare(root: &Path) -> Result<MutantPlan, String> {
    let read = |path| fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"));
    let (mutants, tests) = (names(&read(LIST)?), named_tests(&read(TESTS)?));
    if mutants.is_empty() {
        return Err(format!("{LIST} lists no bug"));
    }
    if let Some(unknown) = tests.keys().find(|name| !mutants.contains(name)) {
        return Err(format!("{TESTS} names `{unknown}`, which is not in {LIST}"));
    }
    let built = build(root).map_err(|error| format!("cargo: {error}"))?;
    let harness = |&(name, [folder, target], arguments): &(&'static str, [&str; 2], &'static [&'static str])| {
        let binary = built.iter().find(|binary| binary.is(&root.join(folder), target));
        let binary = binary.ok_or_else(|| format!("cargo built no test `{target}` of {folder}"))?;
        Ok(Harness { name, binary: binary.program.clone(), arguments })
    };
    let harnesses = HARNESSES.iter().map(harness).collect::<Result<Vec<_>, String>>()?;
    Ok(MutantPlan { root: root.to_owned(), mutants, harnesses, tests })
}

impl MutantPlan {
    fn sees_all(&self) -> bool {
        if let Some(broken) = self.broken() {
            println!("cannot run the mutants: {broken}, also without a bug");
            return false;
        }
        let seen = on_all_cores(&self.mutants, |mutant| self.sees(mutant));
        let count = seen.iter().filter(|seen| **seen).count();
        println!("mutants: {count} of {} seen", self.mutants.len());
        count == self.mutants.len()
    }

    /// A test that does not pass without a bug: it would fail with every bug.
    fn broken(&self) -> Option<String> {
        let tests: Vec<_> = self.tests.values().collect::<BTreeSet<_>>().into_iter().collect();
        let passed = on_all_cores(&tests, |test| matches!(self.run_test(test, None), MutantEnding::Passed));
        let test = tests.iter().zip(passed).find(|(_, passed)| !passed);
        let test = test.map(|(test, _)| format!("`{}: {}` does not pass", test.harness, test.test));
        let searches = self.mutants.iter().any(|mutant| !self.tests.contains_key(mutant));
        test.or_else(|| if searches { self.broken_harness() } else { None })
    }

    fn broken_harness(&self) -> Option<String> {
        let passes = |harness: &Harness| matches!(self.run_all(harness, None), MutantEnding::Passed);
        let passed = on_all_cores(&self.harnesses, passes);
        let (harness, _) = self.harnesses.iter().zip(passed).find(|(_, passed)| !passed)?;
        Some(format!("{} {} does not pass", harness.binary.display(), harness.arguments.join(" ")))
    }

    /// Runs the test of this bug, or searches for one. Prints how it ended.
    fn sees(&self, mutant: &str) -> bool {
        let begun = Instant::now();
        let (is_seen, by) = match self.tests.get(mutant) {
            Some(test) => {
                let is_seen = matches!(self.run_test(test, Some(mutant)), MutantEnding::Failed(_));
                (is_seen, format!("{}: {}", test.harness, test.test))
            }
            None => match self.search(mutant) {
                Some(test) => (true, format!("{}: {} (a line for {TESTS})", test.harness, test.test)),
                None => (false, "any harness".to_owned()),
            },
        };
        let verdict = if is_seen { "=" } else { "NOT SEEN by" };
        println!("{mutant} {verdict} {by}  {:.1} s", begun.elapsed().as_secs_f64());
        is_seen
    }

    /// Runs the harnesses until a test fails.
    fn search(&self, mutant: &str) -> Option<NamedTest> {
        let mut chosen = self.harnesses.iter().filter(|harness| is_for(harness.name, mutant));
        chosen.find_map(|harness| match self.run_all(harness, Some(mutant)) {
            MutantEnding::Failed(test) => {
                let test = test.unwrap_or_else(|| "no test has a name".to_owned());
                Some(NamedTest { harness: harness.name.to_owned(), test })
            }
            MutantEnding::Passed | MutantEnding::Unknown => None,
        })
    }

    fn run_test(&self, test: &NamedTest, mutant: Option<&str>) -> MutantEnding {
        let Some(harness) = self.harnesses.iter().find(|harness| harness.name == test.harness) else {
            return MutantEnding::Unknown;
        };
        self.run(harness, &["--exact", &test.test], mutant)
    }

    fn run_all(&self, harness: &Harness, mutant: Option<&str>) -> MutantEnding {
        self.run(harness, harness.arguments, mutant)
    }

    fn run(&self, harness: &Harness, arguments: &[&str], mutant: Option<&str>) -> MutantEnding {
        let mut command = Command::new(&harness.binary);
        command.args(arguments).current_dir(self.root.join("crates/core")).env_remove("HAPAX_CHAOS");
        command.envs(mutant.map(|mutant| ("HAPAX_CHAOS", mutant)));
        command.env("RUST_BACKTRACE", "0");
        // Without a bug the limit only stops a harness that hangs.
        let limit = if mutant.is_some() { LIMIT } else { 10 * LIMIT };
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        child.ok().and_then(|child| ended(child, limit)).unwrap_or(MutantEnding::Unknown)
    }
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

/// Waits for the end, or for the first test that fails. Returns nothing if the time is up.
fn ended(mut child: Child, limit: Duration) -> Option<MutantEnding> {
    let begun = Instant::now();
    let lines = BufReader::new(child.stdout.take()?).lines();
    let (failed, failure) = mpsc::channel();
    let reader = thread::spawn(move || {
        if let Some(test) = lines.map_while(Result::ok).find_map(|line| failed_test(&line)) {
            // Without a receiver the child has ended already.
            let _ = failed.send(test);
        }
    });
    while begun.elapsed() < limit {
        if let Some(status) = child.try_wait().ok()? {
            if status.success() {
                return Some(MutantEnding::Passed);
            }
            // Its last line may not have been read yet.
            let _ = reader.join();
            return Some(MutantEnding::Failed(failure.try_recv().ok()));
        }
        if let Ok(test) = failure.try_recv() {
            stop(child);
            return Some(MutantEnding::Failed(Some(test)));
        }
        thread::sleep(Duration::from_millis(5));
    }
    stop(child);
    None
}

/// The name in `test name ... FAILED`.
fn failed_test(line: &str) -> Option<String> {
    let test = line.strip_prefix("test ")?.strip_suffix("... FAILED")?;
    Some(test.trim().to_owned())
}

fn stop(mut child: Child) {
    // Either fails only if the child has ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

/// Builds with the flags of `cargo xtask test`, so that nothing is compiled twice.
fn build(root: &Path) -> io::Result<Vec<TestBinary>> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--all-features", "--quiet"]).args(suites::BUILD.split(' '));
    suites::build(command.current_dir(root))
}

/// The names of a list of lines `Variant = "name",`.
fn names(list: &str) -> Vec<String> {
    let name = |line: &str| Some(line.trim().strip_suffix("\",")?.split_once(" = \"")?.1.to_owned());
    list.lines().filter_map(name).collect()
}

/// The tests of a list of lines `bug = harness: test`.
fn named_tests(list: &str) -> BTreeMap<String, NamedTest> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let named = |line: &str| {
        let (mutant, by) = line.split_once(" = ")?;
        let (harness, test) = by.split_once(": ")?;
        Some((mutant.to_owned(), NamedTest { harness: harness.to_owned(), test: test.trim().to_owned() }))
    };
    lines.filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_has_the_test_of_its_line() {
        let list = "# a comment = x: y\n\none = suite: [memory] a::b\ntwo = unit: c::d\n";
        let tests = named_tests(list);
        let test = |harness: &str, test: &str| NamedTest { harness: harness.to_owned(), test: test.to_owned() };
        assert_eq!(tests.len(), 2);
        assert_eq!(tests["one"], test("suite", "[memory] a::b"));
        assert_eq!(tests["two"], test("unit", "c::d"));
    }

    #[test]
    fn a_failed_test_is_read_from_its_line() {
        assert_eq!(failed_test("test [memory] a::b   ... FAILED").as_deref(), Some("[memory] a::b"));
        assert_eq!(failed_test("test a::b ... ok"), None);
    }

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
