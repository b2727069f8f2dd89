//! `cargo xtask <verb>`: the commands of this repository. It uses only the standard library, so that it builds in
//! seconds.

mod measure;
mod mutants;
mod prove;
mod rust;
mod services;
mod source_tree;
mod suites;
mod tally;
mod test;
mod tidy;
mod timing;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask <verb>

verbs:
  test           everything a change must pass: format, tidy, clippy, documentation, tests, mutants
  tidy           only the rules about the source tree, in a second
  measure [--checkout DIR]
                 prints figures about the source: sizes, cycles, shared names, files entered by one POST
  mutants        turns known bugs on, one at a time; at least one test harness must fail for each
  bench SET [S]  measures core, http, redis, postgres, postgres-10m, ledger, ledger-10m, worker, worker-1m, relay,
                 relay-1m, gateway, keys or pipeline beside its limits; only subjects whose name contains S.
                 pipeline latency prints what each layer adds; sizing prints the bytes of a record in each store
  prove model [S] [--deep] [--trace]
                 visits every state of every setting of the model; only settings whose name contains S; only the
                 largest ones; with the shortest way to what breaks
  prove sim      runs many seeds of the simulation: --seeds N [--from S], resumes after a stop; --seed N shows one
  prove torture  kills processes and servers and cuts connections under load: --transfers N [--seed N]
                 [--runner | --python | --two-gateways retry|hold | --without-ledger]
                 [--kill-database N | --cut-commits N | --kill-each N]
  prove target   kills and stops hapax worker and a service behind HTTP: --messages N [--seed N] [--calm]
                 [--on-lapse hold|retry] [--source sqlite|nats|nats-in-order]
  prove worker   kills, stops and rebalances workers on Kafka, RabbitMQ or SQS: --transfers N [--seed N]
                 [--broker kafka|rabbitmq|sqs] [--brokers N] [--without-ledger]
  prove relay    kills, stops and cuts off relays between PostgreSQL and NATS or RabbitMQ: [--events N] [--keys K]
                 [--seed N] [--broker nats|rabbitmq] [--without-inbox]
  prove suites   runs the suites of sources and sinks where the tests leave them out: classic queues of RabbitMQ 3
  demo-real      hapax demo on Redis, PostgreSQL and Kafka, and again with NATS and with RabbitMQ; kills the servers,
                 too: [--payments N] [--crashes N] [--seed N] [--broker kafka|nats|rabbitmq]
  services unpack | up NAME | down [NAME] | status
                 real servers, unpacked and never installed; after `up` a server runs until `down`
  help           this page
";

const FAILED: u8 = 1;
const MISUSED: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test"] => exit(test::run(&root())),
        ["tidy"] => exit(tidy::run(&root())),
        ["measure"] => exit(measure::run(&root())),
        ["measure", "--checkout", folder] => exit(measure::run(Path::new(folder))),
        ["mutants"] => exit(mutants::run(&root())),
        ["prove", rest @ ..] => exit_or_misused(prove::run(&root(), rest)),
        ["demo-real", rest @ ..] => exit_or_misused(prove::demo_real(&root(), rest)),
        ["services", rest @ ..] => exit_or_misused(services::run(&root(), rest)),
        ["bench", rest @ ..] => exit(test::bench(&root(), rest)),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        [] => misused("a verb is missing"),
        ["test" | "tidy" | "measure" | "mutants" | "help", extra, ..] => {
            misused(&format!("unexpected argument `{extra}`"))
        }
        [verb, ..] => misused(&format!("unknown verb `{verb}`")),
    }
}

/// The root of the checkout.
fn root() -> PathBuf {
    // Read at run time: checkouts may share a target folder and then share this binary.
    let package = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    package.and_then(|folder| Some(folder.parent()?.to_owned())).unwrap_or_else(|| PathBuf::from("."))
}

/// A command of cargo as a person would type it.
fn cargo() -> Command {
    let mut command = Command::new("cargo");
    forget_package(&mut command);
    command
}

/// Removes the variables that cargo has set for this package. Build scripts, that of `ring` for one, run again if they
/// have changed, and then everything that needs TLS is compiled again.
fn forget_package(command: &mut Command) {
    let is_of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_of_package)) {
        command.env_remove(name);
    }
}

fn exit(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

fn exit_or_misused(outcome: Result<bool, String>) -> ExitCode {
    outcome.map_or_else(|error| misused(&error), exit)
}

fn misused(what: &str) -> ExitCode {
    eprintln!("error: {what}\n\n{USAGE}");
    ExitCode::from(MISUSED)
}
