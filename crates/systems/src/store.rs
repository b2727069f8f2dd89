use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use hapax::Store;
use hapax::broker::DeadLetterStore;
use hapax::journal::StorePlace;
use hapax::outbox::{Outbox, OutboxUpkeep};
use hapax::runtime::Runtime;
use hapax::store::Inspect;

use crate::database::Tables;
use crate::store_table::StoreTable;
use crate::table::{UrlRole, one_of};
use crate::watch::WatchedFile;

/// A store or a database that a URL names. It is not open. A method returns None for what the system does not have.
pub(crate) trait NamedStore: fmt::Debug + Send + Sync {
    /// As [`StoreUrl::place`].
    fn place(&self) -> StorePlace;

    /// As [`StoreUrl::open`].
    fn open(&self, runtime: Arc<dyn Runtime>) -> hapax::Result<OpenedStore>;

    /// The same store for commands, as [`StoreUrl::unchanged`] says. None if opening it changes nothing.
    fn unchanged(&self) -> Option<Arc<dyn NamedStore>> {
        None
    }

    /// As [`StoreUrl::file`].
    fn file(&self) -> Option<&Path> {
        None
    }

    /// As [`StoreUrl::copy_to`].
    fn copy_to(&self, _copy: &Path) -> Option<hapax::Result<()>> {
        None
    }

    /// As [`StoreUrl::ends_with_process`].
    fn ends_with_process(&self) -> bool {
        false
    }

    /// As [`StoreUrl::tables`].
    fn tables(&self) -> Option<hapax::Result<Box<dyn Tables>>> {
        None
    }

    /// As [`StoreUrl::table`].
    fn table(&self, _runtime: Arc<dyn Runtime>) -> Option<hapax::Result<Box<dyn StoreTable>>> {
        None
    }

    /// As [`StoreUrl::outbox`].
    fn outbox(&self, _runtime: Arc<dyn Runtime>, _has_notifications: bool) -> Option<hapax::Result<OpenedOutbox>> {
        None
    }

    /// As [`StoreUrl::dead_letters`].
    fn dead_letters(&self, _runtime: Arc<dyn Runtime>) -> Option<hapax::Result<Arc<dyn DeadLetterStore>>> {
        None
    }

    /// Whether its dead letters tell which ordering keys they belong to.
    fn can_park(&self) -> bool {
        false
    }

    /// As [`StoreUrl::watch`].
    fn watch(&self) -> hapax::Result<Option<Box<dyn WatchedFile>>> {
        Ok(None)
    }
}

/// A parsed URL of a store or a database.
#[derive(Clone, Debug)]
pub struct StoreUrl(Arc<dyn NamedStore>);

const ROLE: UrlRole<dyn NamedStore> = UrlRole { name: "store", offer: |offers| offers.store.as_ref() };

impl StoreUrl {
    /// The URLs of stores in this build, for help and errors.
    pub fn forms() -> String {
        ROLE.forms()
    }

    /// The URLs of databases with tables in this build, for help and errors.
    pub fn database_forms() -> String {
        one_of(|offers| offers.database)
    }

    /// The URLs of stores in this build that need a table in a system without SQL, for help and errors.
    pub fn table_forms() -> String {
        one_of(|offers| offers.store_table)
    }

    /// The URLs of stores in this build that keep dead letters, for help and errors.
    pub fn dead_letter_forms() -> String {
        one_of(|offers| offers.dead_letters)
    }

    /// The same store for commands that look at it while older processes use it: what is opened at this URL creates no
    /// table in a database on a server, and brings none to a newer version.
    #[must_use]
    pub fn unchanged(&self) -> Self {
        Self(self.0.unchanged().unwrap_or_else(|| Arc::clone(&self.0)))
    }

    /// The kind and place of the store, without credentials.
    pub fn place(&self) -> StorePlace {
        self.0.place()
    }

    /// The path of the file, if the store is one. The file may not exist.
    pub fn file(&self) -> Option<&Path> {
        self.0.file()
    }

    /// The default directory of the journal, next to the store's file. Each store has its own, because a completion in
    /// the journal must not be recorded in another store.
    pub fn data_dir(&self) -> Option<PathBuf> {
        let mut directory = self.file()?.to_owned().into_os_string();
        directory.push(".spill");
        Some(directory.into())
    }

    /// Whether the store's content is lost when the process exits.
    pub fn ends_with_process(&self) -> bool {
        self.0.ends_with_process()
    }

    /// Whether its dead letters tell which ordering keys they belong to.
    pub fn can_park(&self) -> bool {
        self.0.can_park()
    }

    /// The file of the open store, if it is one.
    ///
    /// # Errors
    /// If the file cannot be found.
    pub fn watch(&self) -> hapax::Result<Option<Box<dyn WatchedFile>>> {
        self.0.watch()
    }

    /// Opens the store, and creates a file that is missing.
    ///
    /// # Errors
    /// As the store says.
    pub fn open(&self, runtime: Arc<dyn Runtime>) -> hapax::Result<OpenedStore> {
        self.0.open(runtime)
    }

    /// Copies the file of the store to a new one, also while other processes write. May block for long.
    ///
    /// # Errors
    /// If the store is no file, or as it says.
    pub fn copy_to(&self, copy: &Path) -> Result<(), OpenError> {
        let lacking = || format!("{} is no file: use the tools of its server to back it up", self.place());
        self.0.copy_to(copy).ok_or_else(|| OpenError::Lacking(lacking()))?.map_err(OpenError::Failed)
    }

