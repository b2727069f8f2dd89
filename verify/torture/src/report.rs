//! The report of a recorded run: one section for each kind of run.

use std::fmt::Write;

use hapax_torture::{FaultSelection, TortureFault, TortureOptions, TortureResult, TorturedService, TransferDamage};

/// The command that repeats a run.
pub(crate) fn command(options: &TortureOptions) -> String {
    let faults = match options.faults {
        FaultSelection::Everything => String::new(),
        FaultSelection::KillDatabase(times) => format!(" --kill-database {times}"),
        FaultSelection::CutCommits(times) => format!(" --cut-commits {times}"),
        FaultSelection::KillEach(times) => format!(" --kill-each {times}"),
    };
    let service = match options.service {
        TorturedService::OwnTransaction => "",
        TorturedService::Runner => " --runner",
        TorturedService::Python => " --python",
        TorturedService::WithoutLedger => " --without-ledger",
        TorturedService::Gated => " --two-gateways retry",
        TorturedService::Held => " --two-gateways hold",
    };
    let (transfers, seed) = (options.transfers, options.seed);
    format!("cargo xtask prove torture --transfers {transfers} --seed {seed}{faults}{service}")
}

fn heading(options: &TortureOptions) -> String {
    let faults = match options.faults {
        FaultSelection::Everything => "Every fault",
        FaultSelection::KillDatabase(_) => "PostgreSQL killed under load",
        FaultSelection::CutCommits(_) => "Connections cut at COMMIT under load",
        FaultSelection::KillEach(_) => "PostgreSQL and gateways killed under load",
    };
    let service = match options.service {
        TorturedService::OwnTransaction => "",
        TorturedService::Runner => ", the ledger runs the transaction",
        TorturedService::Python => ", a service in Python with the ledger in SQL",
        TorturedService::WithoutLedger => ", without the ledger",
        TorturedService::Gated => ", two gateways on PostgreSQL alone, retry",
        TorturedService::Held => ", two gateways on PostgreSQL alone, hold, no ledger",
    };
    format!("## {faults}{service}\n")
}

/// The section of a run.
pub(crate) fn section(options: &TortureOptions, commit: &str, result: &TortureResult) -> String {
    let mut text = format!("{}\n`{}`\n\n| | |\n|---|--:|\n", heading(options), command(options));
    let mut row = |what: &str, figure: String| writeln!(text, "| {what} | {figure} |").expect("memory");
    if !commit.is_empty() {
        row("commit", commit.to_owned());
    }
    row("transfers", options.transfers.to_string());
    row("time", format!("{:.0} s", result.took.as_secs_f64()));
    for fault in TortureFault::ALL {
        if let Some(times) = result.faults.get(&fault) {
            row(fault.name(), times.to_string());
        }
    }
    row("connections cut", result.cuts.to_string());
    for (what, count) in &result.counts {
        row(what, count.to_string());
    }
    if options.service == TorturedService::Held {
        row("transfers that end as `outcome-unknown`", result.unknown.to_string());
    } else {
        row("copies that the service answered after all records were removed", result.from_the_ledger.to_string());
        row("second effects before all records were removed", result.duplicates_in_run.to_string());
    }
    row("**transfers with a second effect**", result.count(TransferDamage::Duplicate).to_string());
    row("**transfers without an answer**", result.count(TransferDamage::Lost).to_string());
    row("**everything that the audit found**", result.damages.len().to_string());
    if result.damages.is_empty() {
        let bound = 3.0 / f64::from(options.transfers);
        let share = 1.0 / bound;
        let rule = "By the rule of three, with 95 % confidence fewer than one transfer in";
        writeln!(text, "\n{rule} {share:.0} is damaged ({bound:.1e}).").expect("memory");
    }
    text
}
