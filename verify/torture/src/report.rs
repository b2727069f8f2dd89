//! The report of a recorded run: one section for each kind of run.

use hapax_torture::harness::ProofSection;
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

pub(crate) fn heading(options: &TortureOptions) -> String {
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
    format!("{faults}{service}")
}

/// Writes the figures of a run into its section.
pub(crate) fn fill(section: &mut ProofSection, options: &TortureOptions, result: &TortureResult) {
    section.row("transfers", options.transfers);
    section.row("time", format!("{:.0} s", result.took.as_secs_f64()));
    for fault in TortureFault::ALL {
        if let Some(times) = result.faults.get(&fault) {
            section.row(fault.name(), times);
        }
    }
    section.row("connections cut", result.cuts);
    for (what, count) in &result.counts {
        section.row(what, count);
    }
    if options.service == TorturedService::Held {
        section.row("transfers that end as `outcome-unknown`", result.unknown);
    } else {
        section.row("copies that the service answered after all records were removed", result.from_the_ledger);
        section.row("second effects before all records were removed", result.duplicates_in_run);
    }
    section.row("**transfers with a second effect**", result.count(TransferDamage::Duplicate));
    section.row("**transfers without an answer**", result.count(TransferDamage::Lost));
    section.row("**everything that the audit found**", result.damages.len());
    if result.damages.is_empty() {
        let bound = 3.0 / f64::from(options.transfers);
        let share = 1.0 / bound;
        let rule = "By the rule of three, with 95 % confidence fewer than one transfer in";
        section.line(&format!("\n{rule} {share:.0} is damaged ({bound:.1e})."));
    }
}
