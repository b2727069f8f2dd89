use std::process::{Command, Output};

use crate::harness::{hapax, until};

fn demo(flags: &[&str]) -> (Output, String) {
    run_demo(hapax(), flags)
}

fn run_demo(mut command: Command, flags: &[&str]) -> (Output, String) {
    // A demo whose audit fails keeps its files.
    let temporary = tempfile::tempdir().unwrap();
    let output = command.env("TMPDIR", temporary.path()).arg("demo").args(flags).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

/// Every count of the audit below this name, and nothing but its remark.
fn counted(text: &str, name: &str) -> u64 {
    let line =
        text.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    let count = line.trim_start()[name.len()..].split_whitespace().next().unwrap();
    count.replace(',', "").parse().unwrap_or_else(|_| panic!("{name}: {line}"))
}

const DAMAGES: [&str; 5] = ["duplicates", "lost", "wrong", "stuck", "out of order"];

#[test]
fn the_audit_of_all_layers_holds_while_every_process_is_killed_and_paused() {
    let (output, text) = demo(&["--payments", "300", "--crashes", "4", "--seed", "7"]);
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for damage in DAMAGES {
        assert_eq!(counted(&text, damage), 0, "{damage}: {text}");
    }
    assert!(counted(&text, "accepted") > 250 && text.contains("The audit holds"), "{text}");
    assert_eq!(counted(&text, "charges"), counted(&text, "receipts"), "{text}");
    for process in ["service", "gateway 1", "worker 2", "relay 1", "consumer 2"] {
        assert_eq!(counted(&text, &format!("{process} killed")), 2, "{text}");
    }
    let [repeated, redelivered] = ["a client sends its request again", "the queue delivers a message twice"];
    assert!(counted(&text, repeated) > 300 && counted(&text, redelivered) > 0, "{text}");
}

#[test]
fn without_the_gate_the_audit_finds_payments_that_were_charged_twice() {
    let (output, text) = demo(&["--payments", "150", "--crashes", "2", "--seed", "7", "--without", "gate"]);
    assert_eq!(output.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(counted(&text, "duplicates") > 0 && text.contains("FAILS without the gate"), "{text}");
}

#[test]
fn without_the_ledger_the_audit_finds_messages_that_were_charged_twice() {
    let (output, text) = demo(&["--payments", "150", "--crashes", "2", "--seed", "7", "--without", "ledger"]);
    assert_eq!(output.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(counted(&text, "duplicates") > 0 && text.contains("FAILS without the ledger"), "{text}");
}

#[test]
fn without_the_outbox_the_audit_finds_charges_whose_events_were_lost() {
    let (output, text) = demo(&["--payments", "300", "--crashes", "6", "--seed", "7", "--without", "outbox"]);
    assert_eq!(output.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(counted(&text, "lost") > 0 && text.contains("FAILS without the outbox"), "{text}");
    assert_eq!(counted(&text, "duplicates"), 0, "{text}");
}

#[test]
fn an_unusable_store_exits_with_cannot_start() {
    let unreachable = cfg!(feature = "redis").then_some(("redis://127.0.0.1:1", "cannot use the store: "));
    let absent = ("sqlite:///no/such/folder/hapax.db", "exited by itself, exit status: 3");
    for (store, why) in unreachable.into_iter().chain([absent]) {
        let (output, text) = demo(&["--payments", "200", "--seed", "7", "--store", store]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{store}: {text}{errors}");
        assert!(errors.matches("Connection refused").count() <= 1, "the cause is printed twice: {errors}");
        assert!(errors.contains(why) && !text.contains("Audit"), "{store}: {text}{errors}");
        assert!(!errors.contains("\\n"), "the log of the process is not in one line: {errors}");
    }
}

#[test]
fn more_crashes_than_payments_are_refused() {
    let (output, text) = demo(&["--payments", "5", "--crashes", "6"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.is_empty(), "{text}{errors}");
    assert!(errors.contains("--crashes: 6 is more than --payments 5"), "{errors}");
}

#[test]
fn a_run_on_servers_needs_a_store_a_database_and_a_broker() {
    let [store, database, broker] = ["redis://127.0.0.1:1", "postgres://127.0.0.1:1/x", "nats://127.0.0.1:1"];
    for flags in [
        &["--broker", broker][..],
        &["--store", store, "--database", database],
        &["--store", store, "--database", database, "--broker", broker, "--without", "gate"],
    ] {
        let (output, text) = demo(flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {text}");
    }
    for (database, broker, why) in [
        ("postgres://127.0.0.1:1/x?sslmode=require", broker, "connects without TLS"),
        ("sqlite:///tmp/x.db", broker, "postgres://HOST/DATABASE"),
        (database, "gopher://127.0.0.1", "no broker for the scheme"),
        (database, "nats://127.0.0.1/stream", "streams of its own"),
    ] {
        let (output, text) = demo(&["--store", store, "--database", database, "--broker", broker]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && errors.contains(why), "{text}{errors}");
        assert!(text.is_empty(), "nothing has begun: {text}");
    }
}

#[test]
fn two_gateways_cannot_share_a_memory_store() {
    let (output, text) = demo(&["--payments", "20", "--store", "memory:"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.is_empty(), "{text}{errors}");
    assert!(errors.contains("two gateways cannot share memory:"), "{errors}");
}

/// Returns the processes with this parent.
#[cfg(target_os = "linux")]
fn children(parent: u32) -> Vec<u32> {
    let found = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    found.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// Whether the process runs. A zombie does not, and the test may not be the process that collects it.
#[cfg(target_os = "linux")]
fn is_running(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_killed_demo_takes_its_processes_with_it() {
    // A killed demo leaves its files behind.
    let (mut command, temporary) = (hapax(), tempfile::tempdir().unwrap());
    command.env("TMPDIR", temporary.path());
    command.args(["demo", "--payments", "100000", "--crashes", "0"]).stdout(std::process::Stdio::null());
    let mut demo = command.spawn().unwrap();
    let mut processes = Vec::new();
    until("the demo has all its processes", async || {
        processes = children(demo.id());
        processes.len() == 9
    })
    .await;
    demo.kill().unwrap();
    demo.wait().unwrap();
    until("the processes have ended", async || processes.iter().all(|process| !is_running(*process))).await;
}

/// The audit must also find bugs of the gateway.
#[cfg(feature = "chaos")]
#[test]
fn a_gateway_with_a_published_bug_fails_the_audit() {
    let version = hapax().arg("--version").output().unwrap().stdout;
    assert!(String::from_utf8(version).unwrap().contains("chaos"), "the version of a chaos build must name chaos");
    for bug in ["payload_ignored", "tenant_ignored"] {
        let mut command = hapax();
        command.env("HAPAX_CHAOS", bug);
        let (output, text) = run_demo(command, &["--payments", "100", "--crashes", "1", "--seed", "7"]);
        assert!(output.status.code() == Some(1) && text.contains("The audit FAILS"), "{bug}: {text}");
    }
}
