//! The only place that knows the names of all backends. [`tables`] does it for the databases that have tables,
//! [`outbox`] for those that have an outbox, and [`dead`] for dead letters.

pub(crate) mod dead;
pub(crate) mod files;
pub(crate) mod outbox;
pub(crate) mod tables;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use hapax::Store;
use hapax::journal::StorePlace;
use hapax::runtime::Runtime;
use hapax::store::{Inspect, Memory, MemorySettings};
#[cfg(feature = "postgres")]
use hapax::stores::PostgresUrl;
#[cfg(feature = "redis")]
use hapax::stores::RedisUrl;
use hapax_systems::not_built_in;

use crate::serve::exit::{CommandError, request};

/// An open store, with the interface for its maintenance.
#[derive(Clone, Debug)]
pub(crate) struct OpenedStore {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) inspect: Arc<dyn Inspect>,
}

impl OpenedStore {
    fn new<S: Store + Inspect>(store: S) -> Self {
        let store = Arc::new(store);
        Self { store: Arc::clone(&store) as _, inspect: store }
    }
}

/// A parsed store URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    Memory,
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresUrl>),
    #[cfg(feature = "redis")]
    Redis(Box<RedisUrl>),
    #[cfg(feature = "sqlite")]
    Sqlite(PathBuf),
}

/// The URLs that `--store` accepts in this build, for help and errors.
pub(crate) fn schemes() -> String {
    let schemes = [
        #[cfg(feature = "sqlite")]
        "sqlite://PATH",
        #[cfg(feature = "redis")]
        "redis://HOST, rediss://HOST, unix:///PATH",
        #[cfg(feature = "postgres")]
        "postgres://HOST/DATABASE",
        "memory:",
    ];
    schemes.join(", ")
}

impl std::str::FromStr for StoreUrl {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self, anyhow::Error> {
        let (scheme, rest) = url.split_once(':').with_context(|| format!("the store must be a URL: {}", schemes()))?;
        not_built_in(scheme).map_or(Ok(()), Err)?;
        match scheme {
            "memory" if rest.trim_matches('/').is_empty() => Ok(Self::Memory),
            "memory" => bail!("memory: takes no path"),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => Ok(Self::Postgres(Box::new(url.parse()?))),
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "unix" => Ok(Self::Redis(Box::new(url.parse()?))),
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                let path =
                    rest.strip_prefix("//").context("write sqlite://PATH, sqlite:///absolute/path.db for instance")?;
                if path.contains('?') {
                    bail!("sqlite:// takes no parameters; remove the question mark and all behind it");
                }
                if path.is_empty() {
                    bail!("sqlite:// needs the path of a file, sqlite://hapax.db for instance");
                }
                Ok(Self::Sqlite(path.into()))
            }
            _ if scheme.chars().all(|letter| letter.is_ascii_alphanumeric()) => {
                bail!("there is no store for the scheme {scheme:?}; this build has {}", schemes())
            }
            // It may be a part of a password.
            _ => bail!("the URL does not begin with the scheme of a store; this build has {}", schemes()),
        }
    }
}

