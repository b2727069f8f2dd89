//! Runs worlds by their seeds: one with its trace, or many. A run of many seeds can be stopped and resumed. `cargo
//! xtask prove sim` calls this program.

mod prove;
mod report;

use std::process::ExitCode;
use std::{env, io};

use prove::SeedBatch;

const USAGE: &str = "\
usage: hapax-sim seed N                            runs one world and prints its trace
       hapax-sim relays N                          runs one world of relays
       hapax-sim seeds FROM COUNT COMMIT FOLDER    runs many worlds, resumes a stopped run, and prints a report";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<u64>().ok();
    match words.as_slice() {
        ["seed", seed] => match number(seed) {
            Some(seed) => show(seed),
            None => usage_error(),
        },
        ["relays", seed] => match number(seed) {
            Some(seed) => show_relays(seed),
            None => usage_error(),
        },
        ["seeds", from, count, commit, folder] => match (number(from), number(count)) {
            (Some(from), Some(count)) => {
                exit(prove::run(&SeedBatch { seeds: from..from + count, commit, folder: folder.as_ref() }))
            }
            _ => usage_error(),
        },
        _ => usage_error(),
    }
}

/// Runs one world and prints its trace.
fn show(seed: u64) -> ExitCode {
    let run = hapax_sim::run(seed, true);
    print!("{}", run.trace);
    println!("seed {seed}: {} steps, {:.3} s, hash {:016x}", run.steps, run.time.as_secs_f64(), run.hash);
    match run.violation {
        Some(rule) => {
            println!("broken rule: {rule}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

/// Runs one world of relays.
fn show_relays(seed: u64) -> ExitCode {
    let run = hapax_sim::run_relays(seed);
    println!("{:#?}", run.counts);
    match run.violation {
        Some(rule) => {
            println!("broken rule: {rule}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

fn exit(proved: io::Result<bool>) -> ExitCode {
    match proved {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage_error() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}
