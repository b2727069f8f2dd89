//! The report of a recorded run. It has only figures, so that the same run always gives the same report.

use std::fmt::Write;
use std::ops::Range;

use hapax_sim::{FaultClass, RunTotals};

pub(crate) fn text(seeds: &Range<u64>, commit: &str, tally: &RunTotals) -> String {
    let mut text = String::from("# Simulation\n\n");
    let hours = tally.millis as f64 / 3_600_000.0;
    let bound = 3.0 / tally.runs as f64;
    let figures = [
        ("seeds", format!("{} to {}", seeds.start, seeds.end - 1)),
        ("commit", commit.to_owned()),
        ("runs", tally.runs.to_string()),
        ("violations", "0".to_owned()),
        ("run twice, with equal hashes", tally.compared.to_string()),
        ("steps", tally.steps.to_string()),
        ("virtual time", format!("{hours:.0} h")),
        ("calls", tally.count("call").to_string()),
    ];
    write!(text, "`cargo xtask prove sim --seeds {} --from {}`\n\n", tally.runs, seeds.start).expect("memory");
    table(&mut text, &figures);
    write!(
        text,
        "\nBy the rule of three, with 95 % confidence fewer than one world in {:.0} breaks a rule \
         ({bound:.1e} per seed).\n",
        1.0 / bound
    )
    .expect("memory");
    let faults: Vec<_> = FaultClass::ALL.iter().map(|(_, name)| (*name, tally.count(name).to_string())).collect();
    text.push_str("\n## Faults\n\n");
    table(&mut text, &faults);
    let is_fault = |what: &str| FaultClass::ALL.iter().any(|(_, name)| *name == what);
    let rest: Vec<_> = tally.counts.iter().filter(|(what, _)| !is_fault(what)).collect();
    text.push_str("\n## Events\n\n");
    table(&mut text, &rest.iter().map(|(what, count)| (what.as_str(), count.to_string())).collect::<Vec<_>>());
    text
}

fn table(text: &mut String, rows: &[(&str, String)]) {
    text.push_str("| | |\n|---|--:|\n");
    for (what, figure) in rows {
        writeln!(text, "| {what} | {figure} |").expect("memory");
    }
}
