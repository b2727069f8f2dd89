//! `hapax gateway` and `hapax migrate` on a stand-in for DynamoDB.

use std::process::Output;

use hapax_testkit::servers::{self, DynamoDbServer, Trial};
use serde_json::json;

use crate::harness::{Api, Gateway, hapax};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        servers::test("migrate_makes_the_table_of_a_store_and_checks_it", "dynamodb", migrate),
        servers::test("a_gateway_runs_a_request_once_and_replays_its_answer", "dynamodb", first_and_replay),
        servers::test("a_gateway_without_its_table_names_the_remedy", "dynamodb", without_table),
    ]
}

fn run(words: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = hapax().args(words).output().unwrap();
    (status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

async fn migrate() {
    let table = DynamoDbServer::table().await.unwrap();
    let url = table.server().url("payments");
    let (code, told) = run(&["migrate", "--store", &url, "--check"]);
    assert!(code == Some(1) && told.contains("the table is missing"), "{code:?} {told}");
    let (code, told) = run(&["migrate", "--store", &url, "--print"]);
    let commands = ["aws dynamodb create-table --region eu-west-1", "aws dynamodb update-time-to-live"];
    assert!(code == Some(0) && commands.iter().all(|command| told.contains(command)), "{code:?} {told}");
    assert!(table.server().call("DescribeTable", &json!({ "TableName": "payments" })).await.is_err(), "it only prints");
    for words in ["the table is there now", "nothing to do"] {
        let (code, told) = run(&["migrate", "--store", &url]);
        assert!(code == Some(0) && told.contains(words), "{code:?} {told}");
    }
    let (code, told) = run(&["migrate", "--store", &url, "--check"]);
    assert_eq!((code, &*told), (Some(0), "the table is there\n"));
    assert_eq!(run(&["migrate", "--store", &url, "--print"]), (Some(0), String::new()), "nothing is missing");
    // This one has no TTL.
    let (code, told) = run(&["migrate", "--store", &table.url(), "--print"]);
    let is_only_expiry = told.starts_with("aws dynamodb update-time-to-live") && told.matches("aws ").count() == 1;
    assert!(code == Some(0) && is_only_expiry, "{code:?} {told}");
    let (code, told) = run(&["migrate", "--store", &table.url(), "--check"]);
    assert!(code == Some(1) && told.contains("the table has no TTL"), "{code:?} {told}");
    let (code, told) = run(&["migrate", "--store", "memory:"]);
    assert!(code == Some(2) && told.contains("dynamodb://REGION/TABLE"), "{code:?} {told}");
}

async fn first_and_replay() {
    let (table, api, directory) =
        (DynamoDbServer::table().await.unwrap(), Api::start().await, tempfile::tempdir().unwrap());
    let flags = ["--data-dir", directory.path().to_str().unwrap()];
    let mut gateway = Gateway::start(api.address, &table.url(), &flags).await;
    let first = gateway.post("/charges", "payment-17", "{}").await.unwrap();
    assert!(first.status.is_success() && !first.is_replayed(), "{}", first.body);
    let again = gateway.post("/charges", "payment-17", "{}").await.unwrap();
    assert!(again.is_replayed() && again.body == first.body, "{}", again.body);
    let other = gateway.post("/charges", "payment-17", r#"{"amount":9}"#).await.unwrap();
    assert_eq!((other.status.as_u16(), other.problem()), (422, "key-reused"));
    // Another process finds the record.
    let address = gateway.kill_and_return_address();
    let gateway = Gateway::start_at(api.address, &table.url(), &flags, address).await;
    let again = gateway.post("/charges", "payment-17", "{}").await.unwrap();
    assert!(again.is_replayed() && again.body == first.body, "{}", again.body);
    assert_eq!(api.count(), 1);
    let (code, told) = run(&["keys", "list", "--store", &table.url()]);
    assert!(code == Some(0) && told.contains("completed"), "{code:?} {told}");
}

async fn without_table() {
    let (table, directory) = (DynamoDbServer::table().await.unwrap(), tempfile::tempdir().unwrap());
    let missing = table.server().url("missing");
    let (code, told) = run(&[
        "gateway",
        "--upstream",
        "http://127.0.0.1:9",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--store",
        &missing,
        "--data-dir",
        directory.path().to_str().unwrap(),
    ]);
    assert!(code == Some(3) && told.contains("hapax migrate"), "{code:?} {told}");
}
