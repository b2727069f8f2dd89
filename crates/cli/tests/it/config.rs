//! What the gateway is told: by whom it is, what is refused, and that it is done.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tempfile::TempDir;

use crate::world::{Api, Gateway, Got, free_address, hapax, sqlite, until};

/// A directory with this `hapax.toml`.
fn configured(file: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("hapax.toml"), file).unwrap();
    directory
}

/// Exit code, standard output and standard error of `hapax gateway --check`.
fn check(directory: &Path, variables: &[(&str, &str)], flags: &[&str]) -> (i32, String, String) {
    let mut command = hapax();
    command.current_dir(directory).env("HAPAX_UPSTREAM", "http://127.0.0.1:9").envs(variables.iter().copied());
    let output = command.args(["gateway", "--check"]).args(flags).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// The error of a file that is refused with exit code 2.
fn refusal(file: &str, flags: &[&str]) -> String {
    let directory = configured(file);
    let (code, _, error) = check(directory.path(), &[], &[&["--config", "hapax.toml"], flags].concat());
    assert_eq!(code, 2, "{file}\n{error}");
    error
}

#[test]
fn of_flag_variable_file_and_default_the_first_that_speaks_is_heard() {
    // One of each kind: flag, table and key, the default, and what file, variable and flag say.
    for (flag, place, default, said) in [
        ("lease", ("policy", "lease"), "30s", ["2s", "3s", "4s"]),
        ("max-in-flight", ("gateway", "max-in-flight"), "4096", ["2000", "3000", "4000"]),
        ("max-stored-body", ("policy", "max-stored-body"), "1MiB", ["2MiB", "3KiB", "4"]),
        ("on-lapse", ("policy", "on-lapse"), "hold", ["retry", "hold", "retry"]),
        ("admin", ("gateway", "admin"), "127.0.0.1:8081", ["127.0.0.1:1", "127.0.0.1:2", "[::1]:3"]),
        ("store", ("store", "url"), "sqlite://hapax.db", ["memory:", "sqlite://2.db", "sqlite://3.db"]),
        ("data-dir", ("store", "data-dir"), "hapax.db.spill", ["a", "b", "c"]),
        ("tenant", ("gateway", "tenant"), "authorization", ["none", "header:x-b", "header:x-c"]),
        ("key-from", ("policy", "key-from"), "header:Idempotency-Key", ["json:/a", "header:b", "json:/c"]),
        ("store-header", ("policy", "store-header"), "none", ["x-a,x-b", "x-c", "x-d,x-e"]),
    ] {
        let directory = configured(&format!("# one\n[{}]\n{} = '{}'\n", place.0, place.1, said[0]));
        let variable = format!("HAPAX_{}", flag.to_uppercase().replace('-', "_"));
        let (variables, flags) = ([(&*variable, said[1])], [format!("--{flag}"), said[2].into()]);
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let file = ["--config", "hapax.toml"];
        for (variables, flags, value, source) in [
            (&[][..], &[][..], default, "default"),
            (&[], &file, said[0], "hapax.toml:3"),
            (&variables, &file, said[1], &variable),
            (&variables, &[&file[..], &flags].concat(), said[2], flags[0]),
        ] {
            let (code, shown, error) = check(directory.path(), variables, flags);
            let row = shown.lines().find(|line| line.split_whitespace().next() == Some(flag));
            let row: Vec<_> = row.unwrap_or_else(|| panic!("{flag}: {code} {error}")).split_whitespace().collect();
            assert_eq!((code, &row[1..]), (0, &[value, source][..]), "{flag}");
        }
    }
}

#[test]
fn a_check_shows_every_value_with_its_source_and_opens_nothing() {
    let example = include_str!("../../examples/hapax.toml").replace("http://127.0.0.1:9000", "http://127.0.0.1:9");
    let directory = configured(&example);
    let (code, shown, error) = check(
        directory.path(),
        &[("HAPAX_CONFIG", "hapax.toml"), ("HAPAX_UPSTREAM", "http://127.0.0.1:7")],
        &["--lease", "20s", "--store-header", "x-a", "--store-header", "x-b"],
    );
    assert_eq!((code, shown.as_str(), error.as_str()), (0, include_str!("check.txt"), ""));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "there is the file, and no store");
}

