//! The logs of the process. The harness checks every gateway of the suite for keys, bodies and credentials in its logs.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Output;

use http::Request;
use http_body_util::Full;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::config::directory_with;
use crate::harness::{Api, Gateway, free_address, hapax, sqlite, until};
use crate::raw_http::RawConnection;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Returns the lines of a log in JSON.
fn lines(logs: &str) -> Vec<Value> {
    logs.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect()
}

/// Returns the lines of the access log, in the order in which requests ended.
pub(crate) fn access(logs: &str) -> Vec<Value> {
    lines(logs).into_iter().filter(|line| line["target"] == "hapax::access").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_is_one_line_with_its_outcome() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    for body in ["{}", "{}", "[]"] {
        gateway.post("/charges?card=4242", "key-1", body).await.unwrap();
    }
    gateway.get(gateway.public, "/charges?card=4242").await.unwrap();
    gateway.post("/charges", "a, b", "{}").await.unwrap();
    let mut wire = RawConnection::to(gateway.public).await;
    wire.send_bytes(b"GET /refused HTTP/1.1\r\nhost: a\r\nconnection: authorization\r\n\r\n").await;
    assert_eq!(wire.read_response().await.unwrap().status, 400);
    gateway.terminate();
    let (_, logs) = gateway.wait_for_exit();
    let lines = access(&logs);
    let requests: Vec<_> = lines
        .iter()
        .map(|line| {
            (line["method"].as_str().unwrap(), line["path"].as_str().unwrap(), line["status"].as_u64().unwrap())
        })
        .zip(lines.iter().map(|line| line["outcome"].as_str().unwrap()))
        .collect();
    assert_eq!(
        requests,
        [
            (("POST", "/charges", 201), "fresh"),
            (("POST", "/charges", 201), "replayed"),
            (("POST", "/charges", 422), "key-reused"),
            (("GET", "/charges", 201), "passed"),
            (("POST", "/charges", 400), "key-malformed"),
            (("GET", "/refused", 400), "refused"),
        ]
    );
    let rk = lines[0]["rk"].as_str().unwrap();
    assert!(rk.len() == 8 && rk.bytes().all(|byte| byte.is_ascii_hexdigit()), "{rk}");
    assert!(lines[1]["rk"] == rk && lines[2]["rk"] == rk && lines[3]["rk"].is_null() && lines[0]["ms"].is_u64());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_context_of_a_trace_is_passed_on_and_appears_in_the_log() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--tenant", "none"]).await;
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let request = Request::post(format!("http://{}/charges", gateway.public)).header("idempotency-key", "key-1");
    let request = request.header("traceparent", &parent).header("tracestate", "vendor=1").body(Full::from("{}"));
    gateway.send(request.unwrap()).await.unwrap();
    let seen = &api.seen()[0].headers;
    assert_eq!((&seen["traceparent"], &seen["tracestate"]), (&parent.parse().unwrap(), &"vendor=1".parse().unwrap()));
    gateway.terminate();
    assert_eq!(access(&gateway.wait_for_exit().1)[0]["trace"], TRACE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_the_gateway_refuses_or_cannot_forward_has_not_passed() {
    let directory = directory_with("[[route]]\npath = '/orders/{id}'\nprotect = 'off'\n");
    let config = directory.path().join("hapax.toml").display().to_string();
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let gateway = Gateway::start(nowhere, "memory:", &["--config", &config]).await;
    let send = async |path: &str| gateway.post(path, "key-1", "{}").await.unwrap().status.as_u16();
    assert_eq!((send("/orders%2f7").await, send("/orders/7").await), (400, 502));
    gateway.terminate();
    let lines = access(&gateway.wait_for_exit().1);
    let outcomes: Vec<_> = lines.iter().map(|line| line["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["refused", "upstream-unreachable"]);
}

/// A paused process loses its lease, and another process runs the request and records its answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_ran_and_got_the_answer_of_another_run_is_canonical() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let (store, flags) = (sqlite(directory.path()), ["--lease", "1s", "--on-lapse", "retry"]);
    let paused = Gateway::start(api.address, &store, &flags).await;
    let other = Gateway::start(api.address, &store, &flags).await;
    let (first, second) = tokio::join!(paused.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        kill_process(paused.pid(), Signal::STOP).unwrap();
        let (second, ()) = tokio::join!(other.retry_until_settled("/slow", "key-1", "{}"), async {
            api.wait_for_requests(2).await;
            api.release_slow();
            api.release_slow();
        });
        kill_process(paused.pid(), Signal::CONT).unwrap();
        second
    });
    assert_eq!(first.unwrap().body, second.body);
    paused.terminate();
    let lines = access(&paused.wait_for_exit().1);
    assert_eq!(lines[0]["outcome"], "canonical");
}

/// The store is down from the start, so every request is refused.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_store_does_not_log_a_line_for_each_request() {
    const REQUESTS: usize = 300;
    let directory = tempfile::tempdir().unwrap();
    let flags = ["--upstream", "http://127.0.0.1:9", "--data-dir", directory.path().to_str().unwrap()];
    let gateway = Gateway::spawn(hapax(), "redis://127.0.0.1:1", &flags, free_address());
    until("the admin listener responds", async || gateway.get(gateway.admin, "/readyz").await.is_some()).await;
    let began = std::time::Instant::now();
    for number in 0..REQUESTS {
        let got = gateway.post("/charges", &format!("outage-{number}"), "{}").await.unwrap();
        assert_eq!(got.problem(), "store-unavailable");
    }
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    gateway.terminate();
    let (_, logs) = gateway.wait_for_exit();
    assert_eq!(access(&logs).len(), REQUESTS);
    let lines = lines(&logs);
    let is_outage = |text: &Value| text.as_str().is_some_and(|text| text.starts_with("the store cannot be used"));
    let logged = lines.iter().filter(|line| is_outage(&line["message"])).count();
    // The first and last second are partial.
    assert!((1..=10 * (seconds + 2)).contains(&logged), "{logged} lines in {seconds} s");
    let counts = lines.iter().filter(|line| is_outage(&line["event"]));
    let suppressed: u64 = counts.map(|line| line["suppressed"].as_u64().unwrap()).sum();
    assert!(u64::try_from(logged).unwrap() + suppressed >= u64::try_from(REQUESTS).unwrap(), "{logged} {suppressed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_logged_at_most_ten_times_a_second_and_the_others_are_counted() {
    const REQUESTS: usize = 200;
    let gateway = Gateway::start_with("memory:", &["--upstream", "http://127.0.0.1:9"]).await;
    let began = std::time::Instant::now();
    for number in 0..REQUESTS {
        let got = gateway.post("/charges", &format!("flood-{number}"), "{}").await.unwrap();
        assert_eq!(got.problem(), "upstream-unreachable");
    }
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    gateway.terminate();
    let (_, logs) = gateway.wait_for_exit();
    assert_eq!(access(&logs).len(), REQUESTS, "no line of the access log is left out");
    let lines = lines(&logs);
    let is_event = |line: &&Value| line["message"].as_str().is_some_and(|text| text.starts_with("the API is unreach"));
    let logged = lines.iter().filter(is_event).count();
    assert!((1..=10 * (seconds + 2)).contains(&logged), "{logged} lines in {seconds} s");
    let counts = lines.iter().filter(|line| line["event"].as_str().is_some_and(|event| event.contains("unreachable")));
    let suppressed: u64 = counts.map(|line| line["suppressed"].as_u64().unwrap()).sum();
    assert_eq!(u64::try_from(logged).unwrap() + suppressed, u64::try_from(REQUESTS).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_line_and_problem_of_a_protected_request_names_its_operation_h57() {
    let gateway = Gateway::start_with("memory:", &["--upstream", "http://127.0.0.1:9"]).await;
    let got = gateway.post("/charges", "key-1", "{}").await.unwrap();
    let problem: Value = serde_json::from_str(&got.body).unwrap();
    let operation = problem["operation"].as_str().unwrap();
    assert!(operation.len() == 36 && operation.matches('-').count() == 4, "{operation}");
    gateway.post("/charges", "key-2", "{}").await.unwrap();
    gateway.terminate();
    let (_, logs) = gateway.wait_for_exit();
    assert!(access(&logs).iter().all(|line| !line["rk"].is_null()), "{logs}");
    let lines = lines(&logs);
    for line in lines.iter().filter(|line| !line["rk"].is_null()) {
        let rk = line["rk"].as_str().unwrap();
        assert!(rk.len() == 8 && rk.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
        assert_eq!(line["operation"].as_str().map(str::len), Some(36), "{line}");
    }
    let of_request: Vec<_> = lines.iter().filter(|line| line["operation"] == operation).collect();
    for (level, message) in [("DEBUG", "an attempt begins"), ("WARN", "the API is unreachable"), ("INFO", "request")] {
        let is_line = |line: &&&Value| line["message"].as_str().is_some_and(|text| text.starts_with(message));
        let found = of_request.iter().find(is_line).unwrap_or_else(|| panic!("no line {message:?} in {logs}"));
        assert_eq!(found["level"], level);
    }
}

/// Both stores of the answer are away, so only the log can show that these operations ran.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn no_line_that_is_the_last_trace_of_an_operation_is_left_out() {
    const REQUESTS: usize = 50;
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap();
    let flags = ["--upstream", "http://127.0.0.1:9", "--data-dir", data, "--when-store-down", "pass"];
    let gateway = Gateway::spawn(hapax(), "redis://127.0.0.1:1", &flags, free_address());
    until("the admin listener responds", async || gateway.get(gateway.admin, "/readyz").await.is_some()).await;
    for number in 0..REQUESTS {
        gateway.post("/charges", &format!("unprotected-{number}"), "{}").await.unwrap();
    }
    gateway.terminate();
    let lines = lines(&gateway.wait_for_exit().1);
    let traces = lines.iter().filter(|line| line["target"] == "hapax::audit");
    let operations: HashSet<_> = traces.map(|line| line["operation"].as_str().unwrap()).collect();
    assert_eq!(operations.len(), REQUESTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_the_end_of_the_drain_cuts_has_an_access_line_with_its_operation_h57() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--drain", "3s"]).await;
    let mut client = RawConnection::to(gateway.public).await;
    let head = "POST /slow HTTP/1.1\r\nhost: a\r\nidempotency-key: silent-1\r\nauthorization: me\r\n";
    client.send_bytes(format!("{head}content-length: 2\r\n\r\n{{}}").as_bytes()).await;
    api.wait_for_requests(1).await;
    gateway.terminate();
    let lines = access(&gateway.wait_for_exit().1);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&line["outcome"], line["status"].is_null()), (&"cut-at-stop".into(), true), "{line}");
    assert_eq!(line["operation"].as_str().unwrap(), api.seen()[0].headers["hapax-operation"], "{line}");
    assert_eq!(line["rk"].as_str().map(str::len), Some(8), "{line}");
}

fn check(variable: &str, flags: &[&str]) -> Output {
    let mut command = hapax();
    command.env("HAPAX_LOG", variable).env("HAPAX_UPSTREAM", "http://127.0.0.1:9").arg("gateway").args(flags);
    command.output().unwrap()
}

#[test]
fn a_wrong_log_level_is_refused_like_every_other_value() {
    for wrong in ["", "verbose", "INFO", "2", "info,loud", "hapax=loud", "=debug", "info,", "[span]=debug"] {
        // Without --check, the wrong level must prevent the start.
        for flags in [&["--check"][..], &["--store", "memory:"]] {
            let output = check(wrong, flags);
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{wrong:?}: {error}");
            assert!(error.contains("HAPAX_LOG: ") && error.contains("off, error, warn, info, debug"), "{error}");
            let quoted = wrong.split(',').next_back().unwrap();
            assert!(error.contains(&format!("{quoted:?}")), "{quoted:?} is not quoted: {error}");
        }
    }
    for level in ["off", "error", "warn", "info", "debug", "trace", "info,hapax_core=debug", "hapax_http::answer=off"] {
        let output = check(level, &["--check"]);
        assert_eq!(output.status.code(), Some(0), "{level}");
        assert!(String::from_utf8(output.stdout).unwrap().contains(level));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_level_off_logs_nothing_and_a_target_has_a_level_of_its_own() {
    let api = Api::start().await;
    for (level, is_expected) in [("off", false), ("off,hapax::access=info", true)] {
        let mut command = hapax();
        command.env("HAPAX_LOG", level);
        let flags = ["--upstream", &format!("http://{}", api.address)];
        let gateway = Gateway::run(command, "memory:", &flags, free_address()).await;
        gateway.post("/charges", "key-1", "{}").await.unwrap();
        gateway.terminate();
        let (_, logs) = gateway.wait_for_exit();
        let targets: Vec<_> = lines(&logs).iter().map(|line| line["target"].clone()).collect();
        assert!(targets.iter().all(|target| target == "hapax::access"), "{logs}");
        assert_eq!(!targets.is_empty(), is_expected, "{logs}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_format_of_the_log_is_text_or_json_and_neither_has_control_characters() {
    let api = Api::start().await;
    for format in ["text", "json"] {
        let gateway = Gateway::start(api.address, "memory:", &["--log-format", format]).await;
        let mut wire = RawConnection::to(gateway.public).await;
        // U+009B starts a command of a terminal, as an escape and a bracket do.
        wire.send_bytes(b"GET /\xc2\x9b31m HTTP/1.1\r\nhost: a\r\n\r\n").await;
        wire.read_response().await.unwrap();
        gateway.terminate();
        let (_, logs) = gateway.wait_for_exit();
        assert!(logs.contains("/\\u009b31m"), "{logs}");
        assert!(!logs.contains(|found: char| found.is_control() && found != '\n'), "{logs:?}");
        let is_json = logs.lines().all(|line| serde_json::from_str::<Value>(line).is_ok());
        assert_eq!(is_json, format == "json", "{logs}");
    }
    let output = check("info", &["--check", "--log-format", "xml"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains("\"xml\": write one of: text, json"), "{error}");
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_signal_opens_the_log_file_again() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let (file, rotated) = (directory.path().join("hapax.log"), directory.path().join("hapax.log.1"));
    let gateway = Gateway::start(api.address, "memory:", &["--log-file", file.to_str().unwrap()]).await;
    gateway.post("/charges", "key-1", "{}").await.unwrap();
    until("the request is in the log", async || access(&read(&file)).len() == 1).await;
    fs::rename(&file, &rotated).unwrap();
    kill_process(gateway.pid(), Signal::HUP).unwrap();
    until("the log has a new file", async || file.exists()).await;
    gateway.post("/charges", "key-2", "{}").await.unwrap();
    until("the next request is in the new file", async || access(&read(&file)).len() == 1).await;
    assert_eq!(access(&read(&rotated)).len(), 1);
    // The new file cannot be opened: the log goes on in the old one.
    fs::rename(&file, directory.path().join("hapax.log.2")).unwrap();
    fs::create_dir(&file).unwrap();
    kill_process(gateway.pid(), Signal::HUP).unwrap();
    let current = directory.path().join("hapax.log.2");
    until("the failure is in the old file", async || read(&current).contains("cannot open the log file")).await;
    gateway.terminate();
    let (code, logs) = gateway.wait_for_exit();
    assert_eq!((code, logs.as_str()), (Some(0), ""), "nothing goes to standard error");
    assert!(read(&current).lines().last().unwrap().contains("stopped"));
}

/// Returns the messages of these lines that are about files which a signal opens again.
fn reopenings(logs: &str) -> Vec<String> {
    let messages = lines(logs).into_iter().map(|line| line["message"].as_str().unwrap_or_default().to_owned());
    messages.filter(|message| message.contains("SIGHUP") || message.contains("open")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_signal_reports_no_success_for_a_file_that_it_does_not_open() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let (file, old) = (directory.path().join("hapax.log"), directory.path().join("hapax.log.1"));
    let gateway = Gateway::start(api.address, "memory:", &["--log-file", file.to_str().unwrap()]).await;
    fs::rename(&file, &old).unwrap();
    fs::create_dir(&file).unwrap();
    kill_process(gateway.pid(), Signal::HUP).unwrap();
    until("the failure is in the old file", async || read(&old).contains("cannot open the log file")).await;
    gateway.terminate();
    gateway.wait_for_exit();
    let reported = reopenings(&read(&old));
    let is_expected = reported.len() == 2 && reported[0] == "SIGHUP: opening the log file again";
    assert!(is_expected && reported[1].starts_with("cannot open the log file"), "{reported:?}");
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    kill_process(gateway.pid(), Signal::HUP).unwrap();
    let nothing = "SIGHUP: there is no log file and no server certificate to open again";
    // A stop does not wait for a signal that arrived before it.
    gateway.wait_for_log(nothing).await;
    gateway.terminate();
    let reported = reopenings(&gateway.wait_for_exit().1);
    assert_eq!(reported, [nothing]);
}

#[test]
fn a_log_file_that_cannot_be_opened_prevents_the_start() {
    let output = check("info", &["--store", "memory:", "--log-file", "/nowhere/hapax.log"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(3) && error.contains("/nowhere/hapax.log"), "{error}");
}
