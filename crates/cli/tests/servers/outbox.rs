//! `hapax outbox` on PostgreSQL.

use hapax::EventId;
use hapax::ledger::Event;
use hapax::stores::{PostgresOutbox, PostgresTables};
use hapax_testkit::servers::{self, PostgresSchema, PostgresServer, Trial};

use crate::harness::hapax;
use crate::outbox_commands::{events, operate};

pub(crate) fn tests() -> Vec<Trial> {
    let name = "parked_keys_are_listed_resumed_and_dropped_and_events_published_again";
    vec![
        servers::test(name, "postgres", on_postgres),
        servers::test("a_database_without_an_outbox_is_refused_with_its_remedy", "postgres", without_tables),
    ]
}

async fn on_postgres() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let url = schema.url().parse().unwrap();
    PostgresTables::connect(&url).unwrap().create().await.unwrap();
    for event in events() {
        emit(&schema, event).await;
    }
    operate(&PostgresOutbox::connect(&url).unwrap(), &schema.url()).await;
}

async fn emit(schema: &PostgresSchema, event: Event) {
    let event = event.into_outgoing(EventId::from_bytes([0; 16])).unwrap();
    let sql = format!("select {}.hapax_emit('accounts', null, null, $1, $2, okey => $3, type => $4)", schema.name());
    let key = event.ordering_key.as_deref();
    schema.admin().execute(&sql, &[&event.topic, &&event.payload[..], &key, &event.kind]).await.unwrap();
}

async fn without_tables() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let output = hapax().args(["outbox", "list", "--database", &schema.url()]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("hapax migrate --database"), "{error}");
    let check = hapax().args(["migrate", "--check", "--database", &schema.url()]).output().unwrap();
    assert_eq!(check.status.code(), Some(1), "the command creates nothing");
}
