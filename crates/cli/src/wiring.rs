//! The only place that knows the names of all backends.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use hapax::Store;
use hapax::runtime::Runtime;
use hapax::store::{Inspect, Memory, MemorySettings};

use crate::commands::Failure;

/// A store, and its upkeep.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) inspect: Arc<dyn Inspect>,
}

impl Opened {
    fn new<S: Store + Inspect>(store: S) -> Self {
        let store = Arc::new(store);
        Self { store: Arc::clone(&store) as _, inspect: store }
    }
}

/// Where records are kept, by its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    Memory,
    Sqlite(PathBuf),
}

/// What `--store` takes, for help and errors.
pub(crate) const SCHEMES: &str = if cfg!(feature = "sqlite") { "sqlite://PATH, memory:" } else { "memory:" };

impl std::str::FromStr for StoreUrl {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self, anyhow::Error> {
        let (scheme, rest) = url.split_once(':').with_context(|| format!("a store is named by a URL: {SCHEMES}"))?;
        match scheme {
            "memory" if rest.trim_matches('/').is_empty() => Ok(Self::Memory),
            "memory" => bail!("memory: takes no path"),
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
pub(crate) fn open(url: &StoreUrl, runtime: Arc<dyn Runtime>) -> Result<Opened, Failure> {
    match url {
        StoreUrl::Memory => Ok(Opened::new(Memory::new(runtime, MemorySettings::default()))),
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(path) => {
            hapax::stores::Sqlite::open(path, runtime).map(Opened::new).map_err(Failure::cannot_start)
        }
        #[cfg(not(feature = "sqlite"))]
        StoreUrl::Sqlite(_) => {
            Err(Failure::usage(anyhow::anyhow!("this build has no SQLite; build it with the feature `sqlite`")))
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
    fn a_url_that_names_none_says_what_there_is() {
        for url in ["hapax.db", "redis://localhost", "sqlite:hapax.db", "sqlite://", "memory:x"] {
            let error = url.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.contains("sqlite://") || error.contains("memory:"), "{url}: {error}");
        }
    }
}
