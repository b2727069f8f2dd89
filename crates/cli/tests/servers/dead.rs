//! `hapax dead` on servers.

use std::process::Output;

use hapax::broker::{DeadLetter, DeadLetterStore, DeadReason};
use hapax::stores::{PostgresDeadLetters, RedisDeadLetters};
use hapax_testkit::servers::{self, PostgresServer, RedisKind, RedisServer, RedisServerOptions, Trial};
use serde_json::json;

use crate::dead_letters::{id, letter, objects};
use crate::harness::hapax;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        servers::test("dead_letters_are_listed_shown_and_marked", "postgres", on_postgres),
        servers::test("dead_letters_are_listed_shown_and_marked", "redis", on_redis),
        servers::test("a_list_creates_no_table_in_a_database_without_dead_letters", "postgres", wrong_database),
    ]
}

async fn on_postgres() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let letters = PostgresDeadLetters::connect(&schema.url().parse().unwrap()).unwrap();
    list_show_and_mark(&letters, &["--database", &schema.url()]).await;
}

async fn wrong_database() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let relations = "select count(*) from pg_class where relnamespace = to_regnamespace($1)";
    let count = async || schema.admin().query_one(relations, &[&schema.name()]).await.unwrap().get::<_, i64>(0);
    let before = count().await;
    for (command, place) in [("dead", "--database"), ("dead", "--store"), ("outbox", "--database"), ("keys", "--store")]
    {
        let output = hapax().args([command, "list", place, &schema.url()]).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{command}: {output:?}");
    }
    assert_eq!(count().await, before, "nothing is created");
}

async fn on_redis() {
    let server = RedisServer::start(RedisServerOptions::new(RedisKind::Redis)).await.unwrap();
    let letters = RedisDeadLetters::connect(&server.url().parse().unwrap()).unwrap();
    list_show_and_mark(&letters, &["--store", &server.url()]).await;
}

async fn list_show_and_mark(letters: &dyn DeadLetterStore, place: &[&str]) {
    let put = [DeadReason::Rejected, DeadReason::KeyReused].into_iter().zip(1..);
    let put: Vec<DeadLetter> = put.map(|(reason, n)| letter(n, reason)).collect();
    letters.put(put).await.into_iter().for_each(|result| result.unwrap());
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.jsonl");
    let run = |arguments: &[&str]| {
        hapax().arg("dead").args(arguments).args(place).arg("--audit-file").arg(&audit).output().unwrap()
    };
    let printed = |output: Output| {
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        objects(&String::from_utf8(output.stdout).unwrap())
    };
    let listed = printed(run(&["list", "--json"]));
    assert_eq!(listed.iter().map(|letter| letter["id"].clone()).collect::<Vec<_>>(), [id(1), id(2)]);
    let cursor = listed[0]["cursor"].as_str().unwrap();
    assert_eq!(printed(run(&["list", "--json", "--after", cursor]))[0]["id"], json!(id(2)));
    assert_eq!(printed(run(&["show", &id(2), "--json", "--payload"]))[0]["payload"], json!("top secret"));
    let seen = printed(run(&["show", &id(2), "--json"]))[0]["seen"].as_str().unwrap().to_owned();
    printed(run(&["redrive", "--json", &id(2), "--seen", &seen]));
    assert!(printed(run(&["list", "--json"]))[1]["redrive_at"].is_string());
    assert_eq!(run(&["drop", "--json", &id(2), "--seen", &seen]).status.code(), Some(1), "it was marked since");
}
