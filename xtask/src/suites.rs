//! Runs the test binaries that cargo has built. The ones that mostly wait run beside the others.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::timing::{TestOrder, processor_time_of};

/// A test binary, and the package that it tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestBinary {
    /// The folder of the package.
    pub(crate) folder: PathBuf,
    /// The name of the target: `it`.
    pub(crate) target: String,
    pub(crate) program: PathBuf,
}

/// What the tests of a binary printed, and how long each took.
#[derive(Debug, Default)]
pub(crate) struct SuiteOutput {
    pub(crate) ended_well: bool,
    pub(crate) text: String,
    pub(crate) took: Vec<(Duration, String)>,
    /// The target and the folder of its package.
    pub(crate) name: String,
    /// The time that the processors spent on it. Servers that it does not wait for do not count.
    pub(crate) processors: Option<Duration>,
}

/// Folders whose tests start servers and processes, and wait for them. Two cores have room for another binary beside.
const WAITING: &[&str] =
    &["crates/brokers", "examples", "verify/demo", "verify/relay", "verify/torture", "verify/worker"];

/// Builds the tests that this command of cargo would run.
pub(crate) fn build(cargo: &mut Command) -> io::Result<Vec<TestBinary>> {
    let output = cargo.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(io::Error::other("the tests do not build"));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let binaries: Vec<_> = messages.lines().filter_map(TestBinary::of_message).collect();
    if binaries.is_empty() { Err(io::Error::other("cargo has built no test")) } else { Ok(binaries) }
}

/// The flags with which [`build`] reads what cargo has built.
pub(crate) const BUILD: &str = "--no-run --message-format json-render-diagnostics";

impl TestBinary {
    /// The binary in a message of cargo, which is a JSON object.
    fn of_message(line: &str) -> Option<Self> {
        let program = text(line, "executable").filter(|_| line.contains("\"test\":true},\"features\""))?;
        let folder = Path::new(text(line, "manifest_path")?).parent()?;
        let (_, target) = line.split_once("\"target\":")?;
        Some(Self { folder: folder.to_owned(), target: text(target, "name")?.to_owned(), program: program.into() })
    }

    /// Whether this is a target of the package in this folder.
    pub(crate) fn is(&self, folder: &Path, target: &str) -> bool {
        self.folder == folder && self.target == target
    }

    /// Whether its tests mostly wait.
    fn waits(&self, root: &Path) -> bool {
        let folder = self.folder.strip_prefix(root).unwrap_or(&self.folder);
        WAITING.iter().any(|waiting| folder.starts_with(waiting))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        // As cargo does: tests read files beside their package.
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }

    /// Runs all of its tests.
    fn run(&self, runner: &SuiteRunner<'_>) -> io::Result<SuiteOutput> {
        let listed = self.command().arg("--list").stderr(Stdio::null()).output()?;
        let begun = Instant::now();
        let mut order = TestOrder::new(&String::from_utf8_lossy(&listed.stdout), runner.threads);
        let mut command = self.command();
        command.envs(runner.variables.iter().map(|(name, value)| (name, value)));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let lines = lines_of(child.stdout.take().ok_or_else(|| io::Error::other("no standard output"))?);
        let mut text = String::new();
        loop {
            let line = match lines.recv_timeout(runner.silence) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    child.kill()?;
                    text += &format!("ended, for it printed nothing for {:?}: {}\n", runner.silence, order.running());
                    break;
                }
            };
            order.read(&line, begun.elapsed());
            if line.contains(HANGS) {
                print!("{line}");
            }
            text += &line;
        }
        let processors = processor_time_of(child.id());
        let ended_well = child.wait()?.success();
        Ok(SuiteOutput { ended_well, text, took: order.took(), name: String::new(), processors })
    }
}

/// The lines of a program's output. Another process may keep the output open after its end, so the reader is a thread.
fn lines_of(output: ChildStdout) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let (mut reader, mut line) = (BufReader::new(output), Vec::new());
        while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    lines
}

/// What a test harness says of a test that may never end. All else is printed when the binary ends.
const HANGS: &str = " has been running for over ";

/// The string behind this key.
fn text<'l>(line: &'l str, key: &str) -> Option<&'l str> {
    let (_, rest) = line.split_once(&format!("\"{key}\":\""))?;
    Some(rest.split_once('"')?.0)
}

/// How the binaries run.
#[derive(Debug)]
pub(crate) struct SuiteRunner<'r> {
    pub(crate) root: &'r Path,
    /// The number of tests of one binary that run at once.
    pub(crate) threads: usize,
    pub(crate) variables: Vec<(&'static str, String)>,
    /// A binary that prints nothing for so long has a test that never ends. It is ended, and fails.
    pub(crate) silence: Duration,
}

/// The binaries that have not begun: those that mostly wait, and the others.
type LaneQueues<'b> = [VecDeque<&'b TestBinary>; 2];

