//! `hapax keys` on a store of any kind.

use std::path::Path;
use std::process::Output;

use bytes::Bytes;
use hapax::machine::{Begin, Begun, Claim, Complete, Lapse};
use hapax::store::Protocol;
use hapax::{Identity, Key, Millis, Owner, RecordKey, Scope, Seconds, Store, Timestamp};
use serde_json::Value;

use crate::harness::{Api, Gateway, hapax, until};

/// Runs `hapax keys` and returns its exit code, its lines as JSON, and its errors.
pub(crate) fn keys(arguments: &[&str]) -> (i32, Vec<Value>, String) {
    let output: Output = hapax().arg("keys").args(arguments).arg("--json").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code().unwrap(), lines, String::from_utf8(output.stderr).unwrap())
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// How a record of a test ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    Completed,
    Abandoned,
    Dead,
    Running,
}

/// Writes a record, as a gateway without tenants does.
pub(crate) async fn plant(store: &dyn Store, key: &str, planted: Planted) -> RecordKey {
    let call = Identity::plain().call(&Scope::untenanted("default").unwrap(), &Key::new(key).unwrap());
    let (protocol, rk) = (Protocol::over(store), call.record_key());
    let mut owner = [0; 16];
    owner[..8].copy_from_slice(&rk.as_bytes()[..8]);
    let lease = Millis(600_000);
    let (owner, unknown_retention) = (Owner(owner), Seconds(3600));
    let ask = Begin { call, owner, lease, unknown_retention, on_lapse: Lapse::Hold };
    let Begun::Granted(grant) = protocol.begin(&ask).await.unwrap() else { panic!("the key is new") };
    let claim = Claim::from(&grant);
    match planted {
        Planted::Running => {}
        Planted::Abandoned => drop(protocol.abandon(&rk, &claim).await.unwrap()),
        Planted::Dead => drop(protocol.bury(&rk, &claim, unknown_retention).await.unwrap()),
        Planted::Completed => {
            let ended = Timestamp(grant.token.0);
            let (fingerprint, answer) = (grant.fingerprint, Bytes::from_static(b"\x01\x00\xc9\x00secret answer"));
            let age = std::time::Duration::ZERO;
            let ask = Complete { claim, fingerprint, answer, retention: Seconds(3600), ended, age };
            drop(protocol.complete(&rk, &ask).await.unwrap());
        }
    }
    rk
}