#[test]
fn the_readme_shows_the_example() {
    let (readme, example) = (include_str!("../../../../README.md"), include_str!("../../examples/hapax.toml"));
    assert!(readme.contains(&format!("```toml\n{example}```")), "copy crates/cli/examples/hapax.toml into README.md");
}

#[test]
fn the_offending_line_is_named_with_what_was_probably_meant() {
    for (file, remedy) in [
        ("[policy]\n\nleese = '30s'\n", "hapax.toml:3: leese is unknown in [policy]; did you mean lease?"),
        ("[policy]\nlease = 30\n", "hapax.toml:2: lease: write a duration with its unit"),
        (
            "[store]\nurl = 'redis://h'\n",
            "hapax.toml:2: url: no store is called \"redis\"; this build has sqlite://PATH, memory:",
        ),
        ("[policy]\non-lapse = 'retyr'\n", "hapax.toml:2: on-lapse: \"retyr\" is none of: hold, retry"),
        ("[policy]\nstore-header = ['x-a', 'set-cookie']\n", "hapax.toml:2: store-header: set-cookie belongs to one"),
        ("[gateway]\nupstream = 'https://api'\n", "hapax.toml:2: upstream: only http://"),
        ("[gateway\n", "hapax.toml:1: "),
        ("[[route]]\npath = '/a'\nmethod = 'GET'\n", "hapax.toml:3: method: GET changes nothing"),
        ("[[route]]\npath = '/a'\nmethod = 'post'\n", "hapax.toml:3: method: methods are written in capitals: POST"),
        ("[[route]]\npath = '/a'\nfinal = [99]\n", "hapax.toml:3: final: write the status of an answer"),
        ("[[route]]\npath = '/{*a}/b'\n", "hapax.toml:2: path: {*a} stands for all that is left"),
        ("\n[[route]]\nmethod = 'POST'\n", "hapax.toml:2: the route has no path"),
        ("[[route]]\npath = '/a'\nlease = 'x'\n", "hapax.toml:3: lease: write a duration"),
    ] {
        let upstream_is_free = if file.contains("upstream") { "HAPAX_UNUSED" } else { "HAPAX_UPSTREAM" };
        let directory = configured(file);
        let mut command = hapax();
        command.current_dir(directory.path()).env(upstream_is_free, "http://127.0.0.1:9");
        let output = command.args(["gateway", "--config", "hapax.toml"]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with(&format!("hapax: {remedy}")), "{file}: {error}");
        assert_eq!(output.status.code(), Some(2), "{file}");
    }
    let (code, _, error) = check(Path::new("."), &[], &["--config", "absent.toml"]);
    assert!(code == 2 && error.contains("absent.toml; does it exist?"), "{error}");
}

