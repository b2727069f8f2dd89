//! Opens the stores and databases that URLs name, for commands and processes.

use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use hapax::broker::DeadLetterStore;
use hapax::runtime::Runtime;
use hapax_systems::{OpenError, OpenedOutbox, OpenedStore, StoreUrl};

use crate::serve::exit::{CommandError, request};

impl From<OpenError> for CommandError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Lacking(what) => Self::usage(anyhow!(what)),
            OpenError::Failed(error) => Self::cannot_start(error),
        }
    }
}

/// Reads the URL of a flag. `forms` are the URLs that the flag takes.
pub(crate) fn read_url(flag: &str, url: &str, forms: fn() -> String) -> Result<StoreUrl, CommandError> {
    let wrong = |error: anyhow::Error| CommandError::usage(error.context(format!("{flag} takes {}", forms())));
    url.parse().map_err(wrong)
}

/// Reads `--store` of a command, which asks for the records of another process.
pub(crate) fn read_store(url: &str) -> Result<StoreUrl, CommandError> {
    let url = read_url("--store", url, StoreUrl::forms)?;
    if url.ends_with_process() {
        let place = url.place();
        return Err(CommandError::usage(anyhow!("{place} has no records of another process; name its store")));
    }
    Ok(url)
}

/// Opens the store that a URL names.
pub(crate) fn open(url: &StoreUrl, runtime: Arc<dyn Runtime>) -> Result<OpenedStore, CommandError> {
    url.open(runtime).map_err(CommandError::cannot_start)
}

/// Opens the records of a store for a command. None if it has no table for them, which is not created.
pub(crate) async fn open_existing(
    url: &StoreUrl,
    runtime: Arc<dyn Runtime>,
) -> Result<Option<OpenedStore>, CommandError> {
    refuse_missing_file(url, "gateway")?;
    if let Ok(tables) = url.tables()
        && request(tables.lack_records()).await.map_err(|error| error.about(url.place()))?
    {
        return Ok(None);
    }
    open(&url.unchanged(), runtime).map(Some)
}

/// Opens the outbox in the database that a URL names. Refuses a database without its tables, and creates nothing.
pub(crate) async fn open_outbox(url: &StoreUrl, runtime: Arc<dyn Runtime>) -> Result<OpenedOutbox, CommandError> {
    refuse_missing_file(url, "service")?;
    let tables = url.tables().map_err(CommandError::usage)?;
    if request(tables.lack_outbox()).await.map_err(|error| error.about(url.place()))? {
        let message = "the database has no outbox, or an old one; run `hapax migrate --database URL` as the owner";
        return Err(CommandError::cannot_start(anyhow!(message)));
    }
    Ok(url.unchanged().outbox(runtime, true)?)
}

/// Opens the dead letters in the store or the database that a URL names, for commands. Refuses a database without their
/// table, and creates nothing.
pub(crate) async fn open_dead_letters(
    url: &StoreUrl,
    runtime: Arc<dyn Runtime>,
) -> Result<Arc<dyn DeadLetterStore>, CommandError> {
    refuse_missing_file(url, "worker")?;
    if let Ok(tables) = url.tables()
        && request(tables.lack_dead_letters()).await.map_err(|error| error.about(url.place()))?
    {
        let message = "there is no table of dead letters; name the store or the database that the worker uses";
        return Err(CommandError::cannot_start(anyhow!("{}: {message}", url.place())));
    }
    Ok(url.unchanged().dead_letters(runtime)?)
}

/// Refuses a path without a file, because opening it would create an empty one.
pub(crate) fn refuse_missing_file(url: &StoreUrl, user: &str) -> Result<(), CommandError> {
    let Some(path) = url.file().filter(|path| !Path::exists(path)) else { return Ok(()) };
    Err(CommandError::cannot_start(anyhow!("{} does not exist; name the file that the {user} uses", path.display())))
}
