//! `cargo xtask prove worker` calls this program.

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs};

use hapax_worker_torture::{SourceBroker, WorkerTortureOptions, WorkerTortureResult};

mod report;

const USAGE: &str = "\
usage: hapax-worker-torture [--transfers N] [--seed N] [--broker kafka|rabbitmq|sqs] [--brokers N]
                            [--without-ledger] [--report FILE --commit COMMIT]";

struct WorkerArguments {
    options: WorkerTortureOptions,
    report: Option<PathBuf>,
    commit: String,
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let Some(arguments) = WorkerArguments::read(&words) else {
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

impl WorkerArguments {
    fn read(words: &[String]) -> Option<Self> {
        let broker = SourceBroker::Kafka;
        let mut options = WorkerTortureOptions { transfers: 3000, seed: 1, has_ledger: true, broker, brokers: 3 };
        let (mut report, mut commit) = (None, String::new());
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match &**word {
                "--without-ledger" => options.has_ledger = false,
                "--transfers" => options.transfers = words.next()?.parse().ok().filter(|count| *count > 0)?,
                "--seed" => options.seed = words.next()?.parse().ok()?,
                "--broker" => {
                    let word = words.next()?;
                    options.broker = SourceBroker::ALL.into_iter().find(|name| name.word() == word)?;
                }
                "--brokers" => options.brokers = words.next()?.parse().ok().filter(|count| *count > 0)?,
                "--report" => report = Some(words.next()?.into()),
                "--commit" => commit = words.next()?.clone(),
                _ => return None,
            }
        }
        Some(Self { options, report, commit })
    }

    fn run(&self) -> anyhow::Result<WorkerTortureResult> {
        let folder = env::temp_dir().join(format!("hapax-worker-torture-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        println!("{}; the log of the workers is in {}", report::command(&self.options), folder.display());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let result = runtime.block_on(hapax_worker_torture::run(self.options, &folder))?;
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
