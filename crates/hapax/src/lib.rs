//! An operation that arrives many times happens once, and every copy gets the same answer.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use std::sync::Arc;
//! use hapax::prelude::*;
//! use hapax::store::Memory;
//!
//! let store = Memory::new();
//! let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
//! let call = Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?);
//!
//! let first = gate.run(call, |_attempt| async { Ok(String::from("charge 1")) }).await?;
//! let retry = gate.run(call, |_attempt| async { Ok(String::from("charge 2")) }).await?;
//! assert_eq!(first.answer, "charge 1");
//! assert_eq!(retry.answer, "charge 1");
//! # Ok(())
//! # }
//! ```
//!
//! The [`guide`] continues with a first route, the answers that its clients see, and the outcomes of a handler.
//!
//! | feature | adds |
//! |---|---|
//! | `relay` | `relay`: publishes the events of an outbox |
//! | `worker` | `worker`: processes the messages of a broker, each once |
//! | `tokio` (default) | `runtime::Tokio`, the runtime of a gate |
//! | `json` | `gate::Json`: answers of any type that serde can write and read |
//! | `http` | `http`: the tower layer for `Idempotency-Key` |
//! | `axum` | `http::axum`: extractors and responses for handlers of axum |
//! | `kafka` | `brokers::KafkaSource`: messages from Kafka; `KafkaSink`: events to Kafka; `kafka-tls` adds TLS and SCRAM |
//! | `nats` | `brokers::NatsSource`: messages from NATS JetStream; `NatsSink`: events to it |
//! | `rabbitmq` | `brokers::RabbitMqSource`: messages from a queue of RabbitMQ; `RabbitMqSink`: events to it |
//! | `pubsub` | `brokers::PubSubSource`: messages from a subscription of Google Cloud Pub/Sub; `PubSubSink`: events to it |
//! | `dynamodb` | `stores::DynamoDb`: records in a table of AWS DynamoDB |
//! | `postgres` | `stores::Postgres`: records on a PostgreSQL server; `PostgresLedger`, `PostgresOutbox` and dead letters |
//! | `redis` | `stores::Redis`: records on a Redis or Valkey server, and dead letters |
//! | `s3` | `stores::FarAnswers`: large answers in a bucket of S3, beside any store |
//! | `gcs` | the same in a bucket of Google Cloud Storage |
//! | `spanner` | `stores::Spanner`, `SpannerLedger`, `SpannerOutbox`: records, ledger and outbox in a database of Google Cloud Spanner |
//! | `sqlite` | `stores::Sqlite`: records in one file; `SqliteLedger`, `SqliteOutbox`, a queue and dead letters |
//! | `sqlx` | `stores::SqlxLedger`: the ledger in transactions of sqlx on PostgreSQL, and its runner |
//! | `test-util` | `testing`: delivers a call twice and kills it in between, for the tests of services with a ledger |
//! | `sqs` | `brokers::SqsSource`: messages from a queue of AWS SQS; `SqsSink`: events to it |
//! | `webhook` | `brokers::WebhookSink`: events as signed POSTs to endpoints |
//!
//! Three names stand for two types each, of which a program usually needs one:
//!
//! | in the root, or for the gate | elsewhere |
//! |---|---|
//! | [`Call`]: a key in its scope, for a gate | [`ledger::Call`]: the id of an operation, for a ledger; `From` makes it of the first one and of an attempt |
//! | [`gate::Attempt`]: what the closure of [`Gate::run`] gets | `http::axum::Attempt`: the extractor with it, for a handler of axum |
//! | `gate::Json`: an answer that a gate or a ledger stores | `axum::Json`: the body of a response, which the tower layer stores by itself |

pub mod guide;

/// The types that every program with a gate names: `use hapax::prelude::*`. Stores, ledgers and the tower layer are in
/// modules of their own.
///
/// ```
/// use hapax::prelude::*;
///
/// fn call(key: &str) -> Result<Call, Error> {
///     Ok(Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new(key)?))
/// }
/// # assert!(call("order-7").is_ok());
/// ```
pub mod prelude {
    pub use hapax_core::{Call, Error, Gate, Identity, Key, Policy, Scope, Settings};
}

#[cfg(any(feature = "http", feature = "worker"))]
#[doc(inline)]
pub use hapax_core::canonical_json;
#[cfg(feature = "relay")]
#[doc(inline)]
pub use hapax_core::relay;
#[cfg(feature = "worker")]
#[doc(inline)]
pub use hapax_core::worker;
#[doc(inline)]
pub use hapax_core::{
    AnswerPointer, BoxError, Call, Completion, Error, ErrorKind, EventId, Fingerprint, Found, Gate, Holding, Identity,
    Inspect, Journal, Key, Millis, OnBusy, OnLapse, OnStoreDown, OperationId, Owner, Phase, Policy, Probe, Record,
    RecordKey, Repeatable, Result, Rule, Scope, Seconds, Settings, State, Store, StoredAnswer, Timestamp, Token,
    broker, gate, journal, ledger, machine, outbox, runtime, settings, store, telemetry,
};

#[cfg(any(
    feature = "kafka",
    feature = "nats",
    feature = "pubsub",
    feature = "rabbitmq",
    feature = "sqs",
    feature = "webhook"
))]
#[doc(inline)]
pub use hapax_brokers as brokers;
#[cfg(feature = "test-util")]
#[doc(inline)]
pub use hapax_core::testing;
#[cfg(feature = "http")]
#[doc(inline)]
pub use hapax_http as http;
#[cfg(any(
    feature = "dynamodb",
    feature = "postgres",
    feature = "redis",
    feature = "s3",
    feature = "spanner",
    feature = "sqlite",
    feature = "sqlx"
))]
#[doc(inline)]
pub use hapax_stores as stores;
