use std::fmt::Write;

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

/// The section of a run in the report.
pub(crate) fn text(options: &WorkerTortureOptions, commit: &str, result: &WorkerTortureResult) -> String {
    let ledger = if options.has_ledger { "with a ledger" } else { "without a ledger" };
    let broker = match options.broker {
        SourceBroker::Kafka => "Kafka",
        SourceBroker::RabbitMq => "RabbitMQ",
        SourceBroker::Sqs => "a FIFO queue of SQS",
    };
    let heading = format!("## Workers on {broker} and PostgreSQL, {ledger}");
    let mut text = format!("{heading}\n\n`{}`\n\n| | |\n|---|--:|\n", command(options));
    let mut row = |what: &str, figure: String| writeln!(text, "| {what} | {figure} |").expect("memory");
    if !commit.is_empty() {
        row("commit", commit.to_owned());
    }
    row("transfers", options.transfers.to_string());
    row("messages, copies included", result.messages.to_string());
    row("time", format!("{:.0} s", result.took.as_secs_f64()));
    for fault in WorkerFault::ALL {
        row(fault.name(), result.faults.get(&fault).copied().unwrap_or_default().to_string());
    }
    row("workers that ended by themselves", result.ended.to_string());
    row("workers that ended without a broker at their start, or without the topic", result.unavailable.to_string());
    row("workers that did not end with 0 at SIGTERM", result.ended_badly.to_string());
    row("comparisons of the committed offsets with the finished work", result.offset_checks.to_string());
    row("**second effects**", result.duplicates.to_string());
    row("**everything that was found**", result.damages.len().to_string());
    text
}
