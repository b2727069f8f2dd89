use std::sync::Arc;

use anyhow::anyhow;
use hapax::outbox::{Outbox, OutboxUpkeep};
use hapax::runtime::Runtime;

use super::StoreUrl;
use super::tables::{SCHEMES, Tables};
use crate::serve::exit::{CommandError, request};

/// The outbox in a database, for relays and for operators.
#[derive(Clone, Debug)]
pub(crate) struct OpenedOutbox {
    pub(crate) outbox: Arc<dyn Outbox>,
    pub(crate) upkeep: Arc<dyn OutboxUpkeep>,
}

impl OpenedOutbox {
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    fn new<O: Outbox + OutboxUpkeep>(outbox: O) -> Self {
        let outbox = Arc::new(outbox);
        Self { outbox: Arc::clone(&outbox) as _, upkeep: outbox }
    }
}

/// Opens the outbox in the database that a URL names. Refuses a database without its tables, and creates nothing.
pub(crate) async fn open(url: &StoreUrl, runtime: Arc<dyn Runtime>) -> Result<OpenedOutbox, CommandError> {
    #[cfg(feature = "sqlite")]
    if let StoreUrl::Sqlite(path) = url
        && !path.exists()
    {
        // Otherwise a misspelt path would create an empty file.
        let message = anyhow!("{} does not exist; name the file that the service uses", path.display());
        return Err(CommandError::cannot_start(message));
    }
    let tables = Tables::of(url).map_err(CommandError::usage)?;
    if request(tables.lack_outbox()).await? {
        let message = "the database has no outbox, or an old one; run `hapax migrate --database URL` as the owner";
        return Err(CommandError::cannot_start(anyhow!(message)));
    }
    create(url, runtime, true)
}

/// Opens the outbox. Its first use creates tables that are missing, if the role may. `has_notifications` says whether
/// PostgreSQL tells of new rows.
#[cfg_attr(not(feature = "postgres"), expect(unused_variables, reason = "only PostgreSQL tells of new rows"))]
pub(crate) fn create(
    url: &StoreUrl,
    runtime: Arc<dyn Runtime>,
    has_notifications: bool,
) -> Result<OpenedOutbox, CommandError> {
    match url {
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => {
            let opened = hapax::stores::PostgresOutbox::with(url, runtime).map_err(CommandError::cannot_start)?;
            Ok(OpenedOutbox::new(if has_notifications { opened } else { opened.without_notifications() }))
        }
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(path) => {
            let opened = hapax::stores::SqliteOutbox::with(path, runtime);
            opened.map(OpenedOutbox::new).map_err(CommandError::cannot_start)
        }
        StoreUrl::Memory => Err(CommandError::usage(anyhow!("memory: has no outbox; name {SCHEMES}"))),
        #[cfg(feature = "redis")]
        StoreUrl::Redis(_) => Err(CommandError::usage(anyhow!("Redis has no outbox; name {SCHEMES}"))),
    }
}
