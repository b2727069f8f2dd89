//! The modes of the files that the gateway creates, and of the files with secrets that it reads.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use http::Request;
use http_body_util::Full;

use crate::config::check;
use crate::harness::{Api, Gateway, free_address, hapax, sqlite};
use crate::tls::Pki;

/// Returns a command that starts the gateway under this umask.
fn under_umask(umask: &str) -> Command {
    let gateway = hapax();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("umask {umask}; exec \"$0\" \"$@\"")]).arg(gateway.get_program()).env_clear();
    command.envs(gateway.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// Lists all files below this directory, each with its mode.
fn modes(directory: &Path) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(modes(&path));
        } else {
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            found.push((path.display().to_string(), mode));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn files_with_answers_belong_to_their_owner_alone_under_every_umask() {
    let api = Api::start().await;
    for umask in ["000", "022", "277"] {
        let directory = tempfile::tempdir().unwrap();
        let upstream = format!("http://{}", api.address);
        let log = directory.path().join("hapax.log").display().to_string();
        let flags = ["--upstream", &upstream, "--log-file", &log];
        let gateway = Gateway::run(under_umask(umask), &sqlite(directory.path()), &flags, free_address()).await;
        assert_eq!(gateway.post("/charges", "key-1", "{}").await.unwrap().status, 201);
        // A write of nothing is in the audit file, too.
        assert_eq!(release_nothing(&gateway).await.0, 404);
        let modes = modes(directory.path());
        for name in ["hapax.db", "hapax.db-wal", "hapax.db-shm", "hapax.db.spill/", "audit.jsonl", "hapax.log"] {
            assert!(modes.iter().any(|(path, _)| path.contains(name)), "no {name}: {modes:?}");
        }
        assert!(modes.iter().all(|(_, mode)| *mode == 0o600), "umask {umask}: {modes:?}");
    }
}

/// Releases a record that does not exist. Returns the status and the answer.
async fn release_nothing(gateway: &Gateway) -> (u16, String) {
    let address = format!("http://{}/api/v1/records/{}/release", gateway.admin, "0".repeat(32));
    let request = Request::post(address).header("content-type", "application/json");
    let answer = gateway.send(request.body(Full::from(r#"{"token":1}"#)).unwrap()).await.unwrap();
    (answer.status.as_u16(), answer.body)
}

#[test]
fn a_log_file_that_others_may_write_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hapax.log");
    // A gateway that accepts the file ends, too.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for mode in [0o620, 0o602, 0o666] {
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let flags = ["gateway", "--store", "memory:", "--upstream", "http://127.0.0.1:9", "--listen", &taken];
        let output = hapax().args(flags).arg("--log-file").arg(&file).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(3) && error.contains("others may write to it"), "{mode:o}: {error}");
        assert_eq!(fs::read(&file).unwrap(), b"", "{mode:o}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_file_that_others_may_write_or_choose_is_refused() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &[]).await;
    let (audit, other) = (directory.path().join("hapax.db.spill/audit.jsonl"), directory.path().join("other"));
    fs::write(&other, "").unwrap();
    for (mode, reason) in [(0o620, "others may write to it"), (0o602, "others may write to it"), (0o600, "link")] {
        if reason == "link" {
            fs::remove_file(&audit).unwrap();
            std::os::unix::fs::symlink(&other, &audit).unwrap();
        } else {
            fs::write(&audit, "").unwrap();
            fs::set_permissions(&audit, fs::Permissions::from_mode(mode)).unwrap();
        }
        let (status, answer) = release_nothing(&gateway).await;
        assert!(status == 500 && answer.contains("audit-failed") && answer.contains(reason), "{mode:o}: {answer}");
        let listed = gateway.get(gateway.admin, "/api/v1/audit").await.unwrap();
        assert!(listed.status == 500 && listed.body.contains(reason), "{mode:o}: {}", listed.body);
    }
    assert_eq!(fs::read(&other).unwrap(), b"");
}

#[test]
fn a_tls_key_that_everybody_can_read_is_refused() {
    let pki = Pki::new();
    let (cert, key) = (pki.path("cert"), pki.path("key"));
    let flags = ["--store", "memory:", "--tls-cert", &cert, "--tls-key", &key];
    for (mode, is_accepted) in [(0o644, false), (0o604, false), (0o620, false), (0o640, true), (0o600, true)] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let (code, _, error) = check(Path::new("."), &[], &flags);
        assert_eq!(code, if is_accepted { 0 } else { 2 }, "{mode:o}: {error}");
        let remedy = format!("can be read by everybody or written by others; run `chmod 600 {key}`");
        let is_named = error.starts_with("hapax: --tls-key: ") && error.contains(&remedy);
        assert!(is_accepted || is_named, "{mode:o}: {error}");
    }
}

#[test]
fn a_secret_that_kubernetes_mounts_for_everybody_is_refused_with_the_setting_of_the_volume() {
    // Like such a volume: the name is a link into a folder of this version, and its files have the mode of the volume.
    let volume = tempfile::tempdir().unwrap();
    let path = |name: &str| volume.path().join(name);
    fs::create_dir(path("..2026")).unwrap();
    fs::write(path("..2026/token"), "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef").unwrap();
    std::os::unix::fs::symlink("..2026", path("..data")).unwrap();
    std::os::unix::fs::symlink("..data/token", path("token")).unwrap();
    let file = path("token").display().to_string();
    for flag in ["--secrets", "--admin-token-file"] {
        for (mode, expected) in [(0o644, 2), (0o440, 0), (0o400, 0)] {
            fs::set_permissions(path("..2026/token"), fs::Permissions::from_mode(mode)).unwrap();
            let (code, _, error) = check(Path::new("."), &[], &["--store", "memory:", flag, &file]);
            assert_eq!(code, expected, "{flag} {mode:o}: {error}");
            assert!(code == 0 || error.contains("set `defaultMode: 0400` in the volume"), "{error}");
        }
    }
}

#[cfg(feature = "redis")]
#[test]
fn a_password_file_in_the_url_that_everybody_can_read_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    fs::write(&file, "hush-hush").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let store = format!("redis://payments@127.0.0.1:1?password-file={}", file.display());
    let mut command = hapax();
    command.args(["gateway", "--upstream", "http://127.0.0.1:9", "--store", &store, "--listen", &taken]);
    let output = command.env("HOME", directory.path()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    let remedy = format!("chmod 600 {}", file.display());
    assert!(output.status.code() == Some(3) && error.contains(&remedy), "{error}");
    assert!(!error.contains("hush"), "{error}");
}
