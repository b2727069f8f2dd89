//! `hapax demo`: what the gateway is for, shown on a payment service that knows nothing of retries.
//!
//! ```text
//! clients ──► gateway (own process and store) ──────► payment service ──► charges.log
//!    │            ▲                                                          │
//!    │            └── kill -9, start again                                   │
//!    └── what they were told ──────────────► audit ◄── what was charged ─────┘
//! ```

mod answer;
mod audit;
mod board;
mod chance;
mod customer;
mod gateway;
mod note;
mod report;
mod service;
mod traffic;
mod wire;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use audit::Audit;
use board::Board;
use customer::{Crowd, World};
use gateway::Gateway;
use service::Service;
use wire::Wire;

use super::Failure;
use crate::store::wiring::StoreUrl;

/// What the demo can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// How many payments to make.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    payments: u32,

    /// Makes the traffic of an earlier run again [default: another one each time, and printed]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// How often to kill the gateway [default: once per 100 payments]
    #[arg(long, value_name = "N")]
    crashes: Option<u32>,

    /// Where the gateway keeps its records [default: a SQLite file of this run]
    #[arg(long, value_name = "URL", value_parser = store_url, conflicts_with = "direct")]
    store: Option<String>,

    /// Send the same traffic without the gateway, and see the damage.
    #[arg(long, conflicts_with = "crashes")]
    direct: bool,

    /// Keep the files of the run, and print where they are.
    #[arg(long)]
    keep: bool,
}

/// A URL that names a store of this build. It stays as it was typed, for the gateway to read.
fn store_url(url: &str) -> Result<String> {
    url.parse::<StoreUrl>().map(|_| url.to_owned())
}

/// Runs the demo; the exit code says whether the audit holds.
pub(crate) async fn run(args: DemoArgs) -> Result<ExitCode, Failure> {
    let keep = args.keep;
    let script = Script::from(args);
    let folder = Folder::new().map_err(Failure::cannot_start)?;
    let end = tokio::select! {
        holds = play(&script, folder.path()) => holds.map(End::Audited),
        interrupted = interrupted() => interrupted.map(|()| End::Interrupted).map_err(Failure::failed),
    };
    // What speaks against the gateway is never thrown away.
    let is_evidence = !script.direct && matches!(end, Ok(End::Audited(false)));
    folder.leave(keep || is_evidence).map_err(Failure::failed)?;
    Ok(end?.exit_code())
}

/// Plays the script, and says whether the audit holds.
async fn play(script: &Script, folder: &Path) -> Result<bool, Failure> {
    report::introduce(script);
    let stage = Stage::set(script, folder).await.map_err(Failure::cannot_start)?;
    perform(script, folder, stage).await.map_err(Failure::failed)
}

/// What must be there before anything can be played.
#[derive(Debug)]
struct Stage {
    log: PathBuf,
    service: Arc<Service>,
    /// None where clients talk to the service itself.
    gateway: Option<Gateway>,
}

impl Stage {
    async fn set(script: &Script, folder: &Path) -> Result<Self> {
        let log = folder.join("charges.log");
        let service = Arc::new(Service::start(script.seed, &log).await?);
        let gateway = match script.direct {
            true => None,
            false => Some(Gateway::start(script, service.address(), folder).await?),
        };
        Ok(Self { log, service, gateway })
    }
}

async fn perform(script: &Script, folder: &Path, stage: Stage) -> Result<bool> {
    let Stage { log, service, gateway } = stage;
    let board = Arc::new(Board::new(script.payments, script.crashes));
    let crowd = match gateway {
        None => directly(script, &service, &board).await?,
        Some(gateway) => through(gateway, script, &service, &board).await?,
    };
    service.finish().await;

    let log = fs::read_to_string(&log).context("cannot read the log of charges")?;
    let notes = crowd.notes();
    note::save(&notes, &folder.join("answers.log"))?;
    let audit = Audit::new(&log, &notes);
    report::show(&audit, &board);
    let holds = audit.holds() && board.crashes() >= script.crashes;
    report::conclude(script, &audit, holds);
    Ok(holds)
}

