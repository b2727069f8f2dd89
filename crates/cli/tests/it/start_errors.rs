//! The error of a gateway that cannot start names the wrong value and its true cause.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::config::{check, directory_with};
use crate::harness::hapax;

#[test]
fn a_wrong_value_is_quoted() {
    for (flag, value) in [
        ("--lease", "30"),
        ("--lease", "500ms"),
        ("--listen", "localhost"),
        ("--max-in-flight", "many"),
        ("--max-in-flight", "0"),
        ("--max-stored-body", "1MB"),
        ("--tenant", "nobody"),
        ("--tenant", "header:a b"),
        ("--key-from", "cookie:x"),
        ("--on-lapse", "retyr"),
        ("--upstream", "ftp://api"),
        ("--upstream-timeout", "0s"),
        ("--store", "hapax.db"),
        ("--store", "mysql://cache.example"),
        ("--store-header", "set-cookie"),
        ("--secrets", "absent"),
        ("--admin-token-file", "absent"),
    ] {
        let (code, _, error) = check(Path::new("."), &[], &[flag, value]);
        assert_eq!(code, 2, "{flag} {value}: {error}");
        assert!(error.starts_with(&format!("hapax: {flag}: {value:?}: ")), "{error}");
    }
    for (field, value) in [("method", "'post'"), ("path", "'/{*a}/b'"), ("final", "99"), ("lease", "'x'")] {
        let path = if field == "path" { "" } else { "path = '/a'\n" };
        let directory = directory_with(&format!("[[route]]\n{path}{field} = {value}\n"));
        let (code, _, error) = check(directory.path(), &[], &["--config", "hapax.toml"]);
        let quoted = format!("{field}: \"{}\": ", value.trim_matches('\''));
        assert!(code == 2 && error.contains(&quoted), "{error}");
    }
}

#[test]
fn a_wrong_value_with_a_password_is_not_quoted() {
    for (flag, value) in [
        ("--store", "redis://user:hush@cache.example/zwei"),
        ("--store", "redis://:hush?x@cache.example"),
        ("--store", "redis://cache.example?pass=hush"),
        ("--store", "redis://user:hush:6379/0"),
        ("--store", "redis://:hush:6379"),
        ("--store", "redis:/user:hush:6379/0"),
        ("--store", "redis:user:hush"),
        ("--store", "redis//user:hush"),
        ("--store", "redis//hush@cache.example:6379"),
        ("--store", "postgres://user:hush"),
        ("--store", "postgres://user:hush@db.example?pool=3"),
        ("--store", "postgres://user:hu#hush@db.example"),
        ("--store", "postgres://db.example?password=hush"),
        ("--store", "redis://user:12?hush:6379/0"),
        ("--store", "redis://user:12?hush"),
        ("--listen", "redis://user:hush:6379"),
        ("--upstream", "http://user:hush@api.example"),
        ("--upstream", "http://user:hush:80"),
        ("--upstream", "http//user:hush"),
    ] {
        let (code, _, error) = check(Path::new("."), &[], &[flag, value]);
        assert!(code == 2 && !error.contains("hush"), "{error}");
    }
}

#[test]
fn a_file_that_cannot_be_read_has_its_true_cause() {
    let directory = tempfile::tempdir().unwrap();
    let binary = directory.path().join("binary");
    fs::write(&binary, [0xff; 32]).unwrap();
    let (folder, binary) = (directory.path().to_str().unwrap(), binary.to_str().unwrap());
    const DIRECTORY: &str = "this is a directory; name a file";
    const ABSENT: &str = "there is no such file";
    for (flags, cause) in [
        (&["--config", folder][..], DIRECTORY),
        (&["--config", "absent"], ABSENT),
        (&["--config", binary], "the file is not UTF-8 text"),
        (&["--secrets", folder], DIRECTORY),
        (&["--secrets", "absent"], ABSENT),
        (&["--admin-token-file", folder], DIRECTORY),
        (&["--admin-token-file", "absent"], ABSENT),
        (&["--tls-cert", "absent", "--tls-key", folder], DIRECTORY),
    ] {
        let (code, _, error) = check(Path::new("."), &[], flags);
        assert!(code == 2 && error.contains(cause), "{flags:?}: {error}");
        assert!(!error.contains("chmod"), "{flags:?}: {error}");
    }
    for (file, cause) in [("absent", ABSENT), (folder, DIRECTORY)] {
        let (code, error) = start(&["--upstream", "https://127.0.0.1:9", "--upstream-ca", file, "--store", "memory:"]);
        assert!(code == Some(3) && error.contains(&format!("--upstream-ca: {file}: {cause}")), "{file}: {error}");
    }
}