impl StoreUrl {
    /// The kind and place of the store, without credentials.
    pub(crate) fn place(&self) -> StorePlace {
        match self {
            Self::Memory => StorePlace::new("memory:"),
            #[cfg(feature = "postgres")]
            Self::Postgres(url) => url.place(),
            #[cfg(feature = "redis")]
            Self::Redis(url) => url.place(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(path) => StorePlace::of_file("sqlite", path),
        }
    }

    /// The default directory of the journal, next to the store's file. Each store has its own, because a completion in
    /// the journal must not be recorded in another store.
    pub(crate) fn data_dir(&self) -> Option<PathBuf> {
        match self {
            Self::Memory => None,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => None,
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(path) => {
                let mut directory = path.clone().into_os_string();
                directory.push(".spill");
                Some(directory.into())
            }
        }
    }

    /// Whether the store's content is lost when the process exits.
    pub(crate) fn ends_with_process(&self) -> bool {
        *self == Self::Memory
    }
}

/// Opens the store that a URL names.
pub(crate) fn open(url: &StoreUrl, runtime: Arc<dyn Runtime>) -> Result<OpenedStore, CommandError> {
    match url {
        StoreUrl::Memory => Ok(OpenedStore::new(Memory::with(runtime, MemorySettings::default()))),
        #[cfg(feature = "postgres")]
        #[expect(clippy::disallowed_types, reason = "the wiring chooses the store")]
        StoreUrl::Postgres(url) => {
            hapax::stores::Postgres::with(url, runtime).map(OpenedStore::new).map_err(CommandError::cannot_start)
        }
        #[cfg(feature = "redis")]
        #[expect(clippy::disallowed_types, reason = "the wiring chooses the store")]
        StoreUrl::Redis(url) => {
            hapax::stores::Redis::with(url, runtime).map(OpenedStore::new).map_err(CommandError::cannot_start)
        }
        #[cfg(feature = "sqlite")]
        #[expect(clippy::disallowed_types, reason = "the wiring chooses the store")]
        StoreUrl::Sqlite(path) => {
            // The gateway sweeps every store itself.
            let settings = hapax::stores::SqliteSettings::default().sweep_every(None);
            let opened = hapax::stores::Sqlite::with(path, runtime, settings);
            opened.map(OpenedStore::new).map_err(CommandError::cannot_start)
        }
    }
}

/// Opens the records of a store for a command. None if it has no table for them, which is not created.
pub(crate) async fn open_existing(
    url: &StoreUrl,
    runtime: Arc<dyn Runtime>,
) -> Result<Option<OpenedStore>, CommandError> {
    /// The version of the tables that has the records.
    const RECORDS: i32 = 1;
    #[cfg(feature = "sqlite")]
    if let StoreUrl::Sqlite(path) = url
        && !path.exists()
    {
        // Otherwise a misspelt path would create an empty file.
        let message = anyhow::anyhow!("{} does not exist; name the file that the gateway uses", path.display());
        return Err(CommandError::cannot_start(message));
    }
    if let Ok(tables) = tables::Tables::of(url)
        && request(tables.missing()).await?.contains(&RECORDS)
    {
        return Ok(None);
    }
    open(url, runtime).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_store() {
        assert_eq!("memory:".parse::<StoreUrl>().unwrap(), StoreUrl::Memory);
        assert_eq!("sqlite://hapax.db".parse::<StoreUrl>().unwrap(), StoreUrl::Sqlite("hapax.db".into()));
        assert_eq!(
            "sqlite:///var/lib/hapax.db".parse::<StoreUrl>().unwrap(),
            StoreUrl::Sqlite("/var/lib/hapax.db".into())
        );
    }

    #[test]
    fn a_redis_url_has_checked_parameters() {
        for url in [
            "redis://cache.example",
            "rediss://user:secret@cache.example:6380/2?connections=4",
            "unix:///run/redis.sock?db=1",
        ] {
            assert!(matches!(url.parse::<StoreUrl>(), Ok(StoreUrl::Redis(_))), "{url}");
        }
        for (url, named) in [
            ("redis://", "redis://HOST"),
            ("redis://:secret@cache.example/zwei", "redis://HOST"),
            ("redis://cache.example?timeout=1s", "no parameter `timeout`"),
            ("redis://cache.example?ca=ca.pem", "rediss://"),
            ("rediss://cache.example?cert=client.pem", "cert and key only together"),
            ("redis://cache.example?connections=0", "from 1 to 64"),
        ] {
            let error = format!("{:#}", url.parse::<StoreUrl>().unwrap_err());
            assert!(error.contains(named), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_postgres_url_has_checked_parameters() {
        for url in ["postgres://db.example/shop", "postgresql://user:secret@db.example:6000/shop?schema=hapax"] {
            assert!(matches!(url.parse::<StoreUrl>(), Ok(StoreUrl::Postgres(_))), "{url}");
        }
        for (url, named) in [
            ("postgres://", "postgres://HOST/DATABASE"),
            ("postgres://:secret@db.example?timeout=1s", "no parameter `timeout`"),
            ("postgres://:secret@db.example?sslmode=prefer", "not `prefer`"),
        ] {
            let error = format!("{:#}", url.parse::<StoreUrl>().unwrap_err());
            assert!(error.contains(named), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn an_unknown_url_is_refused_with_the_known_schemes() {
        for url in ["hapax.db", "mysql://localhost", "sqlite:hapax.db", "sqlite://", "memory:x"] {
            let error = url.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.contains("sqlite://") || error.contains("memory:"), "{url}: {error}");
        }
    }
}
