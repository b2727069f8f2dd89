//! `cargo xtask prove relay` calls this program.

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs};

use hapax_relay_torture::{RelayFault, RelayTortureOptions, RelayTortureResult, SinkBroker};

mod report;

const USAGE: &str = "\
usage: hapax-relay-torture [--events N] [--keys K] [--seed N] [--broker nats|rabbitmq] [--without-inbox]
                           [--mutant NAME] [--report FILE --commit COMMIT]";

struct RelayArguments {
    options: RelayTortureOptions,
    report: Option<PathBuf>,
    commit: String,
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let Some(arguments) = RelayArguments::read(&words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match arguments.run() {
        Ok(result) if result.damages.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl RelayArguments {
    fn read(words: &[String]) -> Option<Self> {
        let mut options = RelayTortureOptions {
            events: 5000,
            keys: 500,
            seed: 1,
            broker: SinkBroker::Nats,
            faults: RelayFault::ALL.to_vec(),
            has_inbox: true,
            mutant: None,
        };
        let (mut report, mut commit) = (None, String::new());
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match &**word {
                "--without-inbox" => options.has_inbox = false,
                "--events" => options.events = words.next()?.parse().ok().filter(|count| *count > 0)?,
                "--keys" => options.keys = words.next()?.parse().ok().filter(|count| *count > 0)?,
                "--seed" => options.seed = words.next()?.parse().ok()?,
                "--broker" => {
                    let word = words.next()?;
                    options.broker = SinkBroker::ALL.into_iter().find(|name| name.word() == word)?;
                }
                "--mutant" => options.mutant = Some(words.next()?.clone()),
                "--report" => report = Some(words.next()?.into()),
                "--commit" => commit = words.next()?.clone(),
                _ => return None,
            }
        }
        Some(Self { options, report, commit })
    }

    fn run(&self) -> anyhow::Result<RelayTortureResult> {
        let folder = env::temp_dir().join(format!("hapax-relay-torture-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        println!("{}; the log of the relays is in {}", report::command(&self.options), folder.display());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let result = runtime.block_on(hapax_relay_torture::run(&self.options, &folder))?;
        let text = report::text(&self.options, &self.commit, &result);
        print!("{text}");
        for found in result.damages.iter().take(20) {
            println!("{found}");
        }
        if result.damages.is_empty() {
            fs::remove_dir_all(&folder)?;
            if let Some(path) = &self.report {
                let earlier = fs::read_to_string(path).unwrap_or_default();
                fs::write(path, hapax_torture::with_section(&earlier, &text))?;
            }
        }
        Ok(result)
    }
}
