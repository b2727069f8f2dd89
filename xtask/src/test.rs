//! `cargo xtask test`: the steps that a change must pass, cheapest first. Each step is a command that a person can
//! type.

use std::borrow::Cow;
use std::cell::RefCell;
use std::env;
use std::fmt;
use std::io::{self, Read, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::mutants;
use crate::services::{self, Unpacked};
use crate::suites::{self, SuiteOutput, SuiteRunner, TestBinary};
use crate::tally::TestTally;
use crate::tidy;
use crate::timing::{processor_time, slowest};
use crate::{cargo, forget_package};

/// Runs the steps until one fails. Returns whether all passed.
pub(crate) fn run(root: &Path) -> bool {
    TestRun { root, steps: RefCell::default() }.passes()
}

/// Builds the benchmarks with optimisation and runs them.
pub(crate) fn bench(root: &Path, arguments: &[&str]) -> bool {
    let of_bench = |words: &[&str]| {
        let mut command = cargo();
        command.args(words).args(["--release", "--quiet", "--package", "hapax-bench"]).current_dir(root);
        command
    };
    let succeeds = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    let measures_processes = matches!(arguments.first(), Some(&("gateway" | "keys" | "pipeline")));
    let has_binary = || {
        let binary = ["build", "--release", "--quiet", "--package", "hapax-cli"];
        succeeds(cargo().args(binary).current_dir(root))
    };
    // All binaries of the package: one of them counts allocations, which would slow another one down.
    (!measures_processes || has_binary())
        && succeeds(&mut of_bench(&["build"]))
        && succeeds(of_bench(&["run"]).args(["--bin", "hapax-bench", "--"]).args(arguments))
}

const FORMAT: CommandLine = CommandLine::new("cargo fmt --all --check");
// Runs inside this process; the command runs this step alone.
const TIDY: CommandLine = CommandLine::new("cargo xtask tidy");
const CLIPPY: CommandLine = CommandLine::new("cargo clippy --workspace --all-targets --all-features -- -D warnings");
const DOC: CommandLine = CommandLine {
    words: Cow::Borrowed("cargo doc --workspace --no-deps --all-features"),
    variable: Some(("RUSTDOCFLAGS", Cow::Borrowed("-D warnings"))),
};
const DENY: CommandLine = CommandLine::new("cargo deny check");
const UNPACK: CommandLine = CommandLine::new("cargo xtask services unpack");
const MUTANTS: CommandLine = CommandLine::new("cargo xtask mutants");
const TESTS: CommandLine = CommandLine::new("cargo test --workspace --all-features");
// One failure must not hide the next one: all tests run.
const DOCTESTS: CommandLine = CommandLine::new("cargo test --workspace --all-features --no-fail-fast --doc");
// What users build: default features, and none of the known bugs compiled in.
const DEFAULT_TESTS: CommandLine =
    CommandLine::new("cargo test -p hapax-core -p hapax-http --lib --test it --test conformance");
// A command of its own, because packages that are tested together get the features of all of them. The tests in
// `crates/cli/tests/it` are left out: they take minutes, and differ from the first run only by the known bugs.
const DEFAULT_BINARY_TESTS: CommandLine = CommandLine::new("cargo test -p hapax-cli --bins");

// The binary without any backend, which no test runs.
const LEAST_BINARY: CommandLine = CommandLine::new("cargo check --quiet -p hapax-cli --no-default-features");
// What `cargo demo` builds, which no test runs either.
const DEMO_BINARY: CommandLine =
    CommandLine::new("cargo check --quiet -p hapax-cli --no-default-features --features demo");
// A workspace of its own, with the versions of this one where it does not ask for others.
const LOCK_RUSQLITE: CommandLine = CommandLine::new("cp Cargo.lock verify/rusqlite/Cargo.lock");
const RUSQLITE_TESTS: CommandLine = CommandLine::new("cargo test --manifest-path verify/rusqlite/Cargo.toml --tests");

/// The variable that names the services without which a test fails instead of being ignored.
const REQUIRE: &str = "HAPAX_REQUIRE";

/// The variable that says how many tests of a binary run at once.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// Two binaries run at once, so a core has two tests: most wait more than they compute, and with more of them tests of
/// time limits fail.
const TEST_THREADS_PER_CORE: usize = 1;

/// No test takes so long on a slow machine.
const SILENCE: Duration = Duration::from_secs(600);

/// The number of tests of one binary that run at once.
fn test_threads() -> usize {
    let chosen = env::var(TEST_THREADS).ok().and_then(|threads| threads.parse().ok());
    let cores = || thread::available_parallelism().map_or(1, NonZero::get);
    chosen.unwrap_or_else(|| TEST_THREADS_PER_CORE * cores())
}

/// A command line, printed exactly as it is run.
struct CommandLine {
    words: Cow<'static, str>,
    variable: Option<(&'static str, Cow<'static, str>)>,
}

impl CommandLine {
    const fn new(words: &'static str) -> Self {
        Self { words: Cow::Borrowed(words), variable: None }
    }

    /// The command that only builds what this one tests.
    fn building(&self) -> Self {
        Self { words: format!("{} {}", self.words, suites::BUILD).into(), variable: self.variable.clone() }
    }

    fn command(&self, root: &Path) -> Command {
        let mut words = self.words.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        forget_package(&mut command);
        command.args(words).envs(self.variable.iter().map(|(name, value)| (name, value.as_ref()))).current_dir(root);
        // Tests panic on purpose, and a page for each of them would bury the failure.
        command.env("RUST_BACKTRACE", "0");
        command.env(TEST_THREADS, test_threads().to_string());
        command
    }
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, value)) = &self.variable {
            write!(f, "{name}=\"{value}\" ")?;
        }
        f.write_str(&self.words)
    }
}

