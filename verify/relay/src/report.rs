use hapax_relay_torture::{RelayFault, RelayTortureOptions, RelayTortureResult, SinkBroker};
use hapax_torture::harness::ProofSection;

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

/// Writes the figures of a run into its section.
pub(crate) fn fill(section: &mut ProofSection, options: &RelayTortureOptions, result: &RelayTortureResult) {
    section.row("transactions with an event", options.events);
    section.row("committed", result.committed);
    section.row("ordering keys", options.keys);
    section.row("time", format!("{:.0} s", result.took.as_secs_f64()));
    for fault in RelayFault::ALL {
        section.row(fault.name(), result.faults.get(&fault).copied().unwrap_or_default());
    }
    section.row("relays that ended by themselves", result.ended);
    section.row("relays that did not end with 0 at SIGTERM", result.ended_badly);
    section.row("repeated copies in the broker, under the same ids", result.repeated);
    section.row("**second effects**", result.duplicates);
    section.row("**everything that was found**", result.damages.len());
}