/// Every command on one record of each state.
pub(crate) async fn changes_each_state_as_the_protocol_allows(store: &dyn Store, url: &str, directory: &Path) {
    let audit = directory.join("audit.jsonl");
    let place = ["--store", url, "--audit-file", audit.to_str().unwrap()];
    let run = |arguments: &[&str]| keys(&[arguments, &place].concat());
    let show = |key: &str| run(&["show", "--key", key]).1.remove(0);
    let body = directory.join("body");
    std::fs::write(&body, "{\"paid\":true}").unwrap();
    for (key, planted) in [
        ("completed", Planted::Completed),
        ("unknown", Planted::Abandoned),
        ("unknown too", Planted::Abandoned),
        ("dead", Planted::Dead),
        ("running", Planted::Running),
    ] {
        plant(store, key, planted).await;
    }
    assert_eq!(run(&["list"]).1.len(), 5);
    let unknown = run(&["list", "--state", "unknown"]).1;
    assert_eq!(unknown.len(), 2);
    for record in &unknown {
        assert_eq!((&record["attempt"], text(&record["rk"]).len()), (&Value::from(1), 32));
        let found = run(&["list", "--operation", text(&record["operation"])]).1;
        assert_eq!(found.iter().map(|found| &found["rk"]).collect::<Vec<_>>(), [&record["rk"]]);
        assert_eq!(run(&["show", text(&record["urn"])]).1[0]["token"], record["token"]);
    }
    assert!(!run(&["list"]).1.iter().any(|record| record.to_string().contains("secret")));
    let completed = run(&["show", "--key", "completed", "--answer"]).1.remove(0);
    assert_eq!((&completed["answer"]["status"], &completed["answer"]["body"]), (&201.into(), &"secret answer".into()));

    // A wrong token, and each wrong state, changes nothing and names what would work.
    let token_of = |record: &Value| record["token"].to_string();
    for (key, action, command) in [
        ("completed", &["resolve", "--not-done"][..], "keys show"),
        ("completed", &["reopen"], "keys show"),
        ("running", &["release"], "keys show"),
        ("running", &["purge", "--force"], "keys show"),
        ("dead", &["release"], "keys reopen"),
        ("unknown", &["reopen"], "keys resolve"),
        ("unknown", &["purge"], "--force"),
    ] {
        let before = show(key);
        let (rk, token) = (text(&before["rk"]).to_owned(), token_of(&before));
        let (code, _, error) = run(&[&action[..1], &[&rk, "--token", &token], &action[1..]].concat());
        assert!(code == 1 && error.contains(command), "{key} {action:?}: {code} {error}");
        let (planned, _, same) = run(&[&action[..1], &[&rk, "--token", &token, "--dry-run"], &action[1..]].concat());
        assert_eq!((planned, same.contains(command)), (1, true), "{key} {action:?}: {same}");
        let (code, _, error) = run(&[&action[..1], &[&rk, "--token", "7"], &action[1..]].concat());
        assert!(code == 1 && error.contains("keys show"), "{key} {action:?}: {code} {error}");
        assert_eq!((&show(key)["token"], &show(key)["state"]), (&before["token"], &before["state"]), "{key}");
    }

    // What the states allow.
    let (file, field) = (format!("@{}", body.display()), "Content-Type: application/json");
    let unknown = show("unknown");
    let answer = ["--done", "--status", "201", "--header", field, "--body", &file];
    let named = [text(&unknown["rk"]), "--token", &token_of(&unknown)];
    let planned = run(&[&["resolve", "--dry-run"], &named[..], &answer].concat());
    assert_eq!((planned.0, &planned.1[0]["done"]), (0, &Value::from(false)), "{}", planned.2);
    assert_eq!(show("unknown")["state"], "unknown");
    let done = run(&[&["resolve"], &named[..], &answer].concat());
    assert_eq!(done.0, 0, "{}", done.2);
    assert_eq!((&done.1[0]["before"]["state"], &done.1[0]["after"]["state"]), (&"unknown".into(), &"completed".into()));
    assert_eq!(run(&[&["resolve"], &named[..], &answer].concat()).0, 0, "it may be repeated");
    let shown = run(&["show", text(&unknown["rk"]), "--answer"]).1.remove(0);
    let headers = serde_json::json!([["content-type", "application/json"]]);
    assert_eq!((&shown["answer"]["headers"], &shown["answer"]["body"]), (&headers, &"{\"paid\":true}".into()));
    let dead = show("dead");
    assert_eq!(run(&["reopen", text(&dead["rk"]), "--token", &token_of(&dead)]).0, 0);
    assert_eq!(show("dead")["state"], "released");
    let completed = show("completed");
    assert_eq!(run(&["purge", text(&completed["rk"]), "--token", &token_of(&completed)]).1[0]["after"], Value::Null);
    assert_eq!(run(&["show", "--key", "completed"]).0, 1);

    // Many at once.
    let (code, planned, error) = run(&["release", "--state", "unknown", "--dry-run"]);
    assert!(code == 0 && planned.len() == 1 && error.contains("1 records, 0 of them refused; nothing is"), "{error}");
    let (code, planned, error) = run(&["release", "--state", "in-progress", "--dry-run"]);
    assert!(code == 0 && planned.is_empty() && error.contains("1 records, 1 of them refused"), "{error}");
    assert!(error.contains("the records of all gateways and workers on this store"), "{error}");
    let (code, _, error) = run(&["release", "--state", "unknown"]);
    assert!(code == 2 && error.contains("add --all-namespaces"), "{code} {error}");
    assert_eq!(show("unknown too")["state"], "unknown");
    let all = ["release", "--state", "unknown", "--all-namespaces"];
    assert_eq!(run(&[&all[..], &["--older-than", "1h"]].concat()).1.len(), 0);
    assert_eq!(run(&all).1.len(), 1);
    assert_eq!(show("unknown too")["state"], "released");

    let events = std::fs::read_to_string(&audit).unwrap();
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |result: &str| events.iter().filter(|event| event["result"] == result).count();
    assert_eq!((count("begun"), count("done"), count("refused"), events.len()), (19, 5, 14, 38));
    let outcomes = events.iter().filter(|event| event["arguments"]["outcome"] == "done" && event["result"] == "done");
    assert!(outcomes.into_iter().all(|event| event["arguments"]["status"] == 201), "{events:?}");
    assert!(events.iter().all(|event| event["who"]["by"] == "command" && event["token"].is_u64()), "{events:?}");
    assert!(!std::fs::read_to_string(&audit).unwrap().contains("paid"), "the audit has no answers");
}

/// A list goes through all records, page by page.
pub(crate) async fn lists_more_than_a_page(store: &dyn Store, url: &str) {
    for number in 0..1200 {
        plant(store, &format!("k{number}"), if number == 700 { Planted::Abandoned } else { Planted::Completed }).await;
    }
    let listed = keys(&["list", "--store", url]).1;
    let unique: std::collections::HashSet<_> = listed.iter().map(|record| text(&record["rk"])).collect();
    assert_eq!(unique.len(), 1200);
    assert_eq!(keys(&["list", "--store", url, "--state", "unknown"]).1.len(), 1);
    assert_eq!(keys(&["list", "--store", url, "--limit", "7"]).1.len(), 7);
}

