//! The configuration: which origin of a value wins, what is refused with which remedy, and that values reach the gate.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::harness::{Api, Gateway, hapax, sqlite};

/// Creates a directory with this `hapax.toml`.
pub(crate) fn directory_with(file: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("hapax.toml"), file).unwrap();
    directory
}

/// Runs `hapax gateway --check` and returns exit code, standard output and standard error.
pub(crate) fn check(directory: &Path, variables: &[(&str, &str)], flags: &[&str]) -> (i32, String, String) {
    let mut command = hapax();
    command.current_dir(directory).env("HAPAX_UPSTREAM", "http://127.0.0.1:9").envs(variables.iter().copied());
    let output = command.args(["gateway", "--check"]).args(flags).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Returns the error for a file that is refused with exit code 2.
fn refusal(file: &str, flags: &[&str]) -> String {
    let directory = directory_with(file);
    let (code, _, error) = check(directory.path(), &[], &[&["--config", "hapax.toml"], flags].concat());
    assert_eq!(code, 2, "{file}\n{error}");
    error
}

#[test]
fn a_flag_wins_over_a_variable_over_the_file_over_the_default() {
    // One setting of each kind: its flag, table and key, its default, and the values in file, variable and flag.
    for (flag, (table, key), default, [in_file, in_variable, in_flag]) in [
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
        let directory = directory_with(&format!("# one\n[{table}]\n{key} = '{in_file}'\n"));
        let variable = format!("HAPAX_{}", flag.to_uppercase().replace('-', "_"));
        let (variables, flags) = ([(&*variable, in_variable)], [format!("--{flag}"), in_flag.into()]);
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let file = ["--config", "hapax.toml"];
        for (variables, flags, value, origin) in [
            (&[][..], &[][..], default, "default"),
            (&[], &file, in_file, "hapax.toml:3"),
            (&variables, &file, in_variable, &variable),
            (&variables, &[&file[..], &flags].concat(), in_flag, flags[0]),
        ] {
            let (code, shown, error) = check(directory.path(), variables, flags);
            let row = shown.lines().find(|line| line.split_whitespace().next() == Some(flag));
            let row: Vec<_> = row.unwrap_or_else(|| panic!("{flag}: {code} {error}")).split_whitespace().collect();
            assert_eq!((code, &row[1..]), (0, &[value, origin][..]), "{flag}");
        }
    }
}

#[test]
fn check_prints_every_value_with_its_origin_and_opens_nothing() {
    let example = include_str!("../../examples/hapax.toml").replace("http://127.0.0.1:9000", "http://127.0.0.1:9");
    let directory = directory_with(&example);
    let (code, shown, error) = check(
        directory.path(),
        &[("HAPAX_CONFIG", "hapax.toml"), ("HAPAX_UPSTREAM", "http://127.0.0.1:7")],
        &["--lease", "20s", "--store-header", "x-a", "--store-header", "x-b"],
    );
    assert_eq!((code, shown.as_str(), error.as_str()), (0, include_str!("check.txt"), ""));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "the check created a file");
}

#[test]
fn the_guide_contains_the_example_file() {
    let chapter = include_str!("../../../hapax/src/guide/configuring_a_gateway.md");
    let example = include_str!("../../examples/hapax.toml");
    let is_whole = chapter.contains(&format!("```toml\n{example}```"));
    assert!(is_whole, "copy crates/cli/examples/hapax.toml into crates/hapax/src/guide/configuring_a_gateway.md");
}

/// A test of the stores runs the snippet of `docs/ledger.md`.
#[test]
fn the_python_of_the_readme_is_a_part_of_the_snippet_that_a_test_runs() {
    let (readme, ledger) = (include_str!("../../../../README.md"), include_str!("../../../../docs/ledger.md"));
    let block = |text: &'static str| Some(text.split_once("```python\n")?.1.split_once("```")?.0);
    let (part, snippet) = (block(readme).unwrap(), block(ledger).unwrap());
    let indented: String = part.lines().map(|line| format!("    {line}\n")).collect();
    assert!(snippet.contains(&indented), "copy it from docs/ledger.md:\n{part}");
}

