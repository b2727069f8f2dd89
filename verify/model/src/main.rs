//! Walks through every setting and says what came of it; ends with an error if anything is not as expected.
//!
//! ```text
//! hapax-model                 all settings
//! hapax-model retry           only those whose name contains "retry"
//! hapax-model --trace fence   also the shortest way to what is broken
//! hapax-model --stop          ends at the first surprise
//! hapax-model --deep          the settings with millions of states instead; one at a time, they take gigabytes
//! ```

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use hapax_model::{DEEP, Listed, SETTINGS, Verdict, check, tell};

/// How many settings are walked through at once.
const AT_ONCE: usize = 2;

fn main() -> ExitCode {
    let (flags, names): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let has = |name: &str| flags.iter().any(|flag| flag == name);
    let (traces, stops) = (has("--trace"), has("--stop"));
    let (settings, at_once) = if has("--deep") { (DEEP, 1) } else { (SETTINGS, AT_ONCE) };
    if flags.iter().any(|flag| !["--trace", "--stop", "--deep"].contains(&flag.as_str())) {
        return misused();
    }
    let asked_for = |listed: &&Listed| names.is_empty() || names.iter().any(|name| listed.name.contains(name.as_str()));
    let chosen: Vec<&Listed> = settings.iter().filter(asked_for).collect();
    if chosen.is_empty() {
        return misused();
    }
    println!("{:<18} {:<8} {:>9} {:>6}  verdict", "setting", "expected", "states", "s");
    let surprises = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(listed) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = check(listed.setting);
                    if !show(listed, &verdict, traces) {
                        if stops {
                            std::process::exit(1);
                        }
                        surprises.lock().expect("no walk panics while it holds this").push(listed.name);
                    }
                }
            });
        }
    });
    let surprises = surprises.into_inner().expect("no walk panicked");
    println!("{} of {} as expected", chosen.len() - surprises.len(), chosen.len());
    if surprises.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
    for listed in SETTINGS.iter().chain(DEEP) {
        eprintln!("  {:<20} {}", listed.name, listed.what);
    }
    ExitCode::from(2)
}
