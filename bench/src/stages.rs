//! The services of the pipeline that `subjects/pipeline.rs` measures, each a process of its own.
//!
//! ```text
//! ingest.rs      HTTP to Kafka
//! worker.rs      Kafka to PostgreSQL, by a worker
//! bare.rs        the same without the layers
//! publishing.rs  PostgreSQL to NATS without an outbox
//! stamps.rs      the times at the borders
//! ```

mod bare;
mod ingest;
mod publishing;
mod stamps;
mod worker;

use std::env;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};

pub(crate) use ingest::{ARRIVED, PUBLISHED};
pub(crate) use stamps::{StampedTransaction, microseconds};

/// Which layers a pipeline has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PipelineLayers {
    pub(crate) gate: bool,
    pub(crate) ledger: bool,
    pub(crate) outbox: bool,
}

impl PipelineLayers {
    pub(crate) const ALL: Self = Self { gate: true, ledger: true, outbox: true };
    pub(crate) const NONE: Self = Self { gate: false, ledger: false, outbox: false };
}

/// Where the stages get their work and put it: names and URLs, in the environment of their processes.
pub(crate) struct StagePlaces {
    pub(crate) kafka: String,
    pub(crate) topic: String,
    /// With the schema.
    pub(crate) database: String,
    pub(crate) nats: String,
    pub(crate) subject: String,
    /// The file with the times of the worker.
    pub(crate) stamps: PathBuf,
}

impl StagePlaces {
    pub(crate) fn give_to(&self, command: &mut Command) {
        let Self { kafka, topic, database, nats, subject, stamps } = self;
        command.env("BENCH_KAFKA", kafka).env("BENCH_TOPIC", topic).env("BENCH_DATABASE", database);
        command.env("BENCH_NATS", nats).env("BENCH_SUBJECT", subject).env("BENCH_STAMPS", stamps);
    }

    fn of_this_process() -> anyhow::Result<Self> {
        let text = |name: &str| env::var(name).with_context(|| format!("{name} is not set"));
        Ok(Self {
            kafka: text("BENCH_KAFKA")?,
            topic: text("BENCH_TOPIC")?,
            database: text("BENCH_DATABASE")?,
            nats: text("BENCH_NATS")?,
            subject: text("BENCH_SUBJECT")?,
            stamps: text("BENCH_STAMPS")?.into(),
        })
    }

    /// The URL of the database without its schema, and the schema.
    fn schema(&self) -> anyhow::Result<(&str, &str)> {
        self.database.split_once("?schema=").context("BENCH_DATABASE has no schema")
    }
}

/// Runs a stage until its process is killed. It listens at the address when it is ready.
pub(crate) fn run(name: &str, address: &str) -> anyhow::Result<()> {
    let (address, places): (SocketAddr, _) = (address.parse()?, StagePlaces::of_this_process()?);
    let runtime = tokio::runtime::Runtime::new()?;
    match name {
        "ingest" => runtime.block_on(ingest::serve(address, &places)),
        "worker" => runtime.block_on(worker::work(address, PipelineLayers::ALL, &places)),
        "worker-without-ledger" => {
            runtime.block_on(worker::work(address, PipelineLayers { ledger: false, ..PipelineLayers::ALL }, &places))
        }
        "worker-without-outbox" => {
            runtime.block_on(worker::work(address, PipelineLayers { outbox: false, ..PipelineLayers::ALL }, &places))
        }
        "bare-worker" => bare::work(&runtime, address, &places),
        _ => bail!("there is no stage {name}"),
    }
}

/// The stage that takes the messages of this pipeline.
pub(crate) fn worker_of(layers: PipelineLayers) -> &'static str {
    match (layers.ledger, layers.outbox) {
        (true, true) => "worker",
        (false, true) => "worker-without-ledger",
        (true, false) => "worker-without-outbox",
        (false, false) => "bare-worker",
    }
}

/// The number of a payment, which begins its payload: `{"payment":17,…`.
pub(crate) fn number_of(payload: &[u8]) -> anyhow::Result<u64> {
    let text = str::from_utf8(payload)?;
    let number = text.strip_prefix("{\"payment\":").and_then(|rest| rest.split(',').next());
    Ok(number.context("a payload is no payment")?.parse()?)
}

/// The payload of a payment.
pub(crate) fn payment(number: u64) -> String {
    format!("{{\"payment\":{number},\"account\":\"account-{}\",\"amount\":500,\"currency\":\"eur\"}}", number % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payment_tells_its_number() {
        assert_eq!(number_of(payment(4711).as_bytes()).unwrap(), 4711);
        assert!(number_of(b"{}").is_err());
    }
}
