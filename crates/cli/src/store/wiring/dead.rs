use std::sync::Arc;

use anyhow::anyhow;
use hapax::broker::DeadLetterStore;
use hapax::runtime::Runtime;

use super::StoreUrl;
use crate::commands::CommandError;

/// The URLs that `hapax dead` accepts, for help and errors.
pub(crate) const SCHEMES: &str = "sqlite://PATH, postgres://HOST/DATABASE or redis://HOST";

/// Whether the dead letters at a URL tell which ordering keys they belong to.
pub(crate) fn can_park(url: &StoreUrl) -> bool {
    match url {
        StoreUrl::Memory => false,
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(_) => true,
        #[cfg(feature = "redis")]
        StoreUrl::Redis(_) => false,
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(_) => true,
    }
}

/// Opens the dead letters in the store or the database that a URL names, for commands that read them.
pub(crate) fn open(url: &StoreUrl, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn DeadLetterStore>, CommandError> {
    #[cfg(feature = "sqlite")]
    if let StoreUrl::Sqlite(path) = url
        && !path.exists()
    {
        // Otherwise a misspelt path would create an empty file.
        let message = anyhow!("{} does not exist; name the file that the worker uses", path.display());
        return Err(CommandError::cannot_start(message));
    }
    create(url, runtime)
}

/// Opens the dead letters, and creates a file that is missing.
#[cfg_attr(
    not(any(feature = "postgres", feature = "redis", feature = "sqlite")),
    expect(unused_variables, reason = "this build has no database")
)]
pub(crate) fn create(url: &StoreUrl, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn DeadLetterStore>, CommandError> {
    match url {
        StoreUrl::Memory => Err(CommandError::usage(anyhow!(
            "memory: keeps no dead letters that another process can read; name {SCHEMES}"
        ))),
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => {
            let opened = hapax::stores::PostgresDeadLetters::with(url, runtime);
            Ok(Arc::new(opened.map_err(CommandError::cannot_start)?))
        }
        #[cfg(feature = "redis")]
        StoreUrl::Redis(url) => {
            let opened = hapax::stores::RedisDeadLetters::with(url, runtime);
            Ok(Arc::new(opened.map_err(CommandError::cannot_start)?))
        }
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(path) => {
            let opened = hapax::stores::SqliteDeadLetters::with(path, runtime);
            Ok(Arc::new(opened.map_err(CommandError::cannot_start)?))
        }
    }
}
