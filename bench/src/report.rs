//! Writes `docs/performance.md` and the lines on the terminal.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use crate::harness::{LimitResult, PairSpread, SubjectResult};

/// Formats a result in one line. The figures in brackets are the lowest and the highest of the pairs.
pub(crate) fn line(measured: &SubjectResult) -> String {
    let mut line = format!("{:>12} ({})", rounded(measured.rate.median), range(&measured.rate, rounded));
    if let Some(LimitResult { what, rate, ratio, at_least }) = &measured.against {
        let _ = write!(line, ", {} ({})", two_places(ratio.median), range(ratio, two_places));
        let _ = write!(line, " of {} ({}; {what})", rounded(rate.median), range(rate, rounded));
        if let Some(at_least) = at_least {
            let verdict = if ratio.median >= *at_least { "reached" } else { "MISSED" };
            let _ = write!(line, "; {at_least} required: {verdict}");
        }
    }
    if !measured.note.is_empty() {
        let _ = write!(line, "; {}", measured.note);
    }
    line
}

/// The lowest and the highest value, `0.61 to 0.64`.
fn range(spread: &PairSpread, format: fn(f64) -> String) -> String {
    format!("{} to {}", format(spread.lowest), format(spread.highest))
}

fn two_places(ratio: f64) -> String {
    format!("{ratio:.2}")
}

/// Rounds to three digits, because a noisy machine gives no more.
fn rounded(rate: f64) -> String {
    let digits = rate.max(1.0).log10() as i32 - 2;
    let unit = 10_f64.powi(digits.max(0));
    let whole = ((rate / unit).round() * unit) as u64;
    let digits: Vec<char> = whole.to_string().chars().rev().collect();
    digits.chunks(3).map(|group| group.iter().collect::<String>()).collect::<Vec<_>>().join(",").chars().rev().collect()
}

const PAGE: &str = "docs/performance.md";

const PREFACE: &str = "# Performance

Each subject and its limit are measured in turn, five times, and those of the ledger seven times. The ratio is the
median of the pairs; the range has the lowest and the highest rate, then the lowest and the highest ratio. Absolute
figures are for orientation only: all processes of a run share two cores.
";

/// Writes the section of this set of subjects, and keeps the other sections.
pub(crate) fn write(set: &str, all: &[SubjectResult], more: &str) -> anyhow::Result<()> {
    let heading = format!("## cargo xtask bench {set}\n");
    let page = fs::read_to_string(PAGE).unwrap_or_default();
    let sections = page.split("\n## ").skip(1).map(|section| format!("## {section}"));
    let mut sections: Vec<String> = sections.filter(|section| !section.starts_with(&heading)).collect();
    sections.push(section(&heading, all, more));
    sections.sort();
    let trimmed = sections.iter().map(|section| section.trim_end());
    fs::create_dir_all("docs")?;
    fs::write(PAGE, format!("{PREFACE}\n{}\n", trimmed.collect::<Vec<_>>().join("\n\n")))?;
    println!("written: {PAGE}");
    Ok(())
}

fn section(heading: &str, all: &[SubjectResult], more: &str) -> String {
    let mut page = format!("{heading}\nOn {}.\n\n", machine());
    page.push_str("| subject | one operation | per second | limit | ratio | range of the pairs | required |\n");
    page.push_str("|---|---|---:|---|---:|---:|---:|\n");
    all.iter().for_each(|measured| page.push_str(&row(measured)));
    page.push_str("\nOther results:\n\n");
    for measured in all.iter().filter(|measured| !measured.note.is_empty()) {
        let _ = writeln!(page, "- {}: {}", measured.name, measured.note);
    }
    page.push_str(more);
    page
}

/// A row of the table.
fn row(measured: &SubjectResult) -> String {
    let SubjectResult { name, what, rate, against, .. } = measured;
    let none = || "–".to_owned();
    let against = against.as_ref();
    let limit = against.map_or_else(none, |against| format!("{}: {}", against.what, rounded(against.rate.median)));
    let ratio = against.map_or_else(none, |against| two_places(against.ratio.median));
    let ratios = against.map_or_else(none, |against| range(&against.ratio, two_places));
    let required = against.and_then(|against| against.at_least).map_or_else(none, two_places);
    let (median, rates) = (rounded(rate.median), range(rate, rounded));
    format!("| {name} | {what} | {median} | {limit} | {ratio} | {rates}; {ratios} | {required} |\n")
}

fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("a CPU", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let rustc = Command::new("rustc")
        .arg("--version")
        .output()
        .map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    format!("{cores} cores of {model}, {}, {}", std::env::consts::OS, rustc.unwrap_or_default())
}
