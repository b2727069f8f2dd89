//! `examples/worker-any-language`, with the Python of this machine.

use std::path::Path;
use std::process::{Command, Stdio};

use hapax_testkit::servers::Trial;
use libtest_mimic::Completion;

pub(crate) fn tests() -> Vec<Trial> {
    vec![Trial::ignorable_test("python::each_transfer_of_the_example_moves_its_money_once", || {
        if !has_python() {
            return Ok(Completion::ignored_with("there is no python3 with sqlite3 on PATH"));
        }
        run_the_example();
        Ok(Completion::Completed)
    })]
}

fn has_python() -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import sqlite3"]).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn run_the_example() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/worker-any-language/run.py");
    let mut run = Command::new("python3");
    // It must not leave compiled files beside the sources.
    run.arg("-B").arg(script).args(["--hapax", env!("CARGO_BIN_EXE_hapax")]);
    let output = run.stdin(Stdio::null()).output().unwrap();
    let (printed, logs) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}{logs}");
    assert!(printed.contains("balances: {'alice': 70, 'bob': 10, 'carol': 220}"), "{printed}");
    for (what, times) in [("-> 201", 2), ("-> 422", 1), ("key-reused", 1), ("rejected", 1)] {
        assert_eq!(printed.matches(what).count(), times, "{what}: {printed}");
    }
}
