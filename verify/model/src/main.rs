//! Walks through every setting and says what came of it; ends with an error if anything is not as expected.
//!
//! ```text
//! hapax-model                 all settings
//! hapax-model retry           only those whose name contains "retry"
//! hapax-model --trace fence   also the shortest way to what is broken
//! hapax-model --stop          ends at the first surprise
//! hapax-model --deep          the settings with millions of states instead; one at a time, they take gigabytes
//! ```

use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use hapax_model::{DEEP, Listed, Verdict, check, settings, tell};

/// How many settings are walked through at once.
const AT_ONCE: usize = 2;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (flags, names): (Vec<&str>, Vec<&str>) =
        words.iter().map(String::as_str).partition(|word| word.starts_with("--"));
    let has = |name: &str| flags.contains(&name);
    let all: Vec<&Listed> = if has("--deep") { DEEP.iter().collect() } else { settings().collect() };
    let asked_for = |listed: &&Listed| names.is_empty() || names.iter().any(|name| listed.name.contains(name));
    let chosen: Vec<&Listed> = all.into_iter().filter(asked_for).collect();
    if chosen.is_empty() || flags.iter().any(|flag| !["--trace", "--stop", "--deep"].contains(flag)) {
        return misused();
    }
    println!("{:<18} {:<8} {:>9} {:>6}  verdict", "setting", "expected", "states", "s");
    let (next, surprises) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let walk = || {
        while let Some(listed) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !show(listed, &check(listed.setting), has("--trace")) {
                surprises.fetch_add(1, Ordering::Relaxed);
                if has("--stop") {
                    process::exit(1);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..if has("--deep") { 1 } else { AT_ONCE } {
            scope.spawn(walk);
        }
    });
    let surprises = surprises.into_inner();
    println!("{} of {} as expected", chosen.len() - surprises, chosen.len());
    if surprises == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints a verdict; says whether it is as expected.
fn show(listed: &Listed, verdict: &Verdict, traces: bool) -> bool {
    let as_expected = listed.as_expected(verdict);
    let (expected, seconds) = (listed.expected.to_string(), verdict.took.as_secs_f64());
    let mut lines = format!("{:<18} {expected:<8} {:>9} {seconds:>6.1}  {verdict}", listed.name, verdict.states);
    if let Err(why) = &as_expected {
        lines.push_str(&format!("\n  SURPRISE: {why}"));
    }
    if let Some((_, way)) = verdict.broken.as_ref().filter(|_| traces || as_expected.is_err()) {
        lines.push_str(&format!("\n  {}\n{}", listed.what, tell(listed.setting, way)));
    }
    println!("{lines}");
    as_expected.is_ok()
}

fn misused() -> ExitCode {
    eprintln!("usage: hapax-model [--trace] [--stop] [--deep] [NAME]...\n\nsettings:");
    for listed in settings().chain(DEEP) {
        eprintln!("  {:<20} {}", listed.name, listed.what);
    }
    ExitCode::from(2)
}
