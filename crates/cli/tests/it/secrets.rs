//! The secret of a namespace and the admin token: the format and mode of their files, and that a secret never changes.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::config::check;
use crate::harness::{Api, Gateway, hapax, sqlite};

/// Writes a secret to a file with this mode.
fn write_secret(directory: &Path, name: &str, content: &[u8], mode: u32) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn a_secret_of_wrong_length_or_mode_is_refused_and_never_printed() {
    let directory = tempfile::tempdir().unwrap();
    for (name, content, mode, remedy) in [
        ("short", &b"0123456789"[..], 0o600, "holds 10 bytes; a secret is 32 bytes or 64 hex"),
        ("open", &[b'7'; 32], 0o604, "chmod 600"),
        ("shared", &[b'7'; 32], 0o620, "chmod 600"),
    ] {
        let path = write_secret(directory.path(), name, content, mode).display().to_string();
        let (code, _, error) = check(directory.path(), &[], &["--secrets", &path]);
        assert!(code == 2 && error.contains(remedy) && error.starts_with("hapax: --secrets: "), "{name}: {error}");
        assert!(!error.contains("77777") && !error.contains("01234"), "{error}");
    }
    let path = write_secret(directory.path(), "good", &[b'7'; 32], 0o640).display().to_string();
    let (code, shown, _) = check(directory.path(), &[], &["--secrets", &path]);
    assert!(code == 0 && shown.contains(&path) && !shown.contains("77777"), "{shown}");
    let (code, _, error) = check(directory.path(), &[], &["--secrets", "absent"]);
    assert!(code == 2 && error.contains("there is no such file"), "{error}");
}

#[test]
fn a_short_or_readable_admin_token_is_refused_and_never_printed() {
    let directory = tempfile::tempdir().unwrap();
    for (name, content, mode, remedy) in [
        ("short", &b"0123456789\n"[..], 0o600, "holds no token; it must be 16 or more visible characters"),
        ("blank", b"01234567 89012345678", 0o600, "holds no token"),
        ("open", b"0123456789012345678", 0o604, "chmod 600"),
    ] {
        let path = write_secret(directory.path(), name, content, mode).display().to_string();
        let (code, _, error) = check(directory.path(), &[], &["--admin-token-file", &path]);
        assert!(code == 2 && error.contains(remedy), "{name}: {error}");
        assert!(error.starts_with("hapax: --admin-token-file: ") && !error.contains("01234"), "{error}");
    }
    let path = write_secret(directory.path(), "good", b"0123456789012345678\n", 0o640).display().to_string();
    let (code, shown, _) = check(directory.path(), &[], &["--admin-token-file", &path]);
    assert!(code == 0 && shown.contains(&path) && !shown.contains("01234"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_keeps_its_first_secret() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = sqlite(directory.path());
    let first = write_secret(directory.path(), "first", &[1; 32], 0o600).display().to_string();
    let other = write_secret(directory.path(), "other", &[2; 32], 0o600).display().to_string();
    for start in 0..2 {
        let gateway = Gateway::start(api.address, &store, &["--secrets", &first]).await;
        let got = gateway.post("/charges", "k", "{}").await.unwrap();
        assert_eq!((got.body.as_str(), got.is_replayed()), ("answer 1", start > 0));
    }
    // The address is taken, so a gateway that wrongly accepts the secret exits as well, and the test does not hang.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (flags, remedy) in
        [(&["--secrets", &*other][..], "has another secret"), (&[], "has a secret; name its file with --secrets")]
    {
        let mut command = hapax();
        command.args(["gateway", "--upstream", "http://127.0.0.1:9", "--store", &store, "--listen", &taken]);
        let output = command.args(flags).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(3) && error.contains(remedy), "{flags:?}: {error}");
    }
    Gateway::start(api.address, &store, &["--secrets", &other, "--namespace", "another"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_and_tenant_rule_change_the_operation_ids() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let secret = write_secret(directory.path(), "secret", &[1; 32], 0o600).display().to_string();
    for flags in [&[][..], &["--tenant", "none"], &["--secrets", &secret], &["--secrets", &secret, "--tenant", "none"]]
    {
        let gateway = Gateway::start(api.address, "memory:", flags).await;
        gateway.post("/charges", "k", "{}").await.unwrap();
    }
    let mut operations: Vec<_> = api.seen().into_iter().map(|seen| seen.headers["hapax-operation"].clone()).collect();
    operations.sort();
    operations.dedup();
    assert_eq!(operations.len(), 4);
}
