//! Checks every setting and prints the results. Exits with an error if a result is not the expected one.
//!
//! ```text
//! hapax-model                 all settings
//! hapax-model retry           only the settings whose name contains "retry"
//! hapax-model --trace fence   also prints the shortest way to a broken invariant
//! hapax-model --stop          stops at the first unexpected result
//! hapax-model --deep          only the settings with millions of states, one at a time; they need gigabytes of memory
//! ```

use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use hapax_model::{CheckResult, NamedSetting, check, deep_settings, settings};

/// How many settings are checked at once.
const AT_ONCE: usize = 2;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (flags, names): (Vec<&str>, Vec<&str>) =
        words.iter().map(String::as_str).partition(|word| word.starts_with("--"));
    let has = |name: &str| flags.contains(&name);
    let all: Vec<&NamedSetting> = if has("--deep") { deep_settings().collect() } else { settings().collect() };
    let is_chosen = |listed: &&NamedSetting| names.is_empty() || names.iter().any(|name| listed.name.contains(name));
    let chosen: Vec<&NamedSetting> = all.into_iter().filter(is_chosen).collect();
    if chosen.is_empty() || flags.iter().any(|flag| !["--trace", "--stop", "--deep"].contains(flag)) {
        return usage_error();
    }
    println!("{:<18} {:<8} {:>9} {:>6}  verdict", "setting", "expected", "states", "s");
    let (next, unexpected) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let walk = || {
        while let Some(listed) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !show(listed, &check(listed.setting), has("--trace")) {
                unexpected.fetch_add(1, Ordering::Relaxed);
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
    let unexpected = unexpected.into_inner();
    println!("{} of {} as expected", chosen.len() - unexpected, chosen.len());
    if unexpected == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints a result. Returns whether it is the expected one.
fn show(listed: &NamedSetting, verdict: &CheckResult, traces: bool) -> bool {
    let as_expected = listed.as_expected(verdict);
    let (expected, seconds) = (listed.expected.to_string(), verdict.took.as_secs_f64());
    let mut lines = format!("{:<18} {expected:<8} {:>9} {seconds:>6.1}  {verdict}", listed.name, verdict.states);
    if let Err(why) = &as_expected {
        lines.push_str(&format!("\n  UNEXPECTED: {why}"));
    }
    if let Some(broken) = verdict.broken.as_ref().filter(|_| traces || as_expected.is_err()) {
        lines.push_str(&format!("\n  {}\n{}", listed.what, broken.way));
    }
    println!("{lines}");
    as_expected.is_ok()
}

fn usage_error() -> ExitCode {
    eprintln!("usage: hapax-model [--trace] [--stop] [--deep] [NAME]...\n\nsettings:");
    for listed in settings().chain(deep_settings()) {
        eprintln!("  {:<20} {}", listed.name, listed.what);
    }
    ExitCode::from(2)
}
