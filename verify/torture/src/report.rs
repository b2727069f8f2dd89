//! The report of a recorded run: one section for each kind of run.

use std::fmt::Write;

use hapax_torture::{FaultSelection, TortureFault, TortureOptions, TortureResult, TorturedService, TransferDamage};

const TITLE: &str = "# Torture\n";

/// The command that repeats a run.
pub(crate) fn command(options: &TortureOptions) -> String {
    let faults = match options.faults {
        FaultSelection::Everything => String::new(),
        FaultSelection::KillDatabase(times) => format!(" --kill-database {times}"),
        FaultSelection::CutCommits(times) => format!(" --cut-commits {times}"),
    };
    let service = match options.service {
        TorturedService::OwnTransaction => "",
        TorturedService::Runner => " --runner",
        TorturedService::WithoutLedger => " --without-ledger",
    };
    let (transfers, seed) = (options.transfers, options.seed);
    format!("cargo xtask prove torture --transfers {transfers} --seed {seed}{faults}{service}")
}

fn heading(options: &TortureOptions) -> String {
    let faults = match options.faults {
        FaultSelection::Everything => "Every fault",
        FaultSelection::KillDatabase(_) => "PostgreSQL killed under load",
        FaultSelection::CutCommits(_) => "Connections cut at COMMIT under load",
    };
    let service = match options.service {
        TorturedService::OwnTransaction => "",
        TorturedService::Runner => ", the ledger runs the transaction",
        TorturedService::WithoutLedger => ", without the ledger",
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
    row("copies that the service answered after all records were removed", result.from_the_ledger.to_string());
    row("second effects before all records were removed", result.duplicates_in_run.to_string());
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

/// The report with this section in place of an earlier one of the same heading. The section of a longer run stays.
pub(crate) fn with_section(report: &str, section: &str) -> String {
    let heading = section.lines().next().unwrap_or_default().strip_prefix("## ");
    let mut sections: Vec<&str> = report.split("\n## ").skip(1).collect();
    let earlier = sections.iter().find(|earlier| earlier.lines().next() == heading);
    if earlier.is_some_and(|earlier| transfers(earlier) > transfers(section)) {
        return report.to_owned();
    }
    sections.retain(|earlier| earlier.lines().next() != heading);
    let kept: Vec<String> = sections.iter().map(|section| format!("\n## {}\n", section.trim_end())).collect();
    format!("{TITLE}{}\n{section}", kept.concat())
}

/// The number of transfers of a section.
fn transfers(section: &str) -> u32 {
    let row = section.lines().find_map(|line| line.strip_prefix("| transfers | ")?.strip_suffix(" |"));
    row.and_then(|number| number.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_takes_the_place_of_an_earlier_one() {
        let first = with_section("", "## One\n\n1\n");
        assert_eq!(first, "# Torture\n\n## One\n\n1\n");
        let both = with_section(&first, "## Two\n\n2\n");
        assert_eq!(both, "# Torture\n\n## One\n\n1\n\n## Two\n\n2\n");
        assert_eq!(with_section(&both, "## One\n\n3\n"), "# Torture\n\n## Two\n\n2\n\n## One\n\n3\n");
    }
    #[test]
    fn a_short_run_leaves_the_section_of_a_longer_one() {
        let long = with_section("", "## One\n\n| transfers | 2000 |\n");
        assert_eq!(with_section(&long, "## One\n\n| transfers | 300 |\n"), long);
        assert_ne!(with_section(&long, "## One\n\n| transfers | 2000 |\n| time | 1 s |\n"), long);
    }
}
