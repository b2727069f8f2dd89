use std::process::Output;

use crate::harness::{hapax, until};

fn demo(flags: &[&str]) -> (Output, String) {
    let output = hapax().arg("demo").args(flags).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

#[test]
fn the_audit_holds_with_the_gateway() {
    let (output, text) = demo(&["--payments", "200", "--crashes", "3", "--seed", "7"]);
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("The audit holds"), "{text}");
}

#[test]
fn the_audit_fails_without_the_gateway() {
    let (output, text) = demo(&["--payments", "200", "--seed", "7", "--direct"]);
    assert_eq!(output.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("were charged more than once"), "{text}");
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
        assert!(errors.contains(why) && !text.contains("audit"), "{store}: {text}{errors}");
    }
}

#[test]
fn a_failed_audit_of_a_memory_store_has_its_reason() {
    let reason = "The store memory: loses its records whenever the gateway is killed.";
    let (output, text) = demo(&["--payments", "200", "--crashes", "3", "--seed", "7", "--store", "memory:"]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let (_, verdict) = text.split_once("The audit FAILS").unwrap();
    assert!(verdict.contains(reason), "{text}");
    let (output, text) = demo(&["--payments", "50", "--crashes", "0", "--seed", "7", "--store", "memory:"]);
    assert!(output.status.success() && !text.contains(reason), "{text}");
}

#[test]
fn more_crashes_than_payments_are_refused() {
    let (output, text) = demo(&["--payments", "5", "--crashes", "6"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.is_empty(), "{text}{errors}");
    assert!(errors.contains("--crashes: 6 is more than --payments 5"), "{errors}");
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
async fn a_killed_demo_takes_its_gateway_with_it() {
    // A killed demo leaves its files behind.
    let (mut command, temporary) = (hapax(), tempfile::tempdir().unwrap());
    command.env("TMPDIR", temporary.path());
    command.args(["demo", "--payments", "100000", "--crashes", "0"]).stdout(std::process::Stdio::null());
    let mut demo = command.spawn().unwrap();
    let mut gateways = Vec::new();
    until("the demo has a gateway", async || {
        gateways = children(demo.id());
        !gateways.is_empty()
    })
    .await;
    demo.kill().unwrap();
    demo.wait().unwrap();
    until("the gateway has ended", async || gateways.iter().all(|gateway| !is_running(*gateway))).await;
}

/// The audit must also find bugs of the gateway.
#[cfg(feature = "chaos")]
#[test]
fn a_gateway_with_a_published_bug_fails_the_audit() {
    let version = hapax().arg("--version").output().unwrap().stdout;
    assert!(String::from_utf8(version).unwrap().contains("chaos"), "the version of a chaos build must name chaos");
    for bug in ["takeover_under_hold", "tenant_ignored"] {
        let output = hapax()
            .args(["demo", "--payments", "200", "--crashes", "3", "--seed", "7"])
            .env("HAPAX_CHAOS", bug)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(1) && text.contains("The audit FAILS"), "{bug}: {text}");
    }
}
