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

#[test]
fn a_store_that_cannot_be_used_is_no_failure_of_the_audit_but_cannot_start() {
    let unreachable = cfg!(feature = "redis").then_some(("redis://127.0.0.1:1", "cannot use the store: "));
    let absent = ("sqlite:///no/such/folder/hapax.db", "ended by itself, exit status: 3");
    for (store, why) in unreachable.into_iter().chain([absent]) {
        let (output, text) = demo(&["--payments", "200", "--seed", "7", "--store", store]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{store}: {text}{errors}");
        assert!(errors.matches("Connection refused").count() <= 1, "said twice: {errors}");
        assert!(errors.contains(why) && !text.contains("audit"), "{store}: {text}{errors}");
    }
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