/// A run of all steps.
struct TestRun<'r> {
    root: &'r Path,
    /// The steps that have ended, with their times.
    steps: RefCell<Vec<(Duration, String)>>,
}

impl TestRun<'_> {
    /// Runs the steps until one fails.
    fn passes(&self) -> bool {
        self.succeeds(&FORMAT)
            && self.step(&TIDY, || Ok(tidy::run(self.root)))
            && [CLIPPY, DOC, LEAST_BINARY, DEMO_BINARY, LOCK_RUSQLITE].iter().all(|line| self.succeeds(line))
            && self.dependencies_are_allowed()
            && self.unpacked().is_some_and(|services| self.tests_pass(&services))
    }

    /// Checks licences, sources and advisories of the dependencies where cargo-deny is on PATH.
    fn dependencies_are_allowed(&self) -> bool {
        let is_installed = Command::new("cargo-deny").arg("--version").stdout(Stdio::null()).status().is_ok();
        if !is_installed {
            println!("\n$ {DENY}\nignored: cargo-deny is not on PATH (cargo install cargo-deny)");
            return true;
        }
        self.succeeds(&DENY)
    }

    /// Unpacks the services that the tests need. Returns nothing if an available service cannot be unpacked.
    fn unpacked(&self) -> Option<Unpacked> {
        let unpacked = self.timed(&UNPACK, || services::unpack(self.root).map_err(io::Error::other));
        match &unpacked {
            Some(services) => println!("{services}"),
            None => ask_for(&UNPACK),
        }
        unpacked
    }

    /// Runs the tests with all features, with default features and with the oldest rusqlite, then the mutants. Prints
    /// the summary of the tests last.
    fn tests_pass(&self, services: &Unpacked) -> bool {
        let required = services.required(&env::var(REQUIRE).unwrap_or_default());
        // All are built before one runs, so that no compiler runs beside a test.
        let lines = [TESTS, DEFAULT_TESTS, DEFAULT_BINARY_TESTS, RUSQLITE_TESTS];
        let built: Option<Vec<_>> = lines.iter().map(|line| self.built(&line.building())).collect();
        let Some(binaries) = built.map(|built| built.concat()) else { return false };
        let variable = Some((REQUIRE, Cow::from(required)));
        let tests = CommandLine { variable: variable.clone(), ..TESTS };
        let suites = self.timed(&tests, || Ok(suite_runner(self.root, &tests).run(&binaries)));
        let doctests = CommandLine { variable, ..DOCTESTS };
        let Some((documents, suites)) = self.timed(&doctests, || stream(&doctests, self.root)).zip(suites) else {
            return false;
        };
        let ended_well = documents.0 && suites.iter().all(|suite| suite.ended_well);
        let texts = suites.iter().map(|suite| &*suite.text).chain([&*documents.1]);
        let tally = TestTally::of(texts.flat_map(str::lines));
        print!("\n{}", tally.details());
        let verdict = tally.verdict(ended_well);
        if let Err(why) = &verdict {
            println!("{why}");
            ask_for(&tests);
        }
        let passed = verdict.is_ok() && self.timed(&MUTANTS, || Ok(mutants::run(self.root))) == Some(true);
        println!("{services}");
        self.show_times(suites);
        if verdict.is_ok() && !passed {
            println!("failed: {MUTANTS}");
        }
        println!("{}", tally.summary());
        passed
    }

    /// Prints what took longest.
    fn show_times(&self, suites: Vec<SuiteOutput>) {
        let busiest = suites.iter().filter_map(|suite| Some((suite.processors?, suite.name.clone())));
        print!("{}", slowest("most processor time", busiest.collect()));
        print!("{}", slowest("slowest tests", suites.into_iter().flat_map(|suite| suite.took).collect()));
        print!("{}", slowest("slowest steps", self.steps.take()));
        if let Some(time) = processor_time() {
            println!("processors: {:.1} minutes", time.as_secs_f64() / 60.0);
        }
    }

    /// Builds the tests of a command, and returns the binaries that it would run.
    fn built(&self, line: &CommandLine) -> Option<Vec<TestBinary>> {
        let binaries = self.timed(line, || suites::build(&mut line.command(self.root)));
        if binaries.is_none() {
            ask_for(line);
        }
        binaries
    }

    /// Runs a command that passes or fails.
    fn succeeds(&self, line: &CommandLine) -> bool {
        self.step(line, || Ok(line.command(self.root).status()?.success()))
    }

    /// Runs one step that passes or fails.
    fn step(&self, line: &CommandLine, body: impl FnOnce() -> io::Result<bool>) -> bool {
        let passed = self.timed(line, body).unwrap_or(false);
        if !passed {
            ask_for(line);
        }
        passed
    }

    /// Prints the command, runs the body and prints its duration. Returns nothing if the body could not start.
    fn timed<T>(&self, line: &CommandLine, body: impl FnOnce() -> io::Result<T>) -> Option<T> {
        println!("\n$ {line}");
        let begun = Instant::now();
        let outcome = body();
        println!("  {:.1} s", begun.elapsed().as_secs_f64());
        self.steps.borrow_mut().push((begun.elapsed(), line.words.clone().into_owned()));
        outcome.inspect_err(|error| println!("cannot run it: {error}")).ok()
    }
}

