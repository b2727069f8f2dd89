//! Every example is compiled, and run unless it needs a server.
//!
//! | chapter | for | needs the features |
//! |---|---|---|
//! | `the_three_layers` | everybody: gate, ledger and outbox, end to end | `sqlite`, `worker` |
//! | `choosing` | everybody: which store, which policy, ledger or not, for six cases | – |
//! | `in_front_of_your_api` | everybody with an HTTP API in any language: the gateway in five minutes | – |
//! | `configuring_a_gateway` | operators of `hapax gateway`: the file, callers, stores, TLS, load balancers | – |
//! | `the_demo` | everybody: what `hapax demo` shows, and how to read its result | – |
//! | `your_first_route` | authors of a service with axum | `axum`, `sqlite` |
//! | `what_a_client_sees` | authors of a client of a protected route | `axum` |
//! | `outcomes` | authors of a handler | `tokio`; its part on HTTP `axum` |
//! | `your_transaction` | authors of a service with a database: the ledger | `sqlite`; its part on tests `test-util` |
//! | `ledger_in_spanner` | authors of a service on Google Cloud Spanner: the ledger, its tables, its rights | `spanner`, `tokio` |
//! | `emit_an_event` | authors of a service that publishes events: the outbox | `sqlite` |
//! | `when_a_key_is_parked` | operators of an outbox: events that a broker refuses or loses | `sqlite` and `tokio` |
//! | `webhooks` | authors and operators at both ends of a webhook: sent and received | `sqlite` |
//! | `consume_a_topic` | authors of a consumer: the worker, in Rust and in any language | `worker`, `sqlite`; its part on Kafka `kafka`, `postgres` |
//! | `queues_of_sqs` | authors and operators of consumers of AWS SQS: standard or FIFO, leases, rights | `sqs`, `tokio` |
//! | `topics_of_pubsub` | authors and operators of consumers of Google Cloud Pub/Sub: copies, leases, order, rights | `pubsub`, `tokio` |
//! | `which_key` | authors of a consumer: what identifies a message | `worker` |
//! | `when_a_message_is_dead` | operators and authors of consumers: dead letters, redrive | `sqlite` and `tokio` |
//! | `records_in_postgres` | operators of PostgreSQL: connection, tables, settings, possible loss | `postgres` |
//! | `records_in_redis` | operators of Redis or Valkey: settings, memory, possible loss | `redis` |
//! | `answers_in_a_bucket` | operators of `hapax gateway`: large answers in S3, permissions, lifecycle, encryption | `s3`, `tokio` |
//! | `records_in_dynamodb` | operators of AWS DynamoDB: table, permissions, clock, costs, possible loss | `dynamodb`, `tokio` |
//! | `records_in_spanner` | operators of Google Cloud Spanner: table, permissions, costs, possible loss | `spanner`, `tokio` |
//! | `operating_a_gateway` | operators of `hapax gateway`: log, signals, metrics | – |
//! | `upgrade_and_backup` | operators who move to another release, go back, back up or restore | – |
//! | `when_an_outcome_is_unknown` | operators: find out what happened, and decide about the records | – |
//! | `security` | operators: what is stored, who may read it, what each port allows | – |
//! | `sizing` | operators: memory and disk for the records | – |
//! | `from_a_pattern` | authors of a service with a hand-written lock in Redis | `tokio` |
//!
//! Complete programs are in the folder `examples/` of the repository, each with a test that runs it.
//!
//! | program | shows |
//! |---|---|
//! | `behind-a-gateway` | a service in Python, Node and Go that knows nothing of retries |
//! | `any-language` | a service in Python behind the gateway, with the ledger in SQL |
//! | `worker-any-language` | a service in Python behind `hapax worker` |
//! | `three-layers-any-language` | the three layers in Python |
//! | `three-layers` | the three layers in Rust |
//! | `plain-function`, `axum-payments`, `tower-service` | a gate around a function, a route of axum, a service of tower |
//! | `transfer-sqlite`, `transfer-postgres`, `ledger-sqlx` | a ledger on SQLite, on PostgreSQL with axum, and with sqlx |
//! | `worker-kafka`, `worker-rabbitmq` | a consumer of Kafka or RabbitMQ that moves money in PostgreSQL |
//! | `events-sqlite` | an outbox and its consumer in SQLite files |

pub mod chapters;

#[cfg(all(feature = "sqlite", feature = "worker"))]
pub mod the_three_layers {
    #![doc = include_str!("guide/the_three_layers.md")]
}

