//! `cargo xtask prove target` calls this program.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs};

use anyhow::Context;
use hapax_torture::target::{
    self, FoundMessageDamage, LapsePolicy, MessageSource, TargetFault, TargetOptions, TargetResult,
};

const USAGE: &str = "\
usage: hapax-torture-target [--messages N] [--seed N] [--on-lapse hold|retry] [--source sqlite|nats|nats-in-order]
                            [--calm] [--report FILE --commit COMMIT]";

struct TargetArguments {
    options: TargetOptions,
    report: Option<PathBuf>,
    commit: String,
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let Some(arguments) = TargetArguments::read(&words) else {
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

impl TargetArguments {
    fn read(words: &[String]) -> Option<Self> {
        let (policy, source) = (LapsePolicy::Hold, MessageSource::Sqlite);
        let mut options = TargetOptions { messages: 2000, seed: 1, policy, source, is_calm: false };
        let (mut report, mut commit) = (None, String::new());
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match &**word {
                "--calm" => options.is_calm = true,
                "--messages" => options.messages = words.next()?.parse().ok().filter(|messages| *messages > 0)?,
                "--seed" => options.seed = words.next()?.parse().ok()?,
                "--on-lapse" => {
                    options.policy = match &**words.next()? {
                        "hold" => LapsePolicy::Hold,
                        "retry" => LapsePolicy::Retry,
                        _ => return None,
                    }
                }
                "--source" => {
                    let name = words.next()?;
                    options.source = MessageSource::ALL.into_iter().find(|source| source.name() == name)?;
                }
                "--report" => report = Some(words.next()?.into()),
                "--commit" => commit = words.next()?.clone(),
                _ => return None,
            }
        }
        Some(Self { options, report, commit })
    }

    /// Returns whether the audit found nothing and, under faults with `retry`, whether it would have under `hold`.
    fn run(&self) -> anyhow::Result<bool> {
        let folder = env::temp_dir().join(format!("hapax-target-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        println!("{}; the journal and the logs are in {}", self.command(), folder.display());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let result = runtime.block_on(target::run(self.options, &folder))?;
        let damages = target::audit(&result, self.options.policy);
        let section = self.section(&result, &damages);
        print!("{section}");
        for found in damages.iter().take(20) {
            println!("{found}");
        }
        let expects_doubles = self.options.policy == LapsePolicy::Retry && !self.options.is_calm;
        let can_fail = !expects_doubles || !target::audit(&result, LapsePolicy::Hold).is_empty();
        if !can_fail {
            println!("no fault made a second effect, so the audit is not shown to be able to fail");
        }
        let passed = damages.is_empty() && can_fail;
        if passed {
            if let Some(path) = &self.report {
                let text = fs::read_to_string(path).unwrap_or_default();
                fs::write(path, hapax_torture::with_section(&text, &section))?;
            }
            fs::remove_dir_all(&folder)?;
        }
        Ok(passed)
    }

    fn command(&self) -> String {
        let TargetOptions { messages, seed, policy, source, is_calm } = self.options;
        let calm = if is_calm { " --calm" } else { "" };
        let (policy, source) = (policy.name(), source.name());
        format!(
            "cargo xtask prove target --messages {messages} --seed {seed} --on-lapse {policy} --source {source}{calm}"
        )
    }

    fn section(&self, result: &TargetResult, damages: &[FoundMessageDamage]) -> String {
        let TargetOptions { messages, policy, source, is_calm, .. } = self.options;
        let calm = if is_calm { ", without faults" } else { "" };
        let heading = format!("## A worker and a service behind HTTP, {}, {}{calm}", policy.name(), source.name());
        let mut text = format!("{heading}\n\n`{}`\n\n| | |\n|---|--:|\n", self.command());
        let mut row = |what: &str, figure: String| writeln!(text, "| {what} | {figure} |").expect("memory");
        if !self.commit.is_empty() {
            row("commit", self.commit.clone());
        }
        row("messages", messages.to_string());
        row("messages sent, copies included", result.sent.to_string());
        row("time", format!("{:.0} s", result.took.as_secs_f64()));
        for fault in TargetFault::ALL {
            if let Some(times) = result.faults.get(&fault) {
                row(fault.name(), times.to_string());
            }
        }
        row("attempts at the service", result.attempts().to_string());
        row("attempts with an unknown outcome", result.unknown_attempts().to_string());
        row("attempts that no fault of a process can have touched", result.certain_attempts().to_string());
        for (reason, count) in result.letters_by_reason() {
            row(&format!("dead letters `{reason}`"), count.to_string());
        }
        row("messages with a second effect", result.doubles().to_string());
        row("**everything that the audit found**", damages.len().to_string());
        text
    }
}
