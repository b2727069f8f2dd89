//! Runs the program on a real broker and a real database, kills it, and stops it.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use hapax_testkit::servers::{self, PostgresServer, PostgresServerOptions, RabbitMqServer};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::Client;

const DEADLINE: Duration = Duration::from_secs(120);
const TRANSFERS: i64 = 300;

fn main() -> ExitCode {
    // The test needs both servers.
    let service = if servers::required("rabbitmq").is_ok() { "postgres" } else { "rabbitmq" };
    servers::main([servers::test("each_transfer_happens_once_though_the_worker_is_killed", service, killed)])
}

async fn killed() {
    let rabbitmq = RabbitMqServer::start(&[]).await.unwrap();
    let postgres = PostgresServer::start(PostgresServerOptions::new()).await.unwrap();
    let bank = postgres.client().await.unwrap();
    bank.batch_execute(include_str!("../bank.sql")).await.unwrap();
    let url = format!("amqp://guest:guest@{}/%2F", rabbitmq.address());
    let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let channel = queue(&connection).await;
    let url = format!("{url}?queue=transfers");
    let mut worker = WorkerProgram::start(&url, &postgres.url());
    for number in 0..TRANSFERS / 2 {
        send(&channel, number, 1).await;
    }
    until(&mut worker, &bank, "select count(*) >= 20 from transfer").await;
    // What the worker has claimed cannot end as long as the account is locked.
    let lock = postgres.client().await.unwrap();
    lock.batch_execute("begin; select from account where name = 'alice' for update").await.unwrap();
    for number in TRANSFERS / 2..TRANSFERS {
        send(&channel, number, 1).await;
        send(&channel, number / 2, 1).await;
    }
    // The key of another transfer, and more money than there is.
    send(&channel, 0, 2).await;
    send(&channel, TRANSFERS, 1_000_000).await;

    let claims =
        "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and query like '%account%')";
    until(&mut worker, &bank, claims).await;
    drop(worker);
    lock.batch_execute("rollback").await.unwrap();
    let mut worker = WorkerProgram::start(&url, &postgres.url());
    until(&mut worker, &bank, "select to_regclass('hapax_dead') is not null").await;
    until(&mut worker, &bank, "select (select count(*) from hapax_dead) = 2").await;
    until(&mut worker, &bank, "select (select count(*) from transfer) = 300").await;
    for number in (0..TRANSFERS).chain([TRANSFERS + 1]) {
        send(&channel, number, 1).await;
    }
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

/// Declares the queue. Returns a channel with confirmations.
async fn queue(connection: &Connection) -> Channel {
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare("transfers".into(), options, arguments).await.unwrap();
    channel
}

async fn send(channel: &Channel, number: i64, amount: i64) {
    let (key, order) = (format!("order-{number}"), format!("alice bob {amount}"));
    let mut headers = FieldTable::default();
    headers.insert("Idempotency-Key".into(), AMQPValue::LongString(key.into()));
    let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
    let options = BasicPublishOptions::default();
    let sent = channel.basic_publish("".into(), "transfers".into(), options, order.as_bytes(), properties).await;
    assert_eq!(sent.unwrap().await.unwrap(), Confirmation::Ack(None));
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
    fn start(queue: &str, database: &str) -> Self {
        Self(Command::new(env!("CARGO_BIN_EXE_example-worker-rabbitmq")).args([queue, database]).spawn().unwrap())
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
