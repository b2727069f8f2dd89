//! Torture of the worker: four processes of `examples/worker-kafka` in one group of Kafka move money in PostgreSQL.
//! Meanwhile they are killed, stopped and rebalanced, and the servers are killed. Then an audit compares the database
//! with the journal of the producer.
//!
//! ```text
//! order.rs    the transfers, drawn from a seed
//! topic.rs    the producer, and an administrator who reads the committed offsets
//! members.rs  the worker processes
//! faults.rs   what happens to them and to the servers
//! audit.rs    what the database says, and whether it agrees with the journal
//! run.rs      one run, from the start of the servers to the audit
//! ```

mod audit;
mod faults;
mod members;
mod order;
mod run;
mod topic;

pub use faults::WorkerFault;
pub use run::{WorkerTortureOptions, WorkerTortureResult, run};