/// A gateway that was killed in the middle of two payments, and runs again. Both outcomes are unknown.
pub(crate) struct Drill {
    api: Api,
    pub(crate) gateway: Gateway,
    credential: String,
}

/// What the operator of a drill gives as the answer of the first payment: a status and a body.
pub(crate) const ANSWER_BY_HAND: (u16, &str) = (201, "<b id=\"planted\">paid by hand</b>");

impl Drill {
    pub(crate) async fn start(url: &str, directory: &Path) -> Self {
        let (api, data) = (Api::start().await, directory.join("data"));
        let flags = ["--lease", "1s", "--on-lapse", "hold", "--data-dir", data.to_str().unwrap()];
        let mut gateway = Gateway::start(api.address, url, &flags).await;
        let (one, other) = (gateway.client(), gateway.client());
        let requests = tokio::spawn(async move {
            tokio::join!(
                one.post("/slow", "payment-1", "{\"amount\":1}"),
                other.post("/slow", "payment-2", "{\"amount\":2}")
            )
        });
        api.wait_for_requests(2).await;
        let public = gateway.kill_and_return_address();
        assert!(requests.await.unwrap().0.is_none(), "the client gets no answer");
        let gateway = Gateway::start_at(api.address, url, &flags, public).await;
        let credential = directory.join("credential");
        std::fs::write(&credential, "Bearer tenant-secret\n").unwrap();
        let drill = Self { api, gateway, credential: format!("@{}", credential.display()) };
        let mut found = Vec::new();
        until("both leases have expired", async || {
            found = keys(&["list", "--state", "unknown", "--admin", &drill.admin()]).1;
            found.len() == 2
        })
        .await;
        for record in &found {
            assert!(record["age_seconds"].is_u64() && record["attempt"] == 1 && text(&record["operation"]).len() == 36);
        }
        drill
    }

    pub(crate) fn admin(&self) -> String {
        format!("http://{}", self.gateway.admin)
    }

    /// The record key and the token of a payment.
    pub(crate) fn record(&self, key: &str) -> (String, String) {
        let admin = self.admin();
        let words = ["show", "--key", key, "--authorization", &self.credential, "--admin", &admin];
        let found = keys(&words).1.remove(0);
        (text(&found["rk"]).to_owned(), found["token"].to_string())
    }

    /// The operator has resolved the first payment as done and the second one as not done.
    pub(crate) async fn check(&self) {
        let (api, gateway) = (&self.api, &self.gateway);
        let replayed = gateway.post("/slow", "payment-1", "{\"amount\":1}").await.unwrap();
        let answer = (replayed.status.as_u16(), &*replayed.body);
        assert!(answer == ANSWER_BY_HAND && replayed.is_replayed(), "{answer:?}");
        assert_eq!(api.count(), 2, "it did not run again");
        (0..3).for_each(|_| api.release_slow());
        let fresh = gateway.post("/slow", "payment-2", "{\"amount\":2}").await.unwrap();
        assert!(fresh.status == 201 && !fresh.is_replayed() && fresh.body.starts_with("answer"), "{}", fresh.body);
        assert_eq!(api.count(), 3);
    }

    /// The audit file has one write of this record.
    pub(crate) async fn check_audit(&self, rk: &str, after: &str) {
        let audit = self.gateway.get(self.gateway.admin, &format!("/api/v1/audit?record={rk}")).await.unwrap().body;
        let audit: Value = serde_json::from_str(&audit).unwrap();
        let event = &audit["events"][0];
        assert_eq!((&event["action"], &event["result"]), (&"resolve".into(), &"done".into()), "{audit}");
        assert_eq!((&event["before"]["state"], &event["after"]["state"]), (&"unknown".into(), &after.into()));
        assert_eq!(event["who"]["name"], "127.0.0.1");
    }
}

/// An operator finds the keys of a killed gateway, resolves one as done and one as not done, and the clients' retries
/// get the answer and a fresh run.
pub(crate) async fn drill(url: &str, directory: &Path) {
    let drill = Drill::start(url, directory).await;
    let (done, not_done) = (drill.record("payment-1"), drill.record("payment-2"));
    let (status, text) = ANSWER_BY_HAND;
    let body = directory.join("answer");
    std::fs::write(&body, text).unwrap();
    let (status, body, admin) = (status.to_string(), format!("@{}", body.display()), drill.admin());
    let place = ["--admin", &admin];
    let answer = ["--done", "--status", &status, "--header", "Content-Type: text/plain", "--body", &body];
    assert_eq!(keys(&[&["resolve", &done.0, "--token", &done.1], &answer[..], &place].concat()).0, 0);
    assert_eq!(keys(&[&["resolve", &not_done.0, "--token", &not_done.1, "--not-done"], &place[..]].concat()).0, 0);
    drill.check_audit(&done.0, "completed").await;
    drill.check_audit(&not_done.0, "released").await;
    drill.check().await;
}
