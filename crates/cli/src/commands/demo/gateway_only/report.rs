//! The texts on standard output: the introduction and the result of the audit.

use super::GatewayScenario;
use super::audit::{GatewayAudit, GatewayDamage};
use crate::commands::demo::progress::Progress;
use crate::commands::number_format::{grouped, money};

/// Prints the plan of the run.
pub(super) fn introduce(scenario: &GatewayScenario) {
    let payments = grouped(scenario.payments);
    let path = if scenario.direct { "directly" } else { "through the gateway" };
    println!("A sample payment service charges a card for every request that it receives.");
    println!("{payments} payments are sent {path}. The clients retry, send copies at the same");
    println!("time, close connections during requests, and change the amount of a retry.");
    if scenario.crashes > 0 {
        let crashes = grouped(scenario.crashes);
        println!("Meanwhile the gateway is killed (kill -9) and restarted {crashes} times.");
    }
    if scenario.forgets() {
        println!("{FORGETFUL}");
    }
    println!("Then the log of the service is compared with the responses to the clients.");
    println!("Seed {0}; repeat the same traffic with --seed {0}\n", scenario.seed);
}

/// Prints the result of the audit.
pub(super) fn show(audit: &GatewayAudit, progress: &Progress) {
    println!("Audit, after {} s", progress.elapsed().as_secs());
    show_requests(audit, progress);
    show_payments(audit);
    show_damage(audit);
}

/// Prints the verdict.
pub(super) fn conclude(scenario: &GatewayScenario, audit: &GatewayAudit, holds: bool) {
    if scenario.direct {
        let (duplicates, payments) = (audit.findings_of(GatewayDamage::Duplicate).count(), audit.payments);
        println!(
            "\nWithout the gateway: {} of {} payments were charged more than once, {} too much in total.\n\
             The gateway prevents this. Run the demo without --direct to see it.",
            grouped(duplicates as u64),
            grouped(payments),
            money(audit.excess_cents),
        );
    } else if holds {
        println!("\nThe audit holds: every payment was charged once, declined, or reported as unknown.");
    } else {
        println!("\nThe audit FAILS.");
        if scenario.forgets() {
            println!("{FORGETFUL}");
        }
    }
}

const FORGETFUL: &str = "\
The store memory: loses its records whenever the gateway is killed. A retry after that
looks like a new payment and is charged again. Use another store, or --crashes 0.";

fn show_requests(audit: &GatewayAudit, progress: &Progress) {
    row("requests sent", audit.requests, "");
    for (kind, count) in &audit.responses {
        row(&format!("  {kind}"), *count, "");
    }
    if progress.crashes() > 0 {
        let remark = format!("interrupting {} requests", grouped(progress.interrupted()));
        row("gateway killed", progress.crashes(), &remark);
    }
}

fn show_payments(audit: &GatewayAudit) {
    println!();
    row("payments", audit.payments, "");
    row("  charged once", audit.charged_once, "and confirmed");
    row("  declined", audit.declined, "and not charged");
    let charged = grouped(audit.unknown_charged);
    let not_charged = grouped(audit.unknown_not_charged);
    let remark = format!("{charged} charged once, {not_charged} not charged");
    row("  outcome unknown", audit.unknown(), &remark);
    if audit.settled_late > 0 {
        row("  unknown at first, settled later", audit.settled_late, "included above");
    }
    row("  damaged", audit.damaged(), "");
    row("charges made", audit.charges, "");
}

fn show_damage(audit: &GatewayAudit) {
    println!();
    for (damage, name, meaning) in DAMAGE_ROWS {
        row(name, audit.findings_of(damage).count() as u64, meaning);
        for finding in audit.findings_of(damage).take(SHOWN) {
            println!("      payment {}: {}", finding.payment, finding.description);
        }
    }
}

const DAMAGE_ROWS: [(GatewayDamage, &str, &str); 5] = [
    (GatewayDamage::Duplicate, "duplicates", "payments charged more than once"),
    (GatewayDamage::Lost, "lost", "payments confirmed, but never charged"),
    (GatewayDamage::Wrong, "wrong", "responses or charges of another payment or amount"),
    (GatewayDamage::Unexplained, "unknown without a reason", "outcome unknown, although nothing was interrupted"),
    (GatewayDamage::Stuck, "stuck", "clients without a final response"),
];

/// The number of findings of each kind that are printed in full.
const SHOWN: usize = 2;

fn row(name: &str, count: impl Into<u64>, remark: &str) {
    let line = format!("  {name:<38}{:>9}   {remark}", grouped(count));
    println!("{}", line.trim_end());
}