#[test]
fn every_contradiction_is_named_with_its_remedy() {
    for (file, flags, remedy) in [
        (
            "[policy]\nlease = '500ms'",
            &[][..],
            "hapax.toml:2: lease: too short: it could lapse between two renewals; make it 1s or more",
        ),
        (
            "[policy]\nlease = '60days'\nretention = '90days'\nunknown-retention = '90days'",
            &[],
            "make it 49days or less",
        ),
        (
            "[policy]\nlease = '48h'",
            &[],
            "hapax.toml:2: lease: lease 48h (hapax.toml:2) must be shorter than retention 24h (default)",
        ),
        (
            "[policy]\nretention = '10s'",
            &[],
            "hapax.toml:2: retention: lease 30s (default) must be shorter than retention 10s",
        ),
        (
            "[policy]\nretention = '10s'",
            &["--lease", "20s"],
            "--lease: lease 20s (--lease) must be shorter than retention 10s (hapax.toml:2)",
        ),
        ("[policy]\nunknown-retention = '30s'", &[], "must be shorter than unknown-retention 30s (hapax.toml:2)"),
        (
            "[policy]\nmax-execution = '30s'",
            &[],
            "upstream-timeout 60s (default) must be shorter than max-execution 30s",
        ),
        (
            "[store]\ntimeout = '31s'",
            &[],
            "hapax.toml:2: timeout: store-timeout 31s (hapax.toml:2) must be shorter than lease 30s",
        ),
        ("[store]\ntimeout = '0s'", &[], "hapax.toml:2: timeout: nothing answers in no time"),
        ("[gateway]\nmax-in-flight = 0", &[], "hapax.toml:2: max-in-flight: nothing could ever run"),
        (
            "[gateway]\nmax-in-flight = 5\nmax-in-flight-per-tenant = 6",
            &[],
            "hapax.toml:3: max-in-flight-per-tenant: one caller could never",
        ),
        (
            "[gateway]\nadmin = '127.0.0.1:8080'",
            &[],
            "hapax.toml:2: admin: clients connect there, too (listen 127.0.0.1:8080 (default))",
        ),
        (
            "[policy]\nkey-from = 'json:/id'\nkey-grammar = 'strict'",
            &[],
            "hapax.toml:3: key-grammar: strict is how a header",
        ),
        (
            "[policy]\nkey-from = 'header:X-Id'",
            &["--tenant", "header:x-id"],
            "hapax.toml:2: key-from: x-id names the tenant, too",
        ),
        (
            "[[route]]\npath = '/a'\nretention = '5s'",
            &[],
            "hapax.toml:3: retention: lease 30s (default) must be shorter than retention 5s",
        ),
        (
            "[[route]]\npath = '/a'\nfinal = [500]\nunknown = [502, 500]",
            &[],
            "hapax.toml:4: 500 is in final and in unknown",
        ),
        (
            "[[route]]\npath = '/a'\nprotect = 'off'\nlease = '5s'",
            &[],
            "hapax.toml:1: protect is off, so that lease has no effect",
        ),
    ] {
        let error = refusal(file, flags);
        assert!(error.contains(remedy), "{file}: {error}");
    }
}

#[test]
fn a_route_that_is_never_reached_is_refused_with_both_lines() {
    let route = |method: &str, path: &str| format!("[[route]]\nmethod = {method}\npath = '{path}'\n");
    let general = route("['POST', 'PUT']", "/charges/{id}");
    for (later, remedy) in [
        (
            route("'POST'", "/charges/refunds"),
            "hapax.toml:4: POST /charges/refunds is never reached, since hapax.toml:1 has /charges/{id}",
        ),
        (
            route("['DELETE', 'PUT']", "/charges/{name}"),
            "hapax.toml:4: PUT /charges/{name} has a route already, hapax.toml:1; make them one",
        ),
        (
            route("'PUT'", "/charges/{id}"),
            "hapax.toml:4: PUT /charges/{id} has a route already, hapax.toml:1; make them one",
        ),
    ] {
        let error = refusal(&format!("{general}{later}"), &[]);
        assert!(error.contains(remedy), "{error}");
    }
    for beside in [route("'DELETE'", "/charges/{id}"), route("'POST'", "/charges"), route("'POST'", "/{*all}")] {
        let directory = configured(&format!("{general}{beside}"));
        let (code, _, error) = check(directory.path(), &[], &["--config", "hapax.toml"]);
        assert_eq!((code, error.as_str()), (0, ""), "{beside}");
    }
}

/// A gateway with these routes.
async fn routed(api: &Api, file: &str) -> (Gateway, TempDir) {
    let directory = configured(file);
    let config = directory.path().join("hapax.toml").display().to_string();
    (Gateway::start(api.address, "memory:", &["--config", &config]).await, directory)
}

async fn send(gateway: &Gateway, method: &str, path: &str, fields: &[(&str, &str)], body: &'static str) -> Got {
    let request = Request::builder().method(method).uri(format!("http://{}{path}", gateway.public));
    let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let request = request.header("authorization", "Bearer a").body(Full::from(Bytes::from(body))).unwrap();
    gateway.send(request).await.unwrap()
}

const KEY: &[(&str, &str)] = &[("idempotency-key", "k")];

