//! `hapax gateway` and `hapax migrate` on the emulator of Spanner.

use std::process::Output;
use std::sync::Arc;

use hapax_testkit::servers::{self, SpannerServer, Trial};

use crate::harness::{Api, Gateway, hapax};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        servers::test("migrate_makes_the_table_of_a_store_and_checks_it", "spanner", migrate),
        servers::test("migrate_makes_the_tables_of_a_database_and_checks_them", "spanner", migrate_database),
        servers::test("a_gateway_runs_a_request_once_and_replays_its_answer", "spanner", first_and_replay),
    ]
}

fn run(words: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = hapax().args(words).output().unwrap();
    (status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

async fn server() -> Arc<SpannerServer> {
    SpannerServer::shared().await.unwrap()
}

async fn migrate() {
    let server = server().await;
    let url = server.new_database();
    for words in ["the table is there now", "nothing to do"] {
        let (code, told) = run(&["migrate", "--store", &url]);
        assert!(code == Some(0) && told.contains(words), "{code:?} {told}");
    }
    let (code, told) = run(&["migrate", "--store", &url, "--check"]);
    assert_eq!((code, &*told), (Some(0), "the table is there\n"));
    assert_eq!(run(&["migrate", "--store", &url, "--print"]), (Some(0), String::new()), "nothing is missing");
}

async fn migrate_database() {
    let server = server().await;
    let url = server.new_database();
    for words in ["applied: versions 1, 2, 3\n", "nothing to do"] {
        let (code, told) = run(&["migrate", "--database", &url]);
        assert!(code == Some(0) && told.contains(words), "{code:?} {told}");
    }
    let (code, told) = run(&["migrate", "--database", &url, "--check"]);
    assert_eq!((code, &*told), (Some(0), "the tables are there, in the newest version\n"));
    assert_eq!(run(&["migrate", "--database", &url, "--print"]), (Some(0), String::new()), "nothing is missing");
    let (code, told) = run(&["migrate", "--store", &url, "--check"]);
    assert_eq!((code, &*told), (Some(0), "the table is there\n"));
}

async fn first_and_replay() {
    let (server, api, directory) = (server().await, Api::start().await, tempfile::tempdir().unwrap());
    let url = server.new_database();
    let flags = ["--data-dir", directory.path().to_str().unwrap()];
    let (code, told) = run(&["migrate", "--store", &url]);
    assert_eq!(code, Some(0), "{told}");
    let mut gateway = Gateway::start(api.address, &url, &flags).await;
    let first = gateway.post("/charges", "payment-17", "{}").await.unwrap();
    assert!(first.status.is_success() && !first.is_replayed(), "{}", first.body);
    let again = gateway.post("/charges", "payment-17", "{}").await.unwrap();
    assert!(again.is_replayed() && again.body == first.body, "{}", again.body);
    let other = gateway.post("/charges", "payment-17", r#"{"amount":9}"#).await.unwrap();
    assert_eq!((other.status.as_u16(), other.problem()), (422, "key-reused"));
    // Another process finds the record.
    let address = gateway.kill_and_return_address();
    let gateway = Gateway::start_at(api.address, &url, &flags, address).await;
    let again = gateway.post("/charges", "payment-17", "{}").await.unwrap();
    assert!(again.is_replayed() && again.body == first.body, "{}", again.body);
    assert_eq!(api.count(), 1);
    let (code, told) = run(&["keys", "list", "--store", &url]);
    assert!(code == Some(0) && told.contains("completed"), "{code:?} {told}");
}