impl SuiteRunner<'_> {
    /// Runs the binaries in two lanes, and prints the output of each at its end.
    pub(crate) fn run(&self, binaries: &[TestBinary]) -> Vec<SuiteOutput> {
        let (waiting, others) = binaries.iter().partition(|binary| binary.waits(self.root));
        let (queues, outputs) = (Mutex::new([waiting, others]), Mutex::new(Vec::new()));
        let next = |lane| take(&mut queues.lock().unwrap_or_else(PoisonError::into_inner), lane);
        let work = |lane| {
            while let Some(binary) = next(lane) {
                let output = self.run_one(binary);
                outputs.lock().unwrap_or_else(PoisonError::into_inner).push(output);
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| work(0));
            scope.spawn(|| work(1));
        });
        outputs.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_one(&self, binary: &TestBinary) -> SuiteOutput {
        let folder = binary.folder.strip_prefix(self.root).unwrap_or(&binary.folder).display();
        let name = format!("{} of {folder}", binary.target);
        println!("begins: {name}");
        let begun = Instant::now();
        let mut output = binary.run(self).unwrap_or_else(|error| {
            println!("cannot run {}: {error}", binary.program.display());
            SuiteOutput::default()
        });
        for (_, test) in &mut output.took {
            *test = format!("{folder}: {test}");
        }
        output.name = name;
        let (seconds, program) = (begun.elapsed().as_secs_f64(), binary.program.display());
        // In one piece, or lines of the other lane would be among them.
        print!("\n$ (cd {folder} && {program})\n{}  {seconds:.1} s\n", output.text);
        output
    }
}

/// Takes the next binary of a lane. A lane that has none left takes the last one of the other lane.
fn take<'b>(queues: &mut LaneQueues<'b>, lane: usize) -> Option<&'b TestBinary> {
    let [waiting, others] = queues;
    let (own, other) = if lane == 0 { (waiting, others) } else { (others, waiting) };
    own.pop_front().or_else(|| other.pop_back())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::{env, fs, process};

    use super::*;

    fn message(folder: &str, target: &str, is_test: bool) -> String {
        format!(
            "{{\"reason\":\"compiler-artifact\",\"package_id\":\"path+file://{folder}#hapax-x@0.1.0\",\
             \"manifest_path\":\"{folder}/Cargo.toml\",\"target\":{{\"kind\":[\"test\"],\"name\":\"{target}\",\
             \"doctest\":false,\"test\":true}},\"profile\":{{\"opt_level\":\"0\",\"test\":{is_test}}},\"features\":[],\
             \"executable\":\"/t/{target}-1\",\"fresh\":true}}"
        )
    }

    #[test]
    fn a_test_binary_is_read_from_a_message_of_cargo() {
        let read = |is_test| TestBinary::of_message(&message("/w/crates/core", "it", is_test));
        let binary = read(true).expect("a test binary");
        assert!(binary.is(Path::new("/w/crates/core"), "it") && !binary.is(Path::new("/w/crates/http"), "it"));
        assert_eq!(binary.program, Path::new("/t/it-1"));
        assert_eq!(read(false), None, "a program is no test");
        assert_eq!(TestBinary::of_message("{\"reason\":\"build-finished\",\"success\":true}"), None);
    }

    /// A test binary that is a script in a folder of its own.
    fn script(name: &str, text: &str) -> TestBinary {
        let folder = env::temp_dir().join(format!("hapax-suites-{name}-{}", process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        let program = folder.join("it");
        fs::write(&program, format!("#!/bin/sh\n{text}\n")).expect("a script");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("a program");
        TestBinary { folder, target: "it".to_owned(), program }
    }

    fn runner(silence: u64) -> SuiteRunner<'static> {
        let variables = vec![("X", "x".to_owned())];
        SuiteRunner { root: Path::new("/"), threads: 2, variables, silence: Duration::from_secs(silence) }
    }

    #[test]
    fn a_binary_that_hangs_is_ended_with_the_names_of_its_tests() {
        let binary = script(
            "hangs",
            "[ \"$1\" = --list ] && printf 'a: test\\nb: test\\n' || { echo 'test a ... ok'; exec sleep 60; }",
        );
        let folder = binary.folder.clone();
        let outputs = runner(1).run(&[binary]);
        fs::remove_dir_all(&folder).expect("the folder is there");
        let [output] = &*outputs else { panic!("{outputs:?}") };
        assert!(!output.ended_well && output.text.ends_with("ended, for it printed nothing for 1s: b\n"), "{output:?}");
    }

    #[test]
    fn what_a_binary_prints_is_kept_with_the_times_of_its_tests() {
        let binary =
            script("kept", "[ \"$1\" = --list ] && echo 'a: test' || echo \"test a ... ok $CARGO_MANIFEST_DIR $X\"");
        let folder = binary.folder.clone();
        let outputs = runner(60).run(&[binary.clone(), binary]);
        fs::remove_dir_all(&folder).expect("the folder is there");
        let expected = format!("test a ... ok {} x\n", folder.display());
        for output in &outputs {
            assert!(output.ended_well && output.took.len() == 1 && output.text == expected, "{output:?}");
        }
        assert_eq!(outputs.len(), 2);
    }

    #[test]
    fn a_lane_without_work_takes_that_of_the_other() {
        let binary = |folder, target| TestBinary::of_message(&message(folder, target, true)).expect("a test binary");
        let binaries =
            [binary("/w/verify/relay", "servers"), binary("/w/crates/core", "it"), binary("/w/crates/http", "it")];
        assert_eq!(binaries.each_ref().map(|binary| binary.waits(Path::new("/w"))), [true, false, false]);
        let mut queues = [binaries[..1].iter().collect(), binaries[1..].iter().collect()];
        let order = [0, 0, 1, 1].map(|lane| take(&mut queues, lane).map(|binary| binary.folder.clone()));
        let expected = ["/w/verify/relay", "/w/crates/http", "/w/crates/core"].map(|folder| Some(folder.into()));
        assert_eq!(order[..3], expected);
        assert_eq!(order[3], None);
    }
}