#[tokio::test(flavor = "multi_thread")]
async fn each_route_has_its_own_retention_and_its_own_word_on_outcomes_h40() {
    let api = Api::start().await;
    let (gateway, _directory) = routed(
        &api,
        "[policy]\nlease = '1s'\n\
         [[route]]\npath = '/short'\nretention = '1s'\n\
         [[route]]\npath = '/status/503'\nnot-applied = [503]\n\
         [[route]]\npath = '/status/500'\nfinal = [500]\n",
    )
    .await;
    let others = gateway.post("/others", "k", "{}").await.unwrap();
    gateway.post("/short", "s", "{}").await.unwrap();
    until("the answer is forgotten", async || !gateway.post("/short", "s", "{}").await.unwrap().replayed()).await;
    let again = gateway.post("/others", "k", "{}").await.unwrap();
    assert!(again.replayed() && again.body == others.body, "others keep theirs");

    for (path, second) in [("/status/503", (503, false)), ("/status/500", (500, true)), ("/status/502", (409, false))] {
        gateway.post(path, path.strip_prefix("/status/").unwrap(), "{}").await.unwrap();
        let got = gateway.post(path, path.strip_prefix("/status/").unwrap(), "{}").await.unwrap();
        assert_eq!((got.status.as_u16(), got.replayed()), second, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_says_whether_and_which_requests_are_protected_h40() {
    let api = Api::start().await;
    let (gateway, _directory) = routed(
        &api,
        "[[route]]\npath = '/search/{*rest}'\nprotect = 'off'\n\
         [[route]]\npath = '/maybe'\nprotect = 'optional'\n\
         [[route]]\nmethod = ['PUT', 'DELETE']\npath = '/orders/{id}'\n\
         [[route]]\npath = '/body'\nkey-from = 'json:/id'\n",
    )
    .await;
    for (method, path, fields, body, first, second) in [
        ("POST", "/search/a/b", KEY, "{}", 201, "fresh"),
        ("POST", "/search/a/b", &[], "{}", 201, "fresh"),
        ("POST", "/maybe", &[], "{}", 201, "fresh"),
        ("PATCH", "/maybe", KEY, "{}", 201, "replayed"),
        ("PUT", "/orders/8", &[("idempotency-key", "8")], "{}", 201, "replayed"),
        ("DELETE", "/orders/9", &[("idempotency-key", "9")], "", 201, "replayed"),
        ("PUT", "/orders/7", &[], "{}", 400, "key-missing"),
        ("PUT", "/orders", &[], "{}", 201, "fresh"),
        ("POST", "/orders/7", &[], "{}", 400, "key-missing"),
        ("POST", "/body", &[], "{\"id\":\"7\"}", 201, "replayed"),
        ("POST", "/body", &[("idempotency-key", "x")], "{}", 400, "key-missing"),
    ] {
        let got = send(&gateway, method, path, fields, body).await;
        assert_eq!(got.status.as_u16(), first, "{method} {path} {fields:?}: {}", got.body);
        let got = send(&gateway, method, path, fields, body).await;
        let is = if got.status == 400 {
            got.problem()
        } else if got.replayed() {
            "replayed"
        } else {
            "fresh"
        };
        assert_eq!(is, second, "{method} {path} {fields:?}");
    }
    let page = gateway.get(gateway.public, "/.well-known/idempotency").await.unwrap();
    let page: serde_json::Value = serde_json::from_str(&page.body).unwrap();
    let told = |place: usize, member: &str| page["routes"][place][member].to_string();
    assert_eq!((told(0, "path"), told(0, "protected")), ("\"/search/{*rest}\"".into(), "false".into()));
    assert_eq!((told(1, "keyRequired"), told(2, "methods")), ("false".into(), "[\"PUT\",\"DELETE\"]".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_can_be_read_in_two_ways_does_not_slip_past_a_route_h41() {
    let api = Api::start().await;
    let (gateway, _directory) = routed(&api, "[[route]]\nmethod = 'PUT'\npath = '/orders/{id}'\n").await;
    for path in ["/orders/a%2Fb", "/orders%2f7", "/x/%2e%2e/orders/7", "//orders/7", "/orders/.%2e"] {
        let got = send(&gateway, "PUT", path, KEY, "{}").await;
        assert!(got.status == 400 && got.body.contains("write it plainly"), "{path}: {} {}", got.status, got.body);
    }
    assert_eq!(api.seen().len(), 0);
    for path in ["/projects/a%2Fb/hooks/1", "/%6frders"] {
        assert_eq!(send(&gateway, "PUT", path, &[], "{}").await.status, 201, "{path}");
    }
    assert_eq!(api.seen()[0].path, "/projects/a%2Fb/hooks/1", "it is passed on as it came");
    assert_eq!(send(&gateway, "PUT", "/%6frders/7", &[], "{}").await.problem(), "key-missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_and_the_word_for_a_store_that_is_down_reach_the_gate_h28() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let limits = ["--max-in-flight", "1", "--store-timeout", "200ms"];
    let flags = [&limits[..], &["--when-store-down", "pass"]].concat();
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &flags).await;
    let (first, ()) = tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.has_seen(1).await;
        assert_eq!(gateway.post("/charges", "key-2", "{}").await.unwrap().problem(), "overloaded");
        api.let_go();
    });
    assert_eq!(first.unwrap().status, 201);
    let lock = rusqlite::Connection::open(directory.path().join("hapax.db")).unwrap();
    lock.execute_batch("begin immediate").unwrap();
    let got = gateway.post("/charges", "key-3", "{}").await.unwrap();
    assert_eq!((got.status.as_u16(), &got.headers["hapax-unrecorded"]), (201, &"true".parse().unwrap()));
}

/// A secret in a file of this mode.
fn secret(directory: &Path, name: &str, content: &[u8], mode: u32) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn a_secret_of_another_length_or_open_to_all_is_refused_and_none_is_shown() {
    let directory = tempfile::tempdir().unwrap();
    for (name, content, mode, remedy) in [
        ("short", &b"0123456789"[..], 0o600, "holds 10 bytes, and no secret; it must be 32 bytes, or 64 hex"),
        ("open", &[b'7'; 32], 0o604, "chmod 600"),
        ("shared", &[b'7'; 32], 0o620, "chmod 600"),
    ] {
        let path = secret(directory.path(), name, content, mode).display().to_string();
        let (code, _, error) = check(directory.path(), &[], &["--secrets", &path]);
        assert!(code == 2 && error.contains(remedy) && error.starts_with("hapax: --secrets: "), "{name}: {error}");
        assert!(!error.contains("77777") && !error.contains("01234"), "{error}");
    }
    let path = secret(directory.path(), "good", &[b'7'; 32], 0o640).display().to_string();
    let (code, shown, _) = check(directory.path(), &[], &["--secrets", &path]);
    assert!(code == 0 && shown.contains(&path) && !shown.contains("77777"), "{shown}");
    let (code, _, error) = check(directory.path(), &[], &["--secrets", "absent"]);
    assert!(code == 2 && error.contains("does it exist?"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_keeps_the_secret_that_it_began_with() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = sqlite(directory.path());
    let first = secret(directory.path(), "first", &[1; 32], 0o600).display().to_string();
    let other = secret(directory.path(), "other", &[2; 32], 0o600).display().to_string();
    for start in 0..2 {
        let gateway = Gateway::start(api.address, &store, &["--secrets", &first]).await;
        let got = gateway.post("/charges", "k", "{}").await.unwrap();
        assert_eq!((got.body.as_str(), got.replayed()), ("answer 1", start > 0));
    }
    for (flags, remedy) in
        [(&["--secrets", &*other][..], "has another secret"), (&[], "has a secret; name its file by --secrets")]
    {
        let (public, admin) = (free_address().to_string(), free_address().to_string());
        let mut command = hapax();
        command.args(["gateway", "--upstream", "http://127.0.0.1:9", "--store", &store, "--listen", &public]);
        let output = command.args(["--admin", &admin]).args(flags).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(3) && error.contains(remedy), "{flags:?}: {error}");
    }
    Gateway::start(api.address, &store, &["--secrets", &other, "--namespace", "another"]).await;
}
