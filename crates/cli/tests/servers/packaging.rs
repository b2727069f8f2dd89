//! The assets, checked by the programs that will read them. A program that is missing here is named in the report.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hapax_testkit::servers::required;
use libtest_mimic::{Completion, Failed, Trial};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        Trial::ignorable_test("packaging::promtool_accepts_the_alerts", promtool_accepts_the_alerts),
        Trial::ignorable_test(
            "packaging::alerts_fire_when_they_matter_and_only_then",
            alerts_fire_when_they_matter_and_only_then,
        ),
        Trial::ignorable_test("packaging::systemd_accepts_the_units", systemd_accepts_the_units),
        Trial::ignorable_test("packaging::the_image_has_a_new_enough_compiler", the_image_has_a_new_enough_compiler),
    ]
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the root of the checkout")
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

fn promtool_accepts_the_alerts() -> Result<Completion, Failed> {
    promtool(["check", "rules"], "assets/alerts.yml")
}

/// The file has series of metrics, and the alerts that fire on them.
fn alerts_fire_when_they_matter_and_only_then() -> Result<Completion, Failed> {
    promtool(["test", "rules"], "crates/cli/tests/servers/alerts.yml")
}

fn promtool(command: [&str; 2], file: &str) -> Result<Completion, Failed> {
    if let Err(missing) = required("promtool") {
        return missing.outcome();
    }
    let script = root().join("fixtures/promtool/server.sh");
    let output = Command::new(script).args(command).arg(root().join(file)).output()?;
    assert!(output.status.success() && said(&output).contains("SUCCESS"), "{}", said(&output));
    Ok(Completion::Completed)
}

/// Checks the units with this binary in place of the installed one.
fn systemd_accepts_the_units() -> Result<Completion, Failed> {
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        return Ok(Completion::ignored_with("systemd-analyze is not on PATH"));
    };
    assert!(version.status.success(), "{}", said(&version));
    let directory = tempfile::tempdir()?;
    for name in ["gateway", "worker", "relay"] {
        let unit = std::fs::read_to_string(root().join(format!("assets/systemd/hapax-{name}.service")))?;
        let binary = env!("CARGO_BIN_EXE_hapax");
        assert!(unit.contains(&format!("ExecStart=/usr/bin/hapax {name} ")), "{name}");
        let unit = unit.replace("/usr/bin/hapax", binary).replace("Documentation=", "#Documentation=");
        let path = directory.path().join(format!("hapax-{name}.service"));
        std::fs::write(&path, unit)?;
        let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output()?;
        assert!(output.status.success() && said(&output).trim().is_empty(), "{name}: {}", said(&output));
        let output = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--threshold=20"])
            .arg(&path)
            .output()?;
        assert!(output.status.success(), "{name} is exposed: {}", said(&output));
    }
    Ok(Completion::Completed)
}

/// No test builds the image: that takes minutes, and a registry.
fn the_image_has_a_new_enough_compiler() -> Result<Completion, Failed> {
    let text = std::fs::read_to_string(root().join("Containerfile"))?;
    let rust = text.split("FROM rust:").nth(1).and_then(|rest| rest.split('-').next()).unwrap_or_default();
    let manifest = std::fs::read_to_string(root().join("Cargo.toml"))?;
    let oldest = manifest.split("rust-version = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    let number = |version: &str| version.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>();
    assert!(!oldest.is_empty() && number(rust) >= number(oldest), "Rust {rust} is older than {oldest}");
    assert!(text.contains("--package hapax-cli --features full") && text.contains("USER 10001"), "{text}");
    Ok(Completion::Completed)
}
