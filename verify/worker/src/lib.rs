//! Torture of the worker: four processes move money in PostgreSQL. They are `examples/worker-kafka` in one group of
//! Kafka, `examples/worker-rabbitmq` on one queue, or `ledger_worker.rs` on one FIFO queue of SQS. Meanwhile they are
//! killed, stopped and rebalanced, and the servers are killed. Then an audit compares the database with the journal of
//! the producer.
//!
//! ```text
//! order.rs    the transfers, drawn from a seed
//! sending.rs  what the producer sends, and when
//! broker.rs   the brokers, of one of three kinds
//! topic.rs    Kafka: the producer, and an administrator who reads the committed offsets
//! queue.rs    RabbitMQ: the producer
//! fifo.rs     SQS: the producer
//! members.rs  the worker processes
//! faults.rs   what happens to them and to the servers
//! audit.rs    what the database says, and whether it agrees with the journal
//! run.rs      one run, from the start of the servers to the audit
//! ```

mod audit;
mod broker;
mod faults;
mod fifo;
mod members;
mod order;
mod queue;
mod run;
mod sending;
mod topic;

pub use faults::WorkerFault;
pub use run::{SourceBroker, WorkerTortureOptions, WorkerTortureResult, run};
