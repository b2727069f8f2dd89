//! Runs worlds by their seeds: one to be read, or very many, resumable. `cargo xtask prove sim` calls it.

mod prove;
mod report;

use std::process::ExitCode;
use std::{env, io};

use prove::Order;

const USAGE: &str = "\
usage: hapax-sim seed N                            one world, with its trace
       hapax-sim seeds FROM COUNT COMMIT FOLDER    many; goes on where it was stopped, and prints a report at the end";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<u64>().ok();
    match words.as_slice() {
        ["seed", seed] => match number(seed) {
            Some(seed) => show(seed),
            None => misused(),
        },
        ["seeds", from, count, commit, folder] => match (number(from), number(count)) {
            (Some(from), Some(count)) => {
                exit(prove::run(&Order { seeds: from..from + count, commit, folder: folder.as_ref() }))
            }
            _ => misused(),
        },
        _ => misused(),
    }
}

/// Shows what happens in one world.
fn show(seed: u64) -> ExitCode {
    let run = hapax_sim::run(seed, true);
    print!("{}", run.trace);
    println!("seed {seed}: {} steps, {:.3} s, hash {:016x}", run.steps, run.time.as_secs_f64(), run.hash);
    match run.violation {
        Some(rule) => {
            println!("it breaks a rule: {rule}");
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

fn misused() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}