#[test]
fn one_token_in_both_files_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, token: &str| {
        let path = directory.path().join(name);
        fs::write(&path, token).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    };
    let [reads, same, other] =
        [("reads", "0123456789abcdef"), ("same", "0123456789abcdef\n"), ("other", "fedcba9876543210")]
            .map(|(name, token)| file(name, token));
    for (writes, expected) in [(same, 2), (other, 0)] {
        let flags = ["--admin-token-file", &reads, "--admin-write-token-file", &writes];
        let (code, _, error) = check(Path::new("."), &[], &flags);
        assert_eq!(code, expected, "{error}");
        assert_eq!(error.contains("hold one token"), expected == 2, "{error}");
    }
}

#[test]
fn a_check_notes_an_absent_key_or_certificate_and_the_start_names_its_setting() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path().join("there.pem");
    let key = rcgen::generate_simple_self_signed(vec!["a".into()]).unwrap();
    fs::write(&there, key.cert.pem()).unwrap();
    let there = there.to_str().unwrap();
    for (cert, key, setting) in [(there, "nokey.pem", "--tls-key"), ("nocert.pem", there, "--tls-cert")] {
        fs::set_permissions(there, fs::Permissions::from_mode(0o600)).unwrap();
        let absent = if key == there { cert } else { key };
        let tls = ["--tls-cert", cert, "--tls-key", key];
        let (code, shown, error) = check(Path::new("."), &[], &tls);
        assert_eq!(code, 0, "the check needs the files: {error}");
        let note = format!("Note: {setting}: {absent}: there is no such file. The gateway needs it to start.\n");
        assert!(shown.matches("Note: ").count() == 1 && shown.contains(&note), "{shown}");
        let (code, error) = start(&[&tls[..], &["--store", "memory:"]].concat());
        let reason = format!("hapax: {setting}: {absent}: there is no such file");
        assert!(code == Some(3) && error.contains(&reason), "{error}");
    }
}

/// Starts a gateway that must exit by itself, and returns its exit code and standard error.
fn start(flags: &[&str]) -> (Option<i32>, String) {
    // The address is taken, so a gateway without the expected error exits as well, and the test does not hang.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let home = tempfile::tempdir().unwrap();
    let mut command = hapax();
    command.env("HAPAX_LISTEN", taken.local_addr().unwrap().to_string()).env("HOME", home.path());
    let output = command.env("HAPAX_UPSTREAM", "http://127.0.0.1:9").arg("gateway").args(flags).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn an_address_that_cannot_be_bound_has_its_true_cause() {
    // TEST-NET-3 of RFC 5737: no host has such an address.
    let (code, error) = start(&["--store", "memory:", "--listen", "203.0.113.7:8080"]);
    assert!(code == Some(3) && error.contains("203.0.113.7:8080: it is not an address of this host"), "{error}");
    let (code, error) = start(&["--store", "memory:"]);
    assert!(code == Some(3) && error.contains("another process listens there"), "{error}");
}

#[cfg(feature = "redis")]
#[test]
fn an_http_server_in_place_of_a_store_is_named() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in server.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    for (scheme, name) in [("redis", "Redis"), ("postgres", "PostgreSQL")] {
        let (code, error) = start(&["--store", &format!("{scheme}://{address}")]);
        let named = format!("the server does not speak the protocol of {name}");
        assert!(code == Some(3) && error.contains(&named), "{error}");
    }
}
