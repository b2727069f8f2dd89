//! Runs the program on a real broker and a real database, kills it, and stops it.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use hapax_testkit::servers::{self, KafkaServer, PostgresServer, PostgresServerOptions};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::Client;

const DEADLINE: Duration = Duration::from_secs(120);
const TRANSFERS: i64 = 300;

fn main() -> ExitCode {
    // The test needs both servers.
    let service = if servers::required("kafka").is_ok() { "postgres" } else { "kafka" };
    let killed = servers::test("each_transfer_happens_once_though_the_worker_is_killed", service, killed);
    let shown = servers::Trial::test("the_guide_shows_the_program", || {
        the_guide_shows_the_program();
        Ok(())
    });
    servers::main([killed, shown])
}

fn the_guide_shows_the_program() {
    let program = include_str!("../src/main.rs").split_once("\n\n").unwrap().1;
    assert!(include_str!("../../../crates/hapax/src/guide/consume_a_topic_kafka.md").contains(program));
}

async fn killed() {
    let kafka = KafkaServer::start(&[]).await.unwrap();
    let postgres = PostgresServer::start(PostgresServerOptions::new()).await.unwrap();
    let bank = postgres.client().await.unwrap();
    bank.batch_execute(include_str!("../bank.sql")).await.unwrap();
    let producer = topic(&kafka).await;
    let topic = format!("{}/transfers?group=bank&session-timeout=6", kafka.url());
    let mut worker = WorkerProgram::start(&topic, &postgres.url());
    for number in 0..TRANSFERS / 2 {
        send(&producer, number, 1);
    }
    until(&mut worker, &bank, "select count(*) >= 20 from transfer").await;
    // What the worker has claimed cannot end as long as the account is locked.
    let lock = postgres.client().await.unwrap();
    lock.batch_execute("begin; select from account where name = 'alice' for update").await.unwrap();
    for number in TRANSFERS / 2..TRANSFERS {
        send(&producer, number, 1);
        send(&producer, number / 2, 1);
    }
    // The key of another transfer, and more money than there is.
    send(&producer, 0, 2);
    send(&producer, TRANSFERS, 1_000_000);
    producer.flush(DEADLINE).unwrap();

    let claims =
        "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and query like '%account%')";
    until(&mut worker, &bank, claims).await;
    drop(worker);
    lock.batch_execute("rollback").await.unwrap();
    let mut worker = WorkerProgram::start(&topic, &postgres.url());
    until(&mut worker, &bank, "select to_regclass('hapax_dead') is not null").await;
    until(&mut worker, &bank, "select (select count(*) from hapax_dead) = 2").await;
    until(&mut worker, &bank, "select (select count(*) from transfer) = 300").await;
    for number in 0..TRANSFERS {
        send(&producer, number, 1);
    }
    send(&producer, TRANSFERS + 1, 1);
    producer.flush(DEADLINE).unwrap();
    until(&mut worker, &bank, "select count(*) = 301 from transfer").await;
    assert!(worker.stop().success());

    let read = "select (select count(distinct operation) from transfer), (select count(*) from hapax_outbox), \
                (select balance from account where name = 'alice'), (select balance from account where name = 'bob')";
    let row = bank.query_one(read, &[]).await.unwrap();
    let figures: Vec<i64> = (0..4).map(|column| row.get(column)).collect();
    assert_eq!(figures, [301, 301, 1000 - 301, 1000 + 301]);
    let reasons = bank.query("select reason from hapax_dead order by reason", &[]).await.unwrap();
    let reasons: Vec<&str> = reasons.iter().map(|row| row.get(0)).collect();
    assert_eq!(reasons, ["key-reused", "rejected"]);
}

/// Creates the topic with one partition. Returns a producer.
async fn topic(kafka: &KafkaServer) -> BaseProducer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka.address().to_string()).set("enable.idempotence", "true");
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let new = NewTopic::new("transfers", 1, TopicReplication::Fixed(1));
    let options = AdminOptions::new().operation_timeout(Some(DEADLINE));
    assert_eq!(admin.create_topics([&new], &options).await.unwrap(), [Ok(String::from("transfers"))]);
    config.create().unwrap()
}

fn send(producer: &BaseProducer, number: i64, amount: i64) {
    let (key, order) = (format!("order-{number}"), format!("alice bob {amount}"));
    let headers = OwnedHeaders::new().insert(Header { key: "Idempotency-Key", value: Some(&key) });
    let record = BaseRecord::to("transfers").key("alice").payload(&order).headers(headers);
    producer.send(record).map_err(|(error, _)| error).unwrap();
}

/// Waits until the statement says true.
async fn until(worker: &mut WorkerProgram, bank: &Client, condition: &str) {
    let begun = Instant::now();
    while !bank.query_one(condition, &[]).await.unwrap().get::<_, bool>(0) {
        assert!(worker.0.try_wait().unwrap().is_none(), "the worker ended by itself");
        assert!(begun.elapsed() < DEADLINE, "never: {condition}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The program, killed when dropped.
struct WorkerProgram(Child);

impl WorkerProgram {
    fn start(topic: &str, database: &str) -> Self {
        Self(Command::new(env!("CARGO_BIN_EXE_example-worker-kafka")).args([topic, database]).spawn().unwrap())
    }

    /// Asks it to end, and waits until it has.
    fn stop(mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        self.0.wait().unwrap()
    }
}

impl Drop for WorkerProgram {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