    /// The tables of Hapax in the database. Opens nothing.
    ///
    /// # Errors
    /// If the URL names something without tables, or a file that cannot be read.
    pub fn tables(&self) -> Result<Box<dyn Tables>> {
        let lacking = || anyhow!("{} has no tables; name {}", self.place(), Self::database_forms());
        Ok(self.0.tables().with_context(lacking)??)
    }

    /// The table that the store needs in a system without SQL. Connects to nothing yet.
    ///
    /// # Errors
    /// If the store needs none.
    pub fn table(&self, runtime: Arc<dyn Runtime>) -> Result<Box<dyn StoreTable>> {
        let lacking = || match self.0.tables() {
            Some(_) => anyhow!("the tables of {} are those of a database; name it with --database", self.place()),
            None => anyhow!("{} needs no table", self.place()),
        };
        Ok(self.0.table(runtime).with_context(lacking)??)
    }

    /// Opens the outbox in the database. Its first use creates tables that are missing, if the role may.
    /// `has_notifications` says whether the database tells of new rows, if it can.
    ///
    /// # Errors
    /// If the system has no outbox, or as the database says.
    pub fn outbox(&self, runtime: Arc<dyn Runtime>, has_notifications: bool) -> Result<OpenedOutbox, OpenError> {
        let lacking = || format!("{} has no outbox; name {}", self.place(), Self::database_forms());
        let opened = self.0.outbox(runtime, has_notifications).ok_or_else(|| OpenError::Lacking(lacking()))?;
        opened.map_err(OpenError::Failed)
    }

    /// Opens the dead letters in the store, and creates a file that is missing.
    ///
    /// # Errors
    /// If the system keeps no dead letters, or as the store says.
    pub fn dead_letters(&self, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn DeadLetterStore>, OpenError> {
        let lacking = || {
            let (place, forms) = (self.place(), Self::dead_letter_forms());
            format!("{place} keeps no dead letters that another process can read; name {forms}")
        };
        let opened = self.0.dead_letters(runtime).ok_or_else(|| OpenError::Lacking(lacking()))?;
        opened.map_err(OpenError::Failed)
    }
}

impl FromStr for StoreUrl {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self> {
        ROLE.read(url).map(Self)
    }
}

/// Why something at a URL cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The system does not have it: another URL is needed.
    Lacking(String),
    /// The system has it, and it cannot be opened.
    Failed(hapax::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lacking(what) => f.write_str(what),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Lacking(_) => None,
            Self::Failed(error) => error.source(),
        }
    }
}

/// An open store, with the interface for its maintenance.
#[derive(Clone, Debug)]
pub struct OpenedStore {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The same store, for its maintenance.
    pub inspect: Arc<dyn Inspect>,
}

impl OpenedStore {
    pub(crate) fn new<S: Store + Inspect>(store: S) -> Self {
        let store = Arc::new(store);
        Self { store: Arc::clone(&store) as _, inspect: store }
    }
}

/// The outbox in a database, for relays and for operators.
#[derive(Clone, Debug)]
pub struct OpenedOutbox {
    /// The outbox, for relays.
    pub outbox: Arc<dyn Outbox>,
    /// The same outbox, for operators.
    pub upkeep: Arc<dyn OutboxUpkeep>,
}

impl OpenedOutbox {
    #[cfg_attr(
        not(any(feature = "postgres", feature = "spanner", feature = "sqlite")),
        expect(dead_code, reason = "this build has no database")
    )]
    pub(crate) fn new<O: Outbox + OutboxUpkeep>(outbox: O) -> Self {
        let outbox = Arc::new(outbox);
        Self { outbox: Arc::clone(&outbox) as _, upkeep: outbox }
    }
}

#[cfg(all(test, feature = "postgres", feature = "redis", feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_store() {
        for (url, file) in [
            ("memory:", None),
            ("sqlite://hapax.db", Some("hapax.db")),
            ("sqlite:///var/lib/hapax.db", Some("/var/lib/hapax.db")),
        ] {
            let store: StoreUrl = url.parse().unwrap();
            assert_eq!((store.file(), store.ends_with_process()), (file.map(Path::new), file.is_none()), "{url}");
        }
    }

    #[test]
    fn a_redis_url_has_checked_parameters() {
        for url in [
            "redis://cache.example",
            "rediss://user:secret@cache.example:6380/2?connections=4",
            "unix:///run/redis.sock?db=1",
            "redis+cluster://user:secret@a.example,b.example:7001?connections=2",
            "rediss+cluster://a.example",
            "redis+sentinel://user:secret@a.example,b.example:26380/main/2?sentinel-user=me&sentinel-password-file=p",
        ] {
            url.parse::<StoreUrl>().unwrap();
        }
        for (url, named) in [
            ("redis://", "redis://HOST"),
            ("redis://:secret@cache.example/zwei", "redis://HOST"),
            ("redis://cache.example?timeout=1s", "no parameter `timeout`"),
            ("redis://cache.example?ca=ca.pem", "write rediss"),
            ("redis+cluster://a.example/2", "no databases"),
            ("redis+sentinel://:secret@a.example", "/MASTER"),
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
            url.parse::<StoreUrl>().unwrap();
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

    #[test]
    fn what_a_system_does_not_have_is_refused_with_those_that_have_it() {
        let memory: StoreUrl = "memory:".parse().unwrap();
        let error = memory.tables().unwrap_err().to_string();
        assert!(error.starts_with("memory: has no tables; name sqlite://PATH"), "{error}");
        assert!(error.contains("postgres://HOST/DATABASE[?schema=NAME]"), "{error}");
    }
}
