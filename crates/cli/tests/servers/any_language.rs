//! The examples in Python, with the Python of this machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hapax_testkit::servers::{PostgresServer, PostgresServerOptions, Trial, required};
use libtest_mimic::{Completion, Failed};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("each_transfer_of_the_example_moves_its_money_once", transfers),
        test("each_payment_behind_the_three_layers_is_booked_once_and_has_one_receipt", payments),
        Trial::ignorable_test("python::a_transfer_with_the_ledger_in_sql_moves_its_money_once", ledger_in_sql),
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
    let lines = [
        "order-1, alice 500: (201, True)",
        "order-1, another payment: (422, False)",
        "2 rows to be published again",
        "records compared: 2; repaired: 0; findings left: 0",
    ];
    for line in lines {
        assert!(printed.contains(line), "{line}: {printed}");
    }
}

fn ledger_in_sql() -> Result<Completion, Failed> {
    if let Err(missing) = required("postgres").and_then(|_| required("psycopg")) {
        return missing.outcome();
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let server = runtime.block_on(PostgresServer::start(PostgresServerOptions::new()))?;
    let mut python = Command::new(root().join("fixtures/psycopg/server.sh"));
    python.arg(root().join("examples/any-language/run.py")).args(["--database", &server.url()]);
    let printed = printed(python);
    let lines: Vec<&str> = printed.lines().filter(|line| line.starts_with("order-1, alice bob 5: (201, ")).collect();
    assert_eq!(lines.len(), 4, "{printed}");
    // The first answer of each gateway is that of the service, and the second that of its records.
    for (line, is_replay) in lines.iter().zip([false, true, false, true]) {
        assert_eq!(line.ends_with("True)"), is_replay, "{printed}");
        assert_eq!(line.rsplit_once(", ").unwrap().0, lines[0].rsplit_once(", ").unwrap().0, "{printed}");
    }
    assert_eq!(printed.matches("order-1, alice bob 6: (422").count(), 2, "{printed}");
    assert!(printed.ends_with("the money has moved once\n"), "{printed}");
    Ok(Completion::Completed)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What the example prints. It must end with success.
fn printed_by(example: &str) -> String {
    let mut python = Command::new("python3");
    // It must not leave compiled files beside the sources.
    python.arg("-B").arg(root().join("examples").join(example).join("run.py"));
    printed(python)
}

fn printed(mut run: Command) -> String {
    run.args(["--hapax", env!("CARGO_BIN_EXE_hapax")]);
    let output = run.stdin(Stdio::null()).output().unwrap();
    let (printed, logs) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}{logs}");
    printed.into_owned()
}
