//! `cargo xtask prove relay` calls this program.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use hapax_relay_torture::{RelayFault, RelayTortureOptions, SinkBroker};
use hapax_torture::harness::{self, Proof, ProofEnd, ReportArguments, one_of};

mod report;

/// Tortures relays between PostgreSQL and a broker, and audits what has arrived.
#[derive(Debug, Parser)]
struct RelayArguments {
    /// The number of transactions with an event.
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    events: u32,
    /// The number of ordering keys.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// Decides the transactions and the faults.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The kind of the broker: nats or rabbitmq.
    #[arg(long, default_value = "nats", value_parser = one_of(&SinkBroker::ALL, SinkBroker::word))]
    broker: SinkBroker,
    /// The consumer forgets the ids of events, to prove that the audit can fail.
    #[arg(long)]
    without_inbox: bool,
    /// A known bug of the relays, which the audit must find.
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
    #[command(flatten)]
    report: ReportArguments,
}

fn main() -> ExitCode {
    harness::main::<RelayArguments>()
}

impl RelayArguments {
    fn options(&self) -> RelayTortureOptions {
        RelayTortureOptions {
            events: self.events,
            keys: self.keys,
            seed: self.seed,
            broker: self.broker,
            faults: RelayFault::ALL.to_vec(),
            has_inbox: !self.without_inbox,
            mutant: self.mutant.clone(),
        }
    }
}

impl Proof for RelayArguments {
    const FOLDER: &'static str = "hapax-relay-torture";

    fn report(&self) -> &ReportArguments {
        &self.report
    }

    fn command(&self) -> String {
        report::command(&self.options())
    }

    async fn run(&self, folder: &Path) -> anyhow::Result<ProofEnd> {
        let options = self.options();
        let result = hapax_relay_torture::run(&options, folder).await?;
        let mut section = self.section(&format!("Relays between PostgreSQL and {}", options.broker.title()));
        report::fill(&mut section, &options, &result);
        Ok(ProofEnd::of(section, &result.damages))
    }
}