/// Runs binaries with the variables of a command.
fn suite_runner<'r>(root: &'r Path, line: &CommandLine) -> SuiteRunner<'r> {
    let threads = test_threads();
    let of_all = [(TEST_THREADS, threads.to_string()), ("RUST_BACKTRACE", "0".to_owned())];
    let variable = line.variable.iter().map(|(name, value)| (*name, value.clone().into_owned()));
    SuiteRunner { root, threads, variables: of_all.into_iter().chain(variable).collect(), silence: SILENCE }
}

fn ask_for(line: &CommandLine) {
    println!("failed; run it again with: {line}");
}

/// Runs a command, prints its standard output and returns it.
fn stream(line: &CommandLine, root: &Path) -> io::Result<(bool, String)> {
    let mut child = line.command(root).stdout(Stdio::piped()).spawn()?;
    let output = match child.stdout.take() {
        Some(pipe) => tee(pipe, io::stdout())?,
        None => Vec::new(),
    };
    let ended_well = child.wait()?.success();
    Ok((ended_well, String::from_utf8_lossy(&output).into_owned()))
}

/// Copies in pieces and not in lines, because a test that hangs prints its name without ending the line.
fn tee(mut from: impl Read, mut to: impl Write) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    let mut piece = [0; 8192];
    loop {
        let length = match from.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if length == 0 {
            return Ok(kept);
        }
        to.write_all(&piece[..length])?;
        to.flush()?;
        kept.extend_from_slice(&piece[..length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_shown_with_its_variable() {
        assert_eq!(DOC.to_string(), "RUSTDOCFLAGS=\"-D warnings\" cargo doc --workspace --no-deps --all-features");
    }

    #[test]
    fn a_line_is_run_as_it_is_shown() {
        let command = DOC.command(Path::new("."));
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(command.get_program(), "cargo");
        assert_eq!(arguments, ["doc", "--workspace", "--no-deps", "--all-features"]);
        assert!(command.get_envs().any(|pair| pair == ("RUSTDOCFLAGS".as_ref(), Some("-D warnings".as_ref()))));
    }

    #[test]
    fn output_is_shown_and_kept() {
        let output = vec![b'x'; 20_000];
        let mut shown = Vec::new();
        let kept = tee(output.as_slice(), &mut shown).expect("memory does not fail");
        assert_eq!(shown, output);
        assert_eq!(kept, output);
    }
}
