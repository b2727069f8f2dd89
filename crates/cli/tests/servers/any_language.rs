//! The examples in Python, with the Python of this machine.

use std::path::Path;
use std::process::{Command, Stdio};

use hapax_testkit::servers::Trial;
use libtest_mimic::Completion;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("each_transfer_of_the_example_moves_its_money_once", transfers),
        test("each_payment_behind_the_three_layers_is_booked_once_and_has_one_receipt", payments),
    ]
}

fn test(name: &str, run: fn()) -> Trial {
    Trial::ignorable_test(format!("python::{name}"), move || {
        if !has_python() {
            return Ok(Completion::ignored_with("there is no python3 with sqlite3 on PATH"));
        }
        run();
        Ok(Completion::Completed)
    })
}

fn has_python() -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import sqlite3"]).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn transfers() {
    let printed = printed_by("worker-any-language");
    assert!(printed.contains("balances: {'alice': 70, 'bob': 10, 'carol': 220}"), "{printed}");
    for (what, times) in [("-> 201", 2), ("-> 422", 1), ("key-reused", 1), ("rejected", 1)] {
        assert_eq!(printed.matches(what).count(), times, "{what}: {printed}");
    }
}

fn payments() {
    let printed = printed_by("three-layers-any-language");
    let lines =
        ["order-1, alice 500: (201, True)", "order-1, another payment: (422, False)", "2 rows to be published again"];
    for line in lines {
        assert!(printed.contains(line), "{line}: {printed}");
    }
}

/// What the example prints. It must end with success.
fn printed_by(example: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(example).join("run.py");
    let mut run = Command::new("python3");
    // It must not leave compiled files beside the sources.
    run.arg("-B").arg(script).args(["--hapax", env!("CARGO_BIN_EXE_hapax")]);
    let output = run.stdin(Stdio::null()).output().unwrap();
    let (printed, logs) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}{logs}");
    printed.into_owned()
}
