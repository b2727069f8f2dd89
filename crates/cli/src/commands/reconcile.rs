//! `hapax reconcile`: compares the records of a store with the ledger and the outbox of a database, and repairs what is
//! certain.

mod discrepancy;
mod judgement;
mod outbox;
mod probe;
mod records;
mod sample;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use hapax::runtime::Tokio;
use hapax_systems::StoreUrl;

use crate::commands::instant::instant;
use crate::serve::exit::CommandError;
use crate::store::opening::{open_existing, open_outbox, read_store, read_url};
use discrepancy::ReconcileReport;
use outbox::OutboxComparison;
use probe::EffectProbe;
use records::RecordComparison;

/// The arguments of `hapax reconcile`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReconcileArgs {
    /// The store with the records of the gateway, as its --store names it
    #[arg(long, value_name = "URL", env = "HAPAX_STORE", hide_env_values = true)]
    store: String,

    #[arg(long, value_name = "URL", env = "HAPAX_DATABASE", hide_env_values = true)]
    #[arg(help = format!("The database with the ledger and the outbox: {}", StoreUrl::database_forms()))]
    database: String,

    /// Ask the processor of the effect, too: http://HOST/PATH, or https://
    ///
    /// It is asked about each record whose outcome the ledger does not tell, and about a sample of the completed ones.
    /// docs/reconcile.md describes the request.
    #[arg(long, value_name = "URL")]
    probe: Option<http::Uri>,

    /// PEM file with the certificate authorities that are trusted for an https:// probe [default: the system's]
    #[arg(long, value_name = "FILE", requires = "probe")]
    probe_ca: Option<PathBuf>,

    /// How many completed records the probe is asked about
    #[arg(long, value_name = "N", default_value_t = 100, requires = "probe")]
    sample: usize,

    /// Only records that were granted at this time or later: 2026-01-31T12:00:00Z, or 2h for two hours ago
    #[arg(long, value_name = "TIME", value_parser = instant)]
    since: Option<humantime::Timestamp>,

    /// How long a transaction of the service may take, and a message in a queue before it
    ///
    /// Only records are looked at that were not touched for their lease and for this time.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = humantime::parse_duration)]
    longest_transaction: Duration,

    /// How long a row of the outbox may wait before it is reported
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = humantime::parse_duration)]
    unpublished_after: Duration,

    /// The namespace of a worker whose messages have the operation of the gateway as their key
    ///
    /// The ledger of such a worker has operations of its own, which follow from it. May be given several times.
    #[arg(long, value_name = "NAME")]
    worker_namespace: Vec<String>,

    /// The file with the secret of these workers' namespaces, if they have one
    #[arg(long, value_name = "FILE", requires = "worker_namespace")]
    secrets: Option<PathBuf>,

    /// The service keeps no ledger: a recorded answer needs no row
    #[arg(long)]
    no_ledger: bool,

    /// Release records whose effect is in the ledger, so that the next retry gets the answer from there
    #[arg(long)]
    fix: bool,

    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: ReconcileArgs) -> Result<ExitCode, CommandError> {
    let database = read_url("--database", &args.database, StoreUrl::database_forms)?;
    let store = read_store(&args.store)?;
    let probe = args.probe.as_ref().map(|uri| EffectProbe::new(uri, args.probe_ca.as_deref())).transpose()?;
    let outbox = open_outbox(&database, Arc::new(Tokio::current())).await?;
    let claims = open_existing(&database, Arc::new(Tokio::current())).await?;
    let records = open_existing(&store, Arc::new(Tokio::current())).await?.ok_or_else(|| {
        CommandError::cannot_start(anyhow!("--store has no records; name the store that the gateway uses"))
    })?;
    let ledger = database.tables().map_err(CommandError::usage)?.into_ledger();
    let mut report = ReconcileReport::new(args.json);
    RecordComparison::new(records, ledger, probe, &args)?.run(&mut report).await?;
    OutboxComparison { outbox, claims, unpublished_after: args.unpublished_after }.run(&mut report).await?;
    report.finish()
}
