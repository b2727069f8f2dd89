//! The texts on standard output: the introduction and the result.

use super::Scenario;
use super::audit::{Audit, Damage, UnknownReason};
use super::collected::Collected;
use super::table::LayerTable;
use crate::OmittedLayer;
use crate::number_format::{grouped, money};
use crate::progress::Progress;

/// Prints the plan of the run.
pub(super) fn introduce(scenario: &Scenario) {
    println!("{} payments go through three layers, each part a process of its own:\n", grouped(scenario.payments));
    println!("  clients > gateway > service > queue > worker > outbox > relay > queue > consumer");
    println!("            1 gate                      2 ledger         3 relay and inbox\n");
    if let Some(servers) = &scenario.servers {
        let [store, database, broker] = [&servers.store, &servers.database, &servers.broker].map(|url| scheme(url));
        println!("The records are in {store}, ledger, outbox and inbox in {database}, and both queues in {broker}.");
    }
    println!("The clients retry, send copies at the same time, change the order of a retry, hang up,");
    println!("and some never ask again. Messages are delivered twice, and old events are published again.");
    let rounds = grouped(scenario.rounds);
    println!("Each process is killed (kill -9) or paused for 2 s, longer than its leases, {rounds} times.");
    if let Some(layer) = scenario.without {
        println!("This run is {}.", missing(layer));
    }
    println!("Seed {0}; repeat the same traffic with --seed {0}\n", scenario.seed);
}

/// What of a URL can be shown: the rest may contain a password.
fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

fn missing(layer: OmittedLayer) -> &'static str {
    match layer {
        OmittedLayer::Gate => "WITHOUT layer 1: clients talk to the service, and each request is a message of its own",
        OmittedLayer::Ledger => "WITHOUT layer 2: the worker charges for every message that it gets",
        OmittedLayer::Outbox => "WITHOUT layer 3: the worker publishes its events itself, after its transaction",
    }
}

/// Prints the result.
pub(super) fn show(audit: &Audit, collected: &Collected, progress: &Progress) {
    println!("Audit, after {} s", progress.elapsed().as_secs());
    show_payments(audit, collected);
    show_damage(audit);
    show_faults(collected);
    let table = LayerTable::new(collected);
    println!("\nCopies that the faults made, and the layer that caught them");
    print!("{table}");
    println!("  (- such copies do not get there; 1 gate counts the answers by which it recognized a copy;");
    println!("   old events are at most those that were published again, and the rest is in the last row)");
    if let Some((all, through)) = table.passed_by_the_gate() {
        let (all, through) = (grouped(all), grouped(through));
        println!(
            "\nOf {all} copies, the gate let {through} through: it had no answer to repeat after a crash, a pause"
        );
        println!("or a failure of the service after its charge. The ledger caught them.");
    }
}

fn show_payments(audit: &Audit, collected: &Collected) {
    row("payments", collected.clients.len() as u64, "");
    row("  accepted", audit.accepted, "");
    row("  declined", audit.declined, "");
    if audit.replaced > 0 {
        row("  answered anew", audit.replaced, "their first answer was marked as not recorded yet");
    }
    row("  unknown to the client", audit.unknown(), "charged once or not at all");
    for ((reason, is_charged), count) in &audit.unknown {
        let reason = match reason {
            UnknownReason::Left => "they hung up and never asked again",
            UnknownReason::Told => "the gateway told them so",
        };
        let end = if *is_charged { "charged" } else { "not charged" };
        row(&format!("    {end}"), *count, reason);
    }
    row("charges", collected.charges.len() as u64, "");
    if let Some(events) = collected.events {
        row("events", events, "in the outbox, one for each charge");
    }
    row("receipts", collected.receipts.len() as u64, "sent by the consumers, one for each event");
}

fn show_damage(audit: &Audit) {
    println!();
    for (damage, name, meaning) in DAMAGE_ROWS {
        row(name, audit.findings_of(damage).count() as u64, meaning);
        for finding in audit.findings_of(damage).take(SHOWN) {
            println!("      {}", finding.description);
        }
    }
}

const DAMAGE_ROWS: [(Damage, &str, &str); 5] = [
    (Damage::Duplicate, "duplicates", "payments charged twice, charges with two receipts"),
    (Damage::Lost, "lost", "messages without a charge, charges without a receipt"),
    (Damage::Wrong, "wrong", "answers, charges or receipts of another order"),
    (Damage::Stuck, "stuck", "clients without an answer, messages that never arrived"),
    (Damage::OutOfOrder, "out of order", "receipts of an account in another order than its charges"),
];

/// The number of findings of each kind that are printed in full.
const SHOWN: usize = 2;

fn show_faults(collected: &Collected) {
    println!();
    for (name, suffered) in &collected.suffered {
        let remark = format!("and paused {} times", grouped(suffered.pauses));
        row(&format!("{name} killed"), suffered.kills, &remark);
    }
}

/// Prints the verdict.
pub(super) fn conclude(audit: &Audit, collected: &Collected, is_drained: bool) {
    if !is_drained {
        println!("\nSome messages or events are still under way; the demo no longer waits for them.");
    }
    let Some(layer) = collected.without else {
        let holds = audit.is_clean() && is_drained;
        let verdict = if holds { "holds: every accepted payment was charged once, with one receipt" } else { "FAILS" };
        return println!("\nThe audit {verdict}.");
    };
    if audit.is_clean() {
        return println!("\nNo damage this time. Make more payments, or choose another seed.");
    }
    let count = |damage| grouped(audit.findings_of(damage).count() as u64);
    let damage = match layer {
        OmittedLayer::Gate | OmittedLayer::Ledger => {
            let excess = money(audit.excess_cents);
            format!("{} payments were charged more than once, {excess} too much in total", count(Damage::Duplicate))
        }
        OmittedLayer::Outbox => format!(
            "{} charges have no receipt, and {} receipts came out of order",
            count(Damage::Lost),
            count(Damage::OutOfOrder)
        ),
    };
    println!("\nThe audit FAILS without the {}: {damage}.", layer.name());
    println!("The {} prevents this. Run the demo without --without to see it.", layer.name());
}

/// Prints that a run has not removed everything.
pub(super) fn left_behind(error: &anyhow::Error) {
    println!(
        "The schema, topics or streams whose names begin with hapax-demo or hapax_demo are still there: {error:#}"
    );
}

fn row(name: &str, count: impl Into<u64>, remark: &str) {
    let line = format!("  {name:<26}{:>8}   {remark}", grouped(count));
    println!("{}", line.trim_end());
}