pub mod choosing {
    #![doc = include_str!("guide/choosing.md")]
}

pub mod in_front_of_your_api {
    #![doc = include_str!("guide/in_front_of_your_api.md")]
}

pub mod configuring_a_gateway {
    #![doc = include_str!("guide/configuring_a_gateway.md")]
}

pub mod the_demo {
    #![doc = include_str!("guide/the_demo.md")]
}

#[cfg(all(feature = "axum", feature = "sqlite"))]
pub mod your_first_route {
    #![doc = include_str!("guide/your_first_route.md")]
}

#[cfg(feature = "axum")]
pub mod what_a_client_sees {
    #![doc = include_str!("guide/what_a_client_sees.md")]
}

#[cfg(feature = "sqlite")]
pub mod your_transaction {
    #![doc = include_str!("guide/your_transaction.md")]
    #![cfg_attr(feature = "test-util", doc = include_str!("guide/your_transaction_tests.md"))]
}

#[cfg(feature = "sqlite")]
pub mod emit_an_event {
    #![doc = include_str!("guide/emit_an_event.md")]
}

#[cfg(all(feature = "sqlite", feature = "tokio"))]
pub mod when_a_key_is_parked {
    #![doc = include_str!("guide/when_a_key_is_parked.md")]
}

#[cfg(feature = "sqlite")]
pub mod webhooks {
    #![doc = include_str!("guide/webhooks.md")]
}

#[cfg(all(feature = "sqlite", feature = "tokio"))]
pub mod when_a_message_is_dead {
    #![doc = include_str!("guide/when_a_message_is_dead.md")]
}

#[cfg(all(feature = "sqlite", feature = "tokio", feature = "worker"))]
pub mod consume_a_topic {
    #![doc = include_str!("guide/consume_a_topic.md")]
    #![cfg_attr(all(feature = "kafka", feature = "postgres"), doc = include_str!("guide/consume_a_topic_kafka.md"))]
}

#[cfg(all(feature = "rabbitmq", feature = "tokio", feature = "worker"))]
pub mod consume_a_queue {
    #![doc = include_str!("guide/consume_a_queue.md")]
}

#[cfg(all(feature = "s3", feature = "tokio"))]
pub mod answers_in_a_bucket {
    #![doc = include_str!("guide/answers_in_a_bucket.md")]
}

#[cfg(all(feature = "sqs", feature = "tokio"))]
pub mod queues_of_sqs {
    #![doc = include_str!("guide/queues_of_sqs.md")]
}

#[cfg(all(feature = "pubsub", feature = "tokio"))]
pub mod topics_of_pubsub {
    #![doc = include_str!("guide/topics_of_pubsub.md")]
}

#[cfg(feature = "worker")]
pub mod which_key {
    #![doc = include_str!("guide/which_key.md")]
}

#[cfg(feature = "tokio")]
pub mod outcomes {
    #![doc = include_str!("guide/outcomes.md")]
    #![cfg_attr(feature = "axum", doc = include_str!("guide/outcomes_over_http.md"))]
}

#[cfg(all(feature = "dynamodb", feature = "tokio"))]
pub mod records_in_dynamodb {
    #![doc = include_str!("guide/records_in_dynamodb.md")]
}

#[cfg(feature = "postgres")]
pub mod records_in_postgres {
    #![doc = include_str!("guide/records_in_postgres.md")]
}

#[cfg(all(feature = "spanner", feature = "tokio"))]
pub mod ledger_in_spanner {
    #![doc = include_str!("guide/ledger_in_spanner.md")]
}

#[cfg(all(feature = "spanner", feature = "tokio"))]
pub mod records_in_spanner {
    #![doc = include_str!("guide/records_in_spanner.md")]
}

#[cfg(all(feature = "redis", feature = "tokio"))]
pub mod records_in_redis {
    #![doc = include_str!("guide/records_in_redis.md")]
}

pub mod operating_a_gateway {
    #![doc = include_str!("guide/operating_a_gateway.md")]
}

pub mod upgrade_and_backup {
    #![doc = include_str!("guide/upgrade_and_backup.md")]
}

pub mod when_an_outcome_is_unknown {
    #![doc = include_str!("guide/when_an_outcome_is_unknown.md")]
}

pub mod security {
    #![doc = include_str!("guide/security.md")]
}

pub mod sizing {
    #![doc = include_str!("guide/sizing.md")]
}

#[cfg(feature = "tokio")]
pub mod from_a_pattern {
    #![doc = include_str!("guide/from_a_pattern.md")]
}
