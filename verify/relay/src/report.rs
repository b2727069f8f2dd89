use std::fmt::Write;

use hapax_relay_torture::{RelayFault, RelayTortureOptions, RelayTortureResult, SinkBroker};

/// The command that repeats a run.
pub(crate) fn command(options: &RelayTortureOptions) -> String {
    let RelayTortureOptions { events, keys, seed, broker, has_inbox, .. } = options;
    let inbox = if *has_inbox { "" } else { " --without-inbox" };
    let broker = match broker {
        SinkBroker::Nats => String::new(),
        SinkBroker::RabbitMq => format!(" --broker {}", broker.word()),
    };
    format!("cargo xtask prove relay --events {events} --keys {keys} --seed {seed}{broker}{inbox}")
}

/// The report of a run.
pub(crate) fn text(options: &RelayTortureOptions, commit: &str, result: &RelayTortureResult) -> String {
    let heading = format!("## Relays between PostgreSQL and {}", options.broker.title());
    let mut text = format!("{heading}\n\n`{}`\n\n| | |\n|---|--:|\n", command(options));
    let mut row = |what: &str, figure: String| writeln!(text, "| {what} | {figure} |").expect("memory");
    if !commit.is_empty() {
        row("commit", commit.to_owned());
    }
    row("transactions with an event", options.events.to_string());
    row("committed", result.committed.to_string());
    row("ordering keys", options.keys.to_string());
    row("time", format!("{:.0} s", result.took.as_secs_f64()));
    for fault in RelayFault::ALL {
        row(fault.name(), result.faults.get(&fault).copied().unwrap_or_default().to_string());
    }
    row("relays that ended by themselves", result.ended.to_string());
    row("relays that did not end with 0 at SIGTERM", result.ended_badly.to_string());
    row("repeated copies in the broker, under the same ids", result.repeated.to_string());
    row("**second effects**", result.duplicates.to_string());
    row("**everything that was found**", result.damages.len().to_string());
    text
}
