use std::process::Output;

use crate::harness::hapax;

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
