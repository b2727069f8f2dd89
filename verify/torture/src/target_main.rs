//! `cargo xtask prove target` calls this program.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use hapax_torture::harness::{self, Proof, ProofEnd, ProofSection, ReportArguments, one_of};
use hapax_torture::target::{self, LapsePolicy, MessageSource, TargetFault, TargetOptions, TargetResult};

/// Tortures `hapax worker` with a service behind HTTP, and audits its effects and the dead letters.
#[derive(Debug, Parser)]
struct TargetArguments {
    /// The number of messages, without copies.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    /// Decides the copies, the faults, and what the service does.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What the workers do about unknown outcomes: hold or retry.
    #[arg(long, default_value = "hold", value_parser = one_of(&LapsePolicy::ALL, LapsePolicy::name))]
    on_lapse: LapsePolicy,
    /// Where the messages come from: sqlite, nats or nats-in-order.
    #[arg(long, default_value = "sqlite", value_parser = one_of(&MessageSource::ALL, MessageSource::name))]
    source: MessageSource,
    /// Without faults: the audit must find nothing then.
    #[arg(long)]
    calm: bool,
    #[command(flatten)]
    report: ReportArguments,
}

fn main() -> ExitCode {
    harness::main::<TargetArguments>()
}

impl TargetArguments {
    fn options(&self) -> TargetOptions {
        let Self { messages, seed, on_lapse: policy, source, calm: is_calm, .. } = *self;
        TargetOptions { messages, seed, policy, source, is_calm }
    }

    fn heading(&self) -> String {
        let calm = if self.calm { ", without faults" } else { "" };
        format!("A worker and a service behind HTTP, {}, {}{calm}", self.on_lapse.name(), self.source.name())
    }
}

impl Proof for TargetArguments {
    const FOLDER: &'static str = "hapax-target";

    fn report(&self) -> &ReportArguments {
        &self.report
    }

    fn command(&self) -> String {
        let TargetOptions { messages, seed, policy, source, is_calm } = self.options();
        let calm = if is_calm { " --calm" } else { "" };
        let (policy, source) = (policy.name(), source.name());
        format!(
            "cargo xtask prove target --messages {messages} --seed {seed} --on-lapse {policy} --source {source}{calm}"
        )
    }

    /// It passes if the audit found nothing and, under faults with `retry`, would have found something under `hold`.
    async fn run(&self, folder: &Path) -> anyhow::Result<ProofEnd> {
        let result = target::run(self.options(), folder).await?;
        let damages = target::audit(&result, self.on_lapse);
        let mut section = self.section(&self.heading());
        fill(&mut section, self.messages, &result);
        section.row("**everything that the audit found**", damages.len());
        let mut end = ProofEnd::of(section, &damages);
        let expects_doubles = self.on_lapse == LapsePolicy::Retry && !self.calm;
        if expects_doubles && target::audit(&result, LapsePolicy::Hold).is_empty() {
            end.damages.push("no fault made a second effect, so the audit is not shown to be able to fail".into());
            (end.has_passed, end.is_recorded) = (false, false);
        }
        Ok(end)
    }
}

/// Writes the figures of a run into its section.
fn fill(section: &mut ProofSection, messages: u32, result: &TargetResult) {
    section.row("messages", messages);
    section.row("messages sent, copies included", result.sent);
    section.row("time", format!("{:.0} s", result.took.as_secs_f64()));
    for fault in TargetFault::ALL {
        if let Some(times) = result.faults.get(&fault) {
            section.row(fault.name(), times);
        }
    }
    section.row("attempts at the service", result.attempts());
    section.row("attempts with an unknown outcome", result.unknown_attempts());
    section.row("attempts that no fault of a process can have touched", result.certain_attempts());
    for (reason, count) in result.letters_by_reason() {
        section.row(&format!("dead letters `{reason}`"), count);
    }
    section.row("messages with a second effect", result.doubles());
}
