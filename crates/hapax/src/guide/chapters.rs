//! The chapters as text, for programs that print them.

/// A chapter of the guide.
#[derive(Clone, Copy, Debug)]
pub struct Chapter {
    /// Its name, which is that of its module.
    pub name: &'static str,
    /// Who should read it, and what it is about.
    pub readers: &'static str,
    /// The chapter, in Markdown. Its examples have the lines that rustdoc hides.
    pub text: &'static str,
}

macro_rules! chapters {
    ($($name:literal: $readers:literal,)*) => {
        /// All chapters, in the order of the guide.
        pub const CHAPTERS: &[Chapter] = &[
            $(Chapter { name: $name, readers: $readers, text: include_str!(concat!($name, ".md")) },)*
        ];
    };
}

chapters! {
    "the_three_layers": "everybody: gate, ledger and outbox, end to end",
    "choosing": "everybody: which store, which policy, ledger or not, for six cases",
    "in_front_of_your_api": "everybody with an HTTP API in any language: the gateway in five minutes",
    "configuring_a_gateway": "operators of hapax gateway: the file, callers, stores, TLS, load balancers",
    "the_demo": "everybody: what hapax demo shows, and how to read its result",
    "your_first_route": "authors of a service with axum",
    "what_a_client_sees": "authors of a client of a protected route",
    "outcomes": "authors of a handler",
    "your_transaction": "authors of a service with a database: the ledger",
    "ledger_in_spanner": "authors of a service on Google Cloud Spanner: the ledger, its tables, its rights",
    "emit_an_event": "authors of a service that publishes events: the outbox",
    "when_a_key_is_parked": "operators of an outbox: events that a broker refuses or loses",
    "webhooks": "authors and operators at both ends of a webhook: sent and received",
    "consume_a_topic": "authors of a consumer: the worker, in Rust and in any language",
    "queues_of_sqs": "authors and operators of consumers of AWS SQS: standard or FIFO, leases, rights",
    "topics_of_pubsub": "authors and operators of consumers of Google Cloud Pub/Sub: copies, leases, order, rights",
    "which_key": "authors of a consumer: what identifies a message",
    "when_a_message_is_dead": "operators and authors of consumers: dead letters, redrive",
    "records_in_postgres": "operators of PostgreSQL: connection, tables, settings, possible loss",
    "records_in_redis": "operators of Redis or Valkey: settings, memory, possible loss",
    "answers_in_a_bucket": "operators of hapax gateway: large answers in S3, permissions, lifecycle, encryption",
    "records_in_dynamodb": "operators of AWS DynamoDB: table, permissions, clock, costs, possible loss",
    "records_in_spanner": "operators of Google Cloud Spanner: table, permissions, costs, possible loss",
    "operating_a_gateway": "operators of hapax gateway: log, signals, metrics",
    "upgrade_and_backup": "operators who move to another release, go back, back up or restore",
    "when_an_outcome_is_unknown": "operators: find out what happened, and decide about the records",
    "security": "operators: what is stored, who may read it, what each port allows",
    "sizing": "operators: memory and disk for the records",
    "from_a_pattern": "authors of a service with a hand-written lock in Redis",
}
