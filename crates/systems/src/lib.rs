//! The systems that URLs name: stores, databases, places for answers, sources of messages, sinks of events.
//!
//! A system is a file here and a row of the table. The row exists in every build, so an error can name the feature of a
//! system that is not built in.

#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "gcs")]
mod gcs;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "pubsub")]
mod pubsub;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "spanner")]
mod spanner;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqs")]
mod sqs;

mod answers;
mod broker;
mod database;
mod dead_letters;
mod memory;
mod sink;
mod source;
mod store;
mod store_table;
mod table;
mod watch;
mod webhook;

pub use answers::{AnswersUrl, OpenedAnswers};
pub use broker::{BrokerUrl, TopicPlan};
pub use database::Tables;
pub use dead_letters::DeadLetterPlace;
pub use hapax::brokers::{WebhookEndpoint, WebhookSecret};
pub use sink::SinkUrl;
pub use source::SourceUrl;
pub use store::{OpenError, OpenedOutbox, OpenedStore, StoreUrl};
pub use store_table::StoreTable;
pub use table::{features, is_file};
pub use watch::WatchedFile;
pub use webhook::DEFAULT_ENDPOINT;
