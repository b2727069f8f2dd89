//! What a stranger reads: before the run what will happen, after it what came of it.

use super::Script;
use super::audit::{Audit, Damage};
use super::board::Board;

/// Says what will happen.
pub(super) fn introduce(script: &Script) {
    let payments = grouped(script.payments);
    let way = if script.direct { "to it directly" } else { "through the gateway" };
    println!("A sample payment service charges a card for every request that it receives.");
    println!("{payments} payments are sent {way}, by clients that ask again, send twins at");
    println!("the same moment, hang up in mid-request, and change the amount of a retry.");
    if script.crashes > 0 {
        let times = grouped(script.crashes);
        println!("Meanwhile the gateway is killed (kill -9) and started again, {times} times.");
    }
    println!("Then the service's own log of charges is held against what clients were told.");
    println!("Seed {0}; the same traffic again: --seed {0}\n", script.seed);
}

/// Shows what was found.
pub(super) fn show(audit: &Audit, board: &Board) {
    println!("Audit, after {} s", board.elapsed().as_secs());
    show_requests(audit, board);
    show_payments(audit);
    show_damage(audit);
}

/// Says whether the audit holds, and what to think of it.
pub(super) fn conclude(script: &Script, audit: &Audit, holds: bool) {
    if script.direct {
        let (duplicates, payments) = (audit.found(Damage::Duplicate).count(), audit.payments);
        println!(
            "\nWithout the gateway: {} of {} payments were charged more than once, {} too much in all.\n\
             This is what the gateway prevents. Run the demo without --direct to see it.",
            grouped(duplicates as u64),
            grouped(payments),
            money(audit.charged_too_much),
        );
    } else if holds {
        println!("\nThe audit holds: every payment was charged once, declined, or reported as unknown.");
    } else {
        println!("\nThe audit FAILS.");
    }
}

fn show_requests(audit: &Audit, board: &Board) {
    row("requests sent", audit.requests, "");
    for (kind, count) in &audit.answers {
        row(&format!("  {kind}"), *count, "");
    }
    if board.crashes() > 0 {
        let remark = format!("in the midst of {} requests", grouped(board.cut_short()));
        row("gateway killed", board.crashes(), &remark);
    }
}

fn show_payments(audit: &Audit) {
    println!();
    row("payments", audit.payments, "");
    row("  charged once", audit.charged_once, "and confirmed");
    row("  declined", audit.declined, "and not charged");
    let charged = grouped(audit.unknown_charged);
    let not_charged = grouped(audit.unknown_not_charged);
    let remark = format!("{charged} of them charged once, {not_charged} not charged");
    row("  reported as unknown", audit.unknown(), &remark);
    if audit.settled_late > 0 {
        row("  unknown at first, settled later", audit.settled_late, "counted above");
    }
    row("  damaged", audit.damaged(), "");
    row("charges made", audit.charges, "");
}

fn show_damage(audit: &Audit) {
    println!();
    for (damage, name, meaning) in KINDS {
        row(name, audit.found(damage).count() as u64, meaning);
        for finding in audit.found(damage).take(SHOWN) {
            println!("      payment {}: {}", finding.payment, finding.what);
        }
    }
}

const KINDS: [(Damage, &str, &str); 5] = [
    (Damage::Duplicate, "duplicates", "payments charged more than once"),
    (Damage::Lost, "lost", "confirmed, but never charged"),
    (Damage::Wrong, "wrong answers", "not the payment's own answer or charge"),
    (Damage::Unexplained, "unknown without a reason", "reported as unknown, though nothing had happened"),
    (Damage::Stuck, "stuck", "clients without an answer that settles it"),
];

/// How many findings of a kind are shown in full.
const SHOWN: usize = 2;

fn row(name: &str, count: impl Into<u64>, remark: &str) {
    let line = format!("  {name:<38}{:>9}   {remark}", grouped(count));
    println!("{}", line.trim_end());
}

/// A number with its thousands set apart.
pub(super) fn grouped(number: impl Into<u64>) -> String {
    let digits = number.into().to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn money(cents: u64) -> String {
    format!("{}.{:02}", grouped(cents / 100), cents % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        let cases = [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")];
        for (number, text) in cases {
            assert_eq!(grouped(number as u64), text);
        }
    }

    #[test]
    fn money_has_two_digits_after_the_point() {
        assert_eq!(money(123_405), "1,234.05");
    }
}
