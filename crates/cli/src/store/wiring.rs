//! The only place that knows the names of all backends.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use hapax::Store;
use hapax::runtime::Runtime;
use hapax::store::{Inspect, Memory, MemorySettings};
#[cfg(feature = "redis")]
use hapax::stores::RedisUrl;

use crate::commands::Failure;

/// A store, and its upkeep.
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

/// Where records are kept, by its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    Memory,
    #[cfg(feature = "redis")]
    Redis(Box<RedisUrl>),
    #[cfg(feature = "sqlite")]
    Sqlite(PathBuf),
}

/// What `--store` takes, for help and errors.
pub(crate) const SCHEMES: &str = match (cfg!(feature = "sqlite"), cfg!(feature = "redis")) {
    (true, true) => "sqlite://PATH, redis://HOST, rediss://HOST, unix:///PATH, memory:",
    (true, false) => "sqlite://PATH, memory:",
    (false, true) => "redis://HOST, rediss://HOST, unix:///PATH, memory:",
    (false, false) => "memory:",
};

impl std::str::FromStr for StoreUrl {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self, anyhow::Error> {
        let (scheme, rest) = url.split_once(':').with_context(|| format!("a store is named by a URL: {SCHEMES}"))?;
        match scheme {
            "memory" if rest.trim_matches('/').is_empty() => Ok(Self::Memory),
            "memory" => bail!("memory: takes no path"),
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "unix" => Ok(Self::Redis(Box::new(url.parse()?))),
            #[cfg(not(feature = "redis"))]
            "redis" | "rediss" | "unix" => bail!("this build has no Redis; build it with the feature `redis`"),
            #[cfg(not(feature = "sqlite"))]
            "sqlite" => bail!("this build has no SQLite; build it with the feature `sqlite`"),
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                let path =
                    rest.strip_prefix("//").context("write sqlite://PATH, sqlite:///absolute/path.db for instance")?;
                if path.is_empty() {
                    bail!("sqlite:// needs the path of a file, sqlite://hapax.db for instance");
                }
                Ok(Self::Sqlite(path.into()))
            }
            _ => bail!("no store is called {scheme:?}; this build has {SCHEMES}"),
        }
    }
}

impl StoreUrl {
    /// Where a gateway on this store keeps what the store does not take, if there is a natural place beside it. Each store has its
    /// own: what is left there must not be recorded in another.
    pub(crate) fn data_dir(&self) -> Option<PathBuf> {
        match self {
            Self::Memory => None,
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
}

impl StoreUrl {
    /// Whether nothing of it is there for the next process, nor is what one may have left for it.
    pub(crate) fn ends_with_process(&self) -> bool {
        *self == Self::Memory
    }
}

/// Opens the store.
pub(crate) fn open(url: &StoreUrl, runtime: Arc<dyn Runtime>) -> Result<OpenedStore, Failure> {
    match url {
        StoreUrl::Memory => Ok(OpenedStore::new(Memory::with(runtime, MemorySettings::default()))),
        #[cfg(feature = "redis")]
        #[expect(clippy::disallowed_types, reason = "the wiring chooses the store")]
        StoreUrl::Redis(url) => {
            hapax::stores::Redis::open(url, runtime).map(OpenedStore::new).map_err(Failure::cannot_start)
        }
        #[cfg(feature = "sqlite")]
        #[expect(clippy::disallowed_types, reason = "the wiring chooses the store")]
        StoreUrl::Sqlite(path) => {
            hapax::stores::Sqlite::open(path, runtime).map(OpenedStore::new).map_err(Failure::cannot_start)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_stores() {
        assert_eq!("memory:".parse::<StoreUrl>().unwrap(), StoreUrl::Memory);
        assert_eq!("sqlite://hapax.db".parse::<StoreUrl>().unwrap(), StoreUrl::Sqlite("hapax.db".into()));
        assert_eq!(
            "sqlite:///var/lib/hapax.db".parse::<StoreUrl>().unwrap(),
            StoreUrl::Sqlite("/var/lib/hapax.db".into())
        );
    }

    #[test]
    fn urls_name_servers_with_their_parameters() {
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
            ("rediss://cache.example?cert=client.pem", "cert and key together"),
            ("redis://cache.example?connections=0", "from 1 to 64"),
        ] {
            let error = format!("{:#}", url.parse::<StoreUrl>().unwrap_err());
            assert!(error.contains(named), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_url_that_names_none_says_what_there_is() {
        for url in ["hapax.db", "postgres://localhost", "sqlite:hapax.db", "sqlite://", "memory:x"] {
            let error = url.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.contains("sqlite://") || error.contains("memory:"), "{url}: {error}");
        }
    }
}
