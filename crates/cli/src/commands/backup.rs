//! `hapax backup`: copies a file of Hapax while processes use it.

use std::path::PathBuf;
use std::process::ExitCode;

use hapax_systems::StoreUrl;

use crate::serve::exit::CommandError;
use crate::store::opening::{read_url, refuse_missing_file};

/// The arguments of `hapax backup`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A copy alone misses what is beside the file: the journal, with answers that the store has not \
taken yet, and the audit file, both in --data-dir. Copy that directory, too."
)]
pub(crate) struct BackupArgs {
    /// The store or the database, which is a file: sqlite://PATH
    #[arg(long, value_name = "URL")]
    store: String,

    /// The copy, a file that does not exist yet. Only its owner can read it
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

/// Copies the file. Processes go on while it runs.
pub(crate) async fn run(args: BackupArgs) -> Result<ExitCode, CommandError> {
    let url = read_url("--store", &args.store, StoreUrl::forms)?;
    refuse_missing_file(&url, "process")?;
    let copy = args.to.clone();
    let copied = tokio::task::spawn_blocking(move || url.copy_to(&copy)).await;
    copied.map_err(|error| CommandError::failed(error.into()))??;
    println!("copied to {}", args.to.display());
    Ok(ExitCode::SUCCESS)
}
