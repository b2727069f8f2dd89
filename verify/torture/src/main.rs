//! `cargo xtask prove torture` calls this program.

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs};

use anyhow::Context;
use hapax_torture::{FaultSelection, TortureOptions, TorturedService};

mod report;

const USAGE: &str = "\
usage: hapax-torture [--transfers N] [--seed N]
                     [--runner | --python | --without-ledger | --two-gateways retry|hold]
                     [--kill-database N | --cut-commits N | --kill-each N] [--report FILE --commit COMMIT]";

struct ProgramArguments {
    options: TortureOptions,
    report: Option<PathBuf>,
    commit: String,
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let Some(arguments) = ProgramArguments::read(&words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match arguments.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl ProgramArguments {
    fn read(words: &[String]) -> Option<Self> {
        let (mut transfers, mut seed, mut service) = (None, 1, TorturedService::OwnTransaction);
        let (mut faults, mut report, mut commit) = (FaultSelection::Everything, None, String::new());
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match &**word {
                "--without-ledger" => service = TorturedService::WithoutLedger,
                "--runner" => service = TorturedService::Runner,
                "--python" => service = TorturedService::Python,
                "--two-gateways" => {
                    service = match &**words.next()? {
                        "retry" => TorturedService::Gated,
                        "hold" => TorturedService::Held,
                        _ => return None,
                    }
                }
                "--transfers" => transfers = Some(words.next()?.parse().ok()?),
                "--seed" => seed = words.next()?.parse().ok()?,
                "--kill-database" => faults = FaultSelection::KillDatabase(words.next()?.parse().ok()?),
                "--cut-commits" => faults = FaultSelection::CutCommits(words.next()?.parse().ok()?),
                "--kill-each" => faults = FaultSelection::KillEach(words.next()?.parse().ok()?),
                "--report" => report = Some(words.next()?.into()),
                "--commit" => commit = words.next()?.clone(),
                _ => return None,
            }
        }
        let enough = match faults {
            FaultSelection::Everything => 2000,
            FaultSelection::KillDatabase(times)
            | FaultSelection::CutCommits(times)
            | FaultSelection::KillEach(times) => times.checked_mul(100)?,
        };
        let transfers = transfers.unwrap_or(enough).max(1);
        Some(Self { options: TortureOptions { transfers, seed, service, faults }, report, commit })
    }

    fn run(&self) -> anyhow::Result<bool> {
        let folder = env::temp_dir().join(format!("hapax-torture-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        println!("{}; the journal and the logs are in {}", report::command(&self.options), folder.display());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let result = runtime.block_on(hapax_torture::run(self.options, &folder))?;
        let section = report::section(&self.options, &self.commit, &result);
        print!("{section}");
        for found in result.damages.iter().take(20) {
            println!("{found}");
        }
        let is_clean = result.damages.is_empty();
        if let Some(path) = &self.report
            && is_clean == self.options.service.must_be_clean()
        {
            let text = fs::read_to_string(path).unwrap_or_default();
            fs::write(path, hapax_torture::with_section(&text, &section))?;
        }
        if is_clean {
            fs::remove_dir_all(&folder)?;
        }
        Ok(is_clean)
    }
}