#[test]
fn an_error_names_its_line_and_the_remedy() {
    for (file, remedy) in [
        ("[policy]\n\nleese = '30s'\n", "hapax.toml:3: unknown key leese in [policy]; did you mean lease?"),
        ("[policy]\nlease = 30\n", "hapax.toml:2: lease: \"30\": write a duration with its unit"),
        (
            "[store]\nurl = 'mysql://h'\n",
            "hapax.toml:2: url: \"mysql://h\": there is no store for the scheme \"mysql\"; this build has \
             sqlite://PATH, redis://HOST,",
        ),
        ("[policy]\non-lapse = 'retyr'\n", "hapax.toml:2: on-lapse: \"retyr\": write one of: hold, retry"),
        (
            "[policy]\nstore-header = ['x-a', 'set-cookie']\n",
            "hapax.toml:2: store-header: \"set-cookie\": set-cookie must not be stored",
        ),
        (
            "[gateway]\nupstream = 'ftp://api'\n",
            "hapax.toml:2: upstream: \"ftp://api\": the API must be an HTTP server",
        ),
        ("[gateway\n", "hapax.toml:1: "),
        ("[[route]]\npath = '/a'\nmethod = 'GET'\n", "hapax.toml:3: method: \"GET\": GET is never protected"),
        (
            "[[route]]\npath = '/a'\nmethod = 'post'\n",
            "hapax.toml:3: method: \"post\": methods are upper case: write POST",
        ),
        ("[[route]]\npath = '/a'\nfinal = [99]\n", "hapax.toml:3: final: \"99\": write a response status"),
        ("[[route]]\npath = '/{*a}/b'\n", "hapax.toml:2: path: \"/{*a}/b\": {*a} matches all remaining segments"),
        ("\n[[route]]\nmethod = 'POST'\n", "hapax.toml:2: the route has no path"),
        ("[[route]]\npath = '/a'\nlease = 'x'\n", "hapax.toml:3: lease: \"x\": write a duration"),
    ] {
        // A variable wins over the file, so it must not be set where the file's upstream is tested.
        let variable = if file.contains("upstream") { "HAPAX_UNUSED" } else { "HAPAX_UPSTREAM" };
        let directory = directory_with(file);
        let mut command = hapax();
        command.current_dir(directory.path()).env(variable, "http://127.0.0.1:9");
        let output = command.args(["gateway", "--config", "hapax.toml"]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with(&format!("hapax: {remedy}")), "{file}: {error}");
        assert_eq!(output.status.code(), Some(2), "{file}");
    }
    let (code, _, error) = check(Path::new("."), &[], &["--config", "absent.toml"]);
    assert!(code == 2 && error.contains("absent.toml: there is no such file"), "{error}");
}

#[test]
fn every_contradiction_is_refused_with_its_remedy() {
    for (file, flags, remedy) in [
        (
            "[policy]\nlease = '500ms'",
            &[][..],
            "hapax.toml:2: lease: \"500ms\": must be at least 1s: a shorter lease could expire between two renewals",
        ),
        (
            "[policy]\nlease = '60days'\nretention = '90days'\nunknown-retention = '90days'",
            &[],
            "hapax.toml:2: lease: \"60days\": must be at most 49 days: ",
        ),
        (
            "[policy]\nlease = '48h'",
            &[],
            "hapax.toml:2: lease: lease 48h (hapax.toml:2) must not be longer than retention 24h (default)",
        ),
        (
            "[policy]\nretention = '10s'",
            &[],
            "hapax.toml:2: retention: lease 30s (default) must not be longer than retention 10s",
        ),
        (
            "[policy]\nretention = '10s'",
            &["--lease", "20s"],
            "--lease: lease 20s (--lease) must not be longer than retention 10s (hapax.toml:2)",
        ),
        (
            "[policy]\nfinal-retention = '10s'",
            &[],
            "hapax.toml:2: final-retention: lease 30s (default) must not be longer than final-retention 10s",
        ),
        (
            "[policy]\nunknown-retention = '30s'",
            &[],
            "must be at least 1s shorter than unknown-retention 30s (hapax.toml:2)",
        ),
        (
            "[policy]\nmax-execution = '30s'",
            &[],
            "upstream-timeout 60s (default) must not be longer than max-execution 30s",
        ),
        (
            "[store]\ntimeout = '31s'",
            &[],
            "hapax.toml:2: timeout: store-timeout 31s (hapax.toml:2) must not be longer than lease 30s",
        ),
        ("[store]\ntimeout = '0s'", &[], "hapax.toml:2: timeout: \"0s\": must not be zero"),
        ("[policy]\nrecord-patience = '0s'", &[], "hapax.toml:2: record-patience: \"0s\": must not be zero"),
        ("[gateway]\nanswer-memory = '0B'", &[], "hapax.toml:2: answer-memory: \"0B\": must not be zero"),
        ("[gateway]\nmax-in-flight = 0", &[], "hapax.toml:2: max-in-flight: \"0\": must not be zero"),
        (
            "[gateway]\nmax-in-flight = 5\nmax-in-flight-per-tenant = 6",
            &[],
            "hapax.toml:3: max-in-flight-per-tenant: must not be larger than max-in-flight 5 (hapax.toml:2)",
        ),
        (
            "[gateway]\nadmin = '127.0.0.1:8080'",
            &[],
            "hapax.toml:2: admin: clients connect to the same address, listen 127.0.0.1:8080 (default)",
        ),
        (
            "[policy]\nkey-from = 'json:/id'\nkey-grammar = 'strict'",
            &[],
            "hapax.toml:3: key-grammar: strict is a grammar for headers",
        ),
        (
            "[policy]\nkey-from = 'header:Authorization'",
            &[],
            "hapax.toml:2: key-from: authorization already identifies the tenant (tenant authorization (default));",
        ),
        (
            "[policy]\nkey-from = 'header:X-Id'",
            &["--tenant", "header:x-id"],
            "hapax.toml:2: key-from: x-id already identifies the tenant",
        ),
        (
            "[[route]]\npath = '/a'\nretention = '5s'",
            &[],
            "hapax.toml:3: retention: lease 30s (default) must not be longer than retention 5s",
        ),
        (
            "[[route]]\npath = '/a'\nfinal = [500]\nunknown = [502, 500]",
            &[],
            "hapax.toml:4: unknown: 500 is in final and in unknown",
        ),
        (
            "[[route]]\npath = '/a'\nprotect = 'off'\nlease = '5s'",
            &[],
            "hapax.toml:1: protect is off, so lease has no effect",
        ),
    ] {
        let error = refusal(file, flags);
        assert!(error.contains(remedy), "{file}: {error}");
    }
}

