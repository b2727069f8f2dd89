//! The manifests for Kubernetes, read line by line: their arguments are those of this binary, which serves their ports
//! and probes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::harness::hapax;

struct Manifest(String);

impl Manifest {
    fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../assets/kubernetes/{name}.yaml"));
        Self(fs::read_to_string(path).unwrap())
    }

    /// The lines after this one that are indented further, without their indentation.
    fn below(&self, head: &str) -> Vec<&str> {
        let indent = |line: &str| line.len() - line.trim_start().len();
        let mut lines = self.0.lines().skip_while(|line| line.trim() != head);
        let first = indent(lines.next().unwrap_or_else(|| panic!("no {head}")));
        lines.take_while(|line| indent(line) > first).map(str::trim).collect()
    }

    fn arguments(&self) -> Vec<&str> {
        self.below("args:").into_iter().filter_map(|line| line.strip_prefix("- ")).collect()
    }

    /// The variables, with their values or the keys of the secret that has them.
    fn variables(&self) -> BTreeMap<String, String> {
        let lines = self.below("env:").join(" ");
        let pairs = lines.split("name: HAPAX_").skip(1).filter_map(|text| {
            let name = text.split([',', ' ']).next()?;
            let value = text.split(", value: ").nth(1).or_else(|| text.split(", key: ").nth(1))?;
            Some((name.to_owned(), value.split('}').next()?.to_owned()))
        });
        pairs.collect()
    }

    /// The container's ports, by name.
    fn ports(&self) -> BTreeMap<String, u16> {
        let port = |line: &str| {
            let (name, port) = line.strip_prefix("- {name: ")?.split_once(", containerPort: ")?;
            Some((name.to_owned(), port.trim_end_matches('}').parse().ok()?))
        };
        self.0.lines().map(str::trim).filter_map(port).collect()
    }
}

#[test]
fn each_manifest_of_kubernetes_starts_this_binary_and_asks_its_pages() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "a-token-of-the-test\n").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o400)).unwrap();
    let urls = BTreeMap::from([
        ("store", "postgres://127.0.0.1:9/records"),
        ("source", "sqlite://shop.db?queue=q"),
        ("database", "postgres://127.0.0.1:9/shop"),
        ("sink", "sqlite://other.db?queue=q"),
    ]);
    for name in ["gateway", "worker", "relay"] {
        let manifest = Manifest::read(name);
        let arguments = manifest.arguments();
        assert_eq!(arguments.first(), Some(&name));
        let mut command = hapax();
        command
            .current_dir(directory.path())
            .args(arguments.iter().map(|argument| argument.replace("/etc/hapax/admin/token", token.to_str().unwrap())));
        let variables = manifest.variables();
        assert!(variables.len() >= 2, "{name}: {variables:?}");
        for (variable, value) in variables {
            let value = if variable == "DATA_DIR" { directory.path().to_str().unwrap() } else { urls[&*value] };
            command.env(format!("HAPAX_{variable}"), value);
        }
        let output = command.arg("--check").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        // The check of a relay opens its database, which is not there.
        let expected = if name == "relay" { 3 } else { 0 };
        assert_eq!(output.status.code(), Some(expected), "{name}: {said}");
        let ports = manifest.ports();
        for (flag, port) in [("--listen=0.0.0.0:", "http"), ("--admin=0.0.0.0:", "admin")] {
            let listened = arguments.iter().find_map(|argument| argument.strip_prefix(flag));
            assert_eq!(listened.map(|port| port.parse().unwrap()), ports.get(port).copied(), "{name}: {flag}");
        }
        for (probe, page) in [("livenessProbe:", "/healthz"), ("readinessProbe:", "/readyz")] {
            let asked = format!("httpGet: {{path: {page}, port: admin}}");
            assert!(manifest.below(probe).contains(&&*asked), "{name}: {probe}");
        }
    }
}
