use std::process::Output;

use crate::world::hapax;

fn demo(flags: &[&str]) -> (Output, String) {
    let output = hapax().arg("demo").args(flags).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

#[test]
fn behind_the_gateway_a_hostile_client_and_crashes_do_no_harm() {
    let (output, text) = demo(&["--payments", "200", "--crashes", "3", "--seed", "7"]);
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("The audit holds"), "{text}");
}

#[test]
fn without_the_gateway_the_same_traffic_fails_the_audit() {
    let (output, text) = demo(&["--payments", "200", "--seed", "7", "--direct"]);
    assert_eq!(output.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("were charged more than once"), "{text}");
}

/// The audit of the demonstration must be able to fail with a gateway in between, too.
#[cfg(feature = "chaos")]
#[test]
fn a_gateway_with_a_published_bug_fails_the_audit() {
    let version = hapax().arg("--version").output().unwrap().stdout;
    assert!(String::from_utf8(version).unwrap().contains("chaos"), "a build that can misbehave says so");
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