#[test]
fn a_route_that_never_matches_is_refused_with_both_lines() {
    let route = |method: &str, path: &str| format!("[[route]]\nmethod = {method}\npath = '{path}'\n");
    let general = route("['POST', 'PUT']", "/charges/{id}");
    for (later, remedy) in [
        (
            route("'POST'", "/charges/refunds"),
            "hapax.toml:4: POST /charges/refunds never matches, because /charges/{id} at hapax.toml:1 comes first",
        ),
        (
            route("['DELETE', 'PUT']", "/charges/{name}"),
            "hapax.toml:4: PUT /charges/{name} already has a route at hapax.toml:1; merge the two",
        ),
        (
            route("'PUT'", "/charges/{id}"),
            "hapax.toml:4: PUT /charges/{id} already has a route at hapax.toml:1; merge the two",
        ),
    ] {
        let error = refusal(&format!("{general}{later}"), &[]);
        assert!(error.contains(remedy), "{error}");
    }
    for beside in [route("'DELETE'", "/charges/{id}"), route("'POST'", "/charges"), route("'POST'", "/{*all}")] {
        let directory = directory_with(&format!("{general}{beside}"));
        let (code, _, error) = check(directory.path(), &[], &["--config", "hapax.toml"]);
        assert_eq!((code, error.as_str()), (0, ""), "{beside}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_and_when_store_down_reach_the_gate_h28() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let limits = ["--max-in-flight", "1", "--store-timeout", "200ms"];
    let flags = [&limits[..], &["--when-store-down", "pass"]].concat();
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &flags).await;
    let (first, ()) = tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        assert_eq!(gateway.post("/charges", "key-2", "{}").await.unwrap().problem(), "overloaded");
        api.release_slow();
    });
    assert_eq!(first.unwrap().status, 201);
    let lock = rusqlite::Connection::open(directory.path().join("hapax.db")).unwrap();
    lock.execute_batch("begin immediate").unwrap();
    let got = gateway.post("/charges", "key-3", "{}").await.unwrap();
    assert_eq!((got.status.as_u16(), &got.headers["hapax-unrecorded"]), (201, &"true".parse().unwrap()));
}

#[test]
fn the_check_writes_no_control_characters() {
    let route = "[[route]]\npath = \"/a\\u001b[31m\"\nkey-from = \"header:x-a\"\n";
    let directory = directory_with(route);
    let flags = ["--config", "hapax.toml", "--namespace", "shop\u{1b}[31m\r\nok", "--upstream-ca", "\u{9b}31m"];
    let (code, output, error) = check(directory.path(), &[], &flags);
    assert_eq!(code, 0, "{error}");
    assert!(output.contains("shop\\u001b[31m\\u000d\\nok") && output.contains("\\u009b31m"), "{output}");
    let is_raw = |line: &str| line.contains(char::is_control);
    assert!(!output.lines().any(is_raw) && output.contains("ROUTE"), "{output}");
}

#[test]
fn the_check_shows_no_password() {
    let directory = tempfile::tempdir().unwrap();
    for (store, code, shown) in [
        ("redis://user:4242@127.0.0.1:6379/0", 0, "redis://…@127.0.0.1:6379/0"),
        ("unix:///run/redis.sock?user=me&pass=4242", 0, "unix:///run/redis.sock?user=…&pass=…"),
        ("redis://127.0.0.1?password=4242", 2, "password"),
        ("sqlite://hapax.db?password=4242", 2, "takes no parameters"),
        ("redis://:42?4242@127.0.0.1", 2, "--store"),
    ] {
        let (exit_code, output, error) = check(directory.path(), &[("HOME", "/")], &["--store", store]);
        let all = output + &error;
        assert!(exit_code == code && all.contains(shown) && !all.contains("4242"), "{store}: {exit_code} {all}");
    }
    for upstream in ["http://user:4242@api", "http://api?password=4242"] {
        let (code, output, error) = check(directory.path(), &[], &["--upstream", upstream]);
        assert!(code == 2 && !(output + &error).contains("4242"), "{upstream}");
    }
}
