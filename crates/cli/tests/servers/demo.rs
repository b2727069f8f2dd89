//! `hapax demo` on real servers.

use hapax_testkit::servers::{self, NatsServer, PostgresServer, RedisKind, RedisServer, RedisServerOptions, Trial};

use crate::harness::hapax;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        #[cfg(feature = "kafka")]
        servers::test("the_audit_of_all_layers_holds_on_redis_postgres_and_kafka", "kafka", on_kafka),
        servers::test("the_audit_of_all_layers_holds_on_redis_postgres_and_nats", "nats", on_nats),
        #[cfg(feature = "pubsub")]
        servers::test("the_audit_of_all_layers_holds_on_redis_postgres_and_pubsub", "pstest", on_pubsub),
        #[cfg(feature = "rabbitmq")]
        servers::test("the_audit_of_all_layers_holds_on_redis_postgres_and_rabbitmq", "rabbitmq", on_rabbitmq),
        #[cfg(feature = "sqs")]
        servers::test("the_audit_of_all_layers_holds_on_redis_postgres_and_sqs", "elasticmq", on_sqs),
    ]
}

#[cfg(feature = "kafka")]
async fn on_kafka() {
    audit_holds(&servers::KafkaServer::shared().await.unwrap().url()).await;
}

async fn on_nats() {
    audit_holds(&NatsServer::shared().await.unwrap().url()).await;
}

/// The emulator of Google would lose the order of an account.
#[cfg(feature = "pubsub")]
async fn on_pubsub() {
    audit_holds(&servers::PsTestServer::shared().await.unwrap().named("")).await;
}

#[cfg(feature = "rabbitmq")]
async fn on_rabbitmq() {
    audit_holds(&servers::RabbitMqServer::shared().await.unwrap().url()).await;
}

#[cfg(feature = "sqs")]
async fn on_sqs() {
    audit_holds(&servers::ElasticMqServer::shared().await.unwrap().url()).await;
}

async fn audit_holds(broker: &str) {
    let database = PostgresServer::shared().await.unwrap();
    let store = RedisServer::start(RedisServerOptions::new(RedisKind::Redis)).await.unwrap();
    let flags = ["demo", "--payments", "150", "--crashes", "2", "--seed", "7"];
    let urls = ["--store", &store.url(), "--database", &database.url(), "--broker", broker];
    let output = hapax().args(flags).args(urls).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("The audit holds"), "{text}");
    let records: u32 = store.command(&["DBSIZE"]).await.unwrap().text().parse().unwrap();
    assert!(records > 100, "the records must be in this store");
}
