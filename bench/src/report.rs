//! Writes `docs/performance.md` and the lines on the terminal.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use crate::harness::SubjectResult;

/// Formats a result in one line.
pub(crate) fn line(measured: &SubjectResult) -> String {
    let mut line = format!("{:>12}", rounded(measured.rate));
    if let Some(against) = &measured.against {
        let _ = write!(line, ", {:.2} of {} ({})", against.ratio, rounded(against.rate), against.what);
        if let Some(at_least) = against.at_least {
            let verdict = if against.ratio >= at_least { "reached" } else { "MISSED" };
            let _ = write!(line, "; {at_least} required: {verdict}");
        }
    }
    if !measured.note.is_empty() {
        let _ = write!(line, "; {}", measured.note);
    }
    line
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

Each subject and its limit are measured in turn, five times. The ratio is the median of the five pairs. Absolute
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
    page.push_str(
        "| subject | one operation | per second | limit | ratio | required |\n|---|---|---:|---|---:|---:|\n",
    );
    for measured in all {
        let against = measured.against.as_ref();
        let limit = against.map_or("–".into(), |against| format!("{}: {}", against.what, rounded(against.rate)));
        let ratio = against.map_or("–".into(), |against| format!("{:.2}", against.ratio));
        let required =
            against.and_then(|against| against.at_least).map_or("–".into(), |required| format!("{required:.2}"));
        let _ = writeln!(
            page,
            "| {} | {} | {} | {limit} | {ratio} | {required} |",
            measured.name,
            measured.what,
            rounded(measured.rate)
        );
    }
    page.push_str("\nOther results:\n\n");
    for measured in all.iter().filter(|measured| !measured.note.is_empty()) {
        let _ = writeln!(page, "- {}: {}", measured.name, measured.note);
    }
    page.extend(more.lines().map(|line| format!("- {line}\n")));
    page
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