async fn directly(script: &Script, service: &Arc<Service>, board: &Arc<Board>) -> Result<Crowd> {
    let crowd = crowd(script, service.address(), service, board);
    tokio::select! {
        sent = send_everything(&crowd, board) => sent?,
        never = board.show() => match never {},
    }
    Ok(crowd)
}

async fn through(mut gateway: Gateway, script: &Script, service: &Arc<Service>, board: &Arc<Board>) -> Result<Crowd> {
    let crowd = crowd(script, gateway.address(), service, board);
    tokio::select! {
        sent = send_everything(&crowd, board) => sent?,
        trouble = gateway.torment(script, board) => return Err(trouble),
        never = board.show() => match never {},
    }
    gateway.stop().await?;
    Ok(crowd)
}

fn crowd(script: &Script, to: SocketAddr, service: &Arc<Service>, board: &Arc<Board>) -> Crowd {
    let world = World::new(Wire::new(to), Arc::clone(service), Arc::clone(board));
    Crowd::new(script.seed, script.payments, &world)
}

/// The second pass comes after the last crash: what was told before must be what is told then.
async fn send_everything(crowd: &Crowd, board: &Board) -> Result<()> {
    crowd.pay().await?;
    board.crashed().await;
    crowd.ask_once_more().await
}

/// Waits until somebody wants the demo to end.
async fn interrupted() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        typed = tokio::signal::ctrl_c() => typed?,
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// What is played: the arguments, completed.
#[derive(Debug)]
struct Script {
    seed: u64,
    payments: u32,
    crashes: u32,
    /// Where records are kept, if not in a file of the run.
    store: Option<String>,
    direct: bool,
}

impl From<DemoArgs> for Script {
    fn from(args: DemoArgs) -> Self {
        let crashes = args.crashes.unwrap_or(args.payments.div_ceil(100));
        Self {
            seed: args.seed.unwrap_or_else(chance::fresh_seed),
            payments: args.payments,
            crashes: if args.direct { 0 } else { crashes },
            store: args.store,
            direct: args.direct,
        }
    }
}

impl Script {
    /// How many payments are settled when this crash (from 1) is due: spread evenly, so that each hits traffic.
    fn due(&self, crash: u32) -> u32 {
        let due = u64::from(self.payments) * u64::from(crash) / (u64::from(self.crashes) + 1);
        u32::try_from(due).unwrap_or(self.payments)
    }
}

/// How the demo ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Audited(bool),
    Interrupted,
}

impl End {
    fn exit_code(self) -> ExitCode {
        match self {
            Self::Audited(true) => ExitCode::SUCCESS,
            Self::Audited(false) => ExitCode::FAILURE,
            Self::Interrupted => ExitCode::from(INTERRUPTED),
        }
    }
}

/// What a shell reports of a program that was ended by Ctrl-C.
const INTERRUPTED: u8 = 130;

/// The files of a run. Dropped, they are removed.
#[derive(Debug)]
struct Folder(TempDir);

impl Folder {
    fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("hapax-demo-").tempdir();
        folder.map(Self).context("cannot make a temporary folder")
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn leave(self, keep: bool) -> Result<()> {
        if keep {
            println!("\nThe files of this run are in {}", self.0.keep().display());
            return Ok(());
        }
        self.0.close().context("cannot remove the temporary folder")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(payments: u32, crashes: Option<u32>, direct: bool) -> Script {
        let seed = Some(1);
        Script::from(DemoArgs { payments, seed, crashes, store: None, direct, keep: false })
    }

    #[test]
    fn crashes_are_spread_over_the_payments() {
        let script = script(2000, None, false);
        assert_eq!(script.crashes, 20);
        assert_eq!((script.due(1), script.due(10), script.due(20)), (95, 952, 1904));
    }

    #[test]
    fn nothing_is_crashed_without_the_gateway() {
        assert_eq!(script(2000, None, true).crashes, 0);
    }
}
