//! `cargo xtask demo-real` calls this program. It starts Redis, PostgreSQL and a broker, runs `hapax demo` on them, and
//! kills the servers, too.

mod servers;

use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result};
use clap::Parser;
use hapax_torture::SplitMix;
use hapax_torture::harness::{ReportArguments, exit_code, one_of};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::sleep;

use servers::{DemoBroker, DemoServers, ServerKills};

/// The pauses between two kills of servers.
const PAUSE: std::ops::Range<u32> = 4000..9000;

/// The topic of the random numbers of a run.
const KILLS: u64 = 20;

/// Runs `hapax demo` on real servers, which are killed as well.
#[derive(Debug, Parser)]
struct DemoArguments {
    /// The number of payments.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    payments: u32,
    /// How often processes are killed; default: that of the demo.
    #[arg(long, value_name = "N")]
    crashes: Option<u32>,
    /// Decides the payments and the faults.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The broker: kafka, nats or rabbitmq. Without it, there is a run on each.
    #[arg(long, value_parser = one_of(&DemoBroker::ALL, DemoBroker::name))]
    broker: Option<DemoBroker>,
    #[command(flatten)]
    report: ReportArguments,
}

/// What a run printed, and how often its servers were killed.
struct DemoRun {
    broker: DemoBroker,
    output: String,
    kills: ServerKills,
    took: Duration,
    holds: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(DemoArguments::parse().run().await)
}

impl DemoArguments {
    /// Runs the demo once for each broker. Returns whether all audits hold.
    async fn run(&self) -> Result<bool> {
        let mut holds = true;
        let brokers = self.broker.map_or_else(|| DemoBroker::ALL.to_vec(), |broker| vec![broker]);
        for broker in brokers {
            let run = self.run_on(broker).await?;
            if let Some(report) = &self.report.report
                && run.holds
            {
                self.write(report, &run)?;
            }
            holds &= run.holds;
        }
        Ok(holds)
    }

    async fn run_on(&self, broker: DemoBroker) -> Result<DemoRun> {
        let started = Instant::now();
        let servers = DemoServers::start(broker).await?;
        let mut demo = self.start_demo(&servers)?;
        let lines = BufReader::new(demo.stdout.take().context("the demo has no output")?).lines();
        let mut kills = ServerKills::default();
        let output = tokio::select! {
            output = echo(lines) => output?,
            error = self.kill_repeatedly(&servers, &mut kills) => return Err(error),
        };
        let holds = demo.wait().await?.success();
        let run = DemoRun { broker, output, kills, took: started.elapsed(), holds };
        println!("\n{}\n", run.summary());
        Ok(run)
    }

    fn start_demo(&self, servers: &DemoServers) -> Result<Child> {
        let program = env::current_exe()?.with_file_name("hapax");
        let mut demo = Command::new(program);
        demo.args(["demo", "--payments", &self.payments.to_string(), "--seed", &self.seed.to_string()]);
        if let Some(crashes) = self.crashes {
            demo.args(["--crashes", &crashes.to_string()]);
        }
        demo.args(servers.flags()).stdout(Stdio::piped()).kill_on_drop(true);
        demo.spawn().context("cannot start the demo")
    }

    /// Kills servers until the future is dropped. Returns only if one does not start again.
    async fn kill_repeatedly(&self, servers: &DemoServers, kills: &mut ServerKills) -> anyhow::Error {
        let mut random = SplitMix::new(self.seed, KILLS, 0);
        // The demo creates its tables, topics and streams first.
        sleep(Duration::from_secs(10)).await;
        if let Err(error) = servers.keep_queues().await {
            return error;
        }
        loop {
            if let Err(error) = servers.kill_one(&mut random, kills).await {
                return error;
            }
            sleep(Duration::from_millis(u64::from(random.of(PAUSE)))).await;
        }
    }

    /// Writes the section of a run, unless the present one is of a longer run.
    fn write(&self, report: &Path, run: &DemoRun) -> Result<()> {
        let present = fs::read_to_string(report).unwrap_or_else(|_| "# The demo on real servers\n".to_owned());
        Ok(fs::write(report, hapax_torture::with_section(&present, &self.section(run)))?)
    }

    fn section(&self, run: &DemoRun) -> String {
        let (Self { payments, seed, .. }, commit) = (self, &self.report.commit);
        let crashes = self.crashes.map(|crashes| format!(" --crashes {crashes}")).unwrap_or_default();
        let (broker, summary, output) = (run.broker, run.summary(), &run.output);
        format!(
            "## Redis, PostgreSQL and {}\n\n\
             `cargo xtask demo-real --payments {payments}{crashes} --seed {seed} --broker {}`\n\n\
             | | |\n|---|--:|\n| commit | {commit} |\n| payments | {payments} |\n\n\
             {summary}\n\n```text\n{output}```\n",
            broker.title(),
            broker.name(),
        )
    }
}

impl DemoRun {
    fn summary(&self) -> String {
        let (ServerKills { store, database, broker }, seconds) = (self.kills, self.took.as_secs());
        format!(
            "Servers killed: Redis {store} times, PostgreSQL {database} times, {} {broker} times. {seconds} s in all.",
            self.broker.title()
        )
    }
}

/// Prints what the demo prints, and returns it.
async fn echo(mut lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>) -> Result<String> {
    let mut output = String::new();
    while let Some(line) = lines.next_line().await? {
        println!("{line}");
        output += &line;
        output.push('\n');
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_run_keeps_the_report_of_a_longer_one() {
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("REPORT.md");
        let write = |payments: &str, broker| {
            let arguments = DemoArguments::try_parse_from(["demo", "--payments", payments]).unwrap();
            let (output, kills, took) = (String::new(), ServerKills::default(), Duration::ZERO);
            let run = DemoRun { broker, output, kills, took, holds: true };
            arguments.write(&report, &run).unwrap();
            let text = fs::read_to_string(&report).unwrap();
            text.lines().filter_map(|line| line.strip_prefix("| payments | ").map(str::to_owned)).collect::<Vec<_>>()
        };
        assert_eq!(write("500", DemoBroker::Nats), ["500 |"]);
        assert_eq!(write("400", DemoBroker::Nats), ["500 |"]);
        assert_eq!(write("300", DemoBroker::RabbitMq), ["500 |", "300 |"]);
        assert_eq!(write("600", DemoBroker::Nats), ["300 |", "600 |"]);
    }
}
