use hapax_torture::harness::ProofSection;
use hapax_worker_torture::{SourceBroker, WorkerFault, WorkerTortureOptions, WorkerTortureResult};

/// The command that repeats a run.
pub(crate) fn command(options: &WorkerTortureOptions) -> String {
    let WorkerTortureOptions { transfers, seed, has_ledger, broker, brokers } = options;
    let ledger = if *has_ledger { "" } else { " --without-ledger" };
    let broker = match broker {
        SourceBroker::Kafka => String::new(),
        SourceBroker::RabbitMq | SourceBroker::Sqs => format!("--broker {} ", broker.word()),
    };
    format!("cargo xtask prove worker --transfers {transfers} --seed {seed} {broker}--brokers {brokers}{ledger}")
}

/// The heading of the section of a run.
pub(crate) fn heading(options: &WorkerTortureOptions) -> String {
    let ledger = if options.has_ledger { "with a ledger" } else { "without a ledger" };
    let broker = match options.broker {
        SourceBroker::Kafka => "Kafka",
        SourceBroker::RabbitMq => "RabbitMQ",
        SourceBroker::Sqs => "a FIFO queue of SQS",
    };
    format!("Workers on {broker} and PostgreSQL, {ledger}")
}

/// Writes the figures of a run into its section.
pub(crate) fn fill(section: &mut ProofSection, options: &WorkerTortureOptions, result: &WorkerTortureResult) {
    section.row("transfers", options.transfers);
    section.row("messages, copies included", result.messages);
    section.row("time", format!("{:.0} s", result.took.as_secs_f64()));
    for fault in WorkerFault::ALL {
        section.row(fault.name(), result.faults.get(&fault).copied().unwrap_or_default());
    }
    section.row("workers that ended by themselves", result.ended);
    section.row("workers that ended without a broker at their start, or without the topic", result.unavailable);
    section.row("workers that did not end with 0 at SIGTERM", result.ended_badly);
    section.row("comparisons of the committed offsets with the finished work", result.offset_checks);
    section.row("**second effects**", result.duplicates);
    section.row("**everything that was found**", result.damages.len());
}
