//! Files of SQLite.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use hapax::broker::{DeadLetterStore, Source};
use hapax::journal::StorePlace;
use hapax::ledger::LedgerRows;
use hapax::outbox::{Sink, TopicTemplate};
use hapax::runtime::Runtime;
use hapax::store::Finding;
use hapax::stores::{
    Sqlite, SqliteDeadLetters, SqliteFile, SqliteOutbox, SqliteQueue, SqliteSettings, SqliteSink, SqliteSinkConfig,
    SqliteSource, SqliteSourceSettings, SqliteTables,
};

use crate::database::Tables;
use crate::sink::NamedSink;
use crate::source::NamedSource;
use crate::store::{NamedStore, OpenedOutbox, OpenedStore};
use crate::table::{Offer, Offers};
use crate::watch::WatchedFile;

pub(crate) const OFFERS: Offers = Offers {
    source: Some(Offer { form: "sqlite://PATH?queue=NAME", read: |url| Ok(Arc::new(source_queue(url)?)) }),
    sink: Some(Offer { form: "sqlite://PATH[?queue=NAME]", read: |url| Ok(Arc::new(sink_queue(url)?)) }),
    store: Some(Offer { form: FILE, read: |url| Ok(Arc::new(file(url)?)) }),
    database: Some(FILE),
    dead_letters: Some(FILE),
    ..Offers::NONE
};

const FILE: &str = "sqlite://PATH";

/// The versions of the tables of the ledger, whose outbox this is, and of the relay.
const OUTBOX: [i32; 2] = [2, 5];

/// The version of the tables that has the queues.
const QUEUES: i32 = 3;

/// The version of the tables that has the dead letters.
const DEAD_LETTERS: i32 = 4;

/// A file with tables.
#[derive(Debug)]
struct DatabaseFile(PathBuf);

/// Reads `sqlite://PATH`.
fn file(url: &str) -> Result<DatabaseFile> {
    let path = url.strip_prefix("sqlite://").context("write sqlite://PATH, sqlite:///absolute/path.db for instance")?;
    if path.contains('?') {
        bail!("sqlite:// takes no parameters; remove the question mark and all behind it");
    }
    if path.is_empty() {
        bail!("sqlite:// needs the path of a file, sqlite://hapax.db for instance");
    }
    Ok(DatabaseFile(path.into()))
}

impl NamedStore for DatabaseFile {
    fn place(&self) -> StorePlace {
        StorePlace::of_file("sqlite", &self.0)
    }

    fn open(&self, runtime: Arc<dyn Runtime>) -> hapax::Result<OpenedStore> {
        // The gateway sweeps every store itself.
        let settings = SqliteSettings::default().sweep_every(None);
        Sqlite::with(&self.0, runtime, settings).map(OpenedStore::new)
    }

    fn file(&self) -> Option<&Path> {
        Some(&self.0)
    }

    fn copy_to(&self, copy: &Path) -> Option<hapax::Result<()>> {
        Some(SqliteTables::new(&self.0).copy_to(copy))
    }

    fn tables(&self) -> Option<hapax::Result<Box<dyn Tables>>> {
        Some(Ok(Box::new(SqliteTables::new(&self.0))))
    }

    fn outbox(&self, runtime: Arc<dyn Runtime>, _has_notifications: bool) -> Option<hapax::Result<OpenedOutbox>> {
        Some(SqliteOutbox::with(&self.0, runtime).map(OpenedOutbox::new))
    }

    fn dead_letters(&self, runtime: Arc<dyn Runtime>) -> Option<hapax::Result<Arc<dyn DeadLetterStore>>> {
        Some(SqliteDeadLetters::with(&self.0, runtime).map(|letters| Arc::new(letters) as _))
    }

    fn can_park(&self) -> bool {
        true
    }

    fn watch(&self) -> hapax::Result<Option<Box<dyn WatchedFile>>> {
        Ok(Some(Box::new(SqliteFile::at(&self.0)?)))
    }
}

#[async_trait]
impl Tables for SqliteTables {
    async fn missing(&self) -> hapax::Result<Vec<i32>> {
        self.missing()
    }

    async fn check(&self) -> hapax::Result<Vec<Finding>> {
        // A table of SQLite draws no id that a row has.
        Ok(Vec::new())
    }

    async fn lack_outbox(&self) -> hapax::Result<bool> {
        // Each version of a file has tables of its own, and a service that needs no records has no table for them.
        Ok(self.missing()?.iter().any(|version| OUTBOX.contains(version)))
    }

    async fn lack_dead_letters(&self) -> hapax::Result<bool> {
        Ok(self.missing()?.contains(&DEAD_LETTERS))
    }

    async fn create(&self) -> hapax::Result<Vec<i32>> {
        self.create()
    }

    async fn script(&self) -> hapax::Result<String> {
        self.script()
    }

    fn into_ledger(self: Box<Self>) -> Arc<dyn LedgerRows> {
        Arc::new(*self)
    }
}

/// A queue in a file.
#[derive(Debug)]
struct QueueInFile {
    path: PathBuf,
    queue: String,
}

/// Reads `sqlite://PATH?queue=NAME`.
fn source_queue(url: &str) -> Result<QueueInFile> {
    const WRITE: &str = "write sqlite://PATH?queue=NAME, sqlite://shop.db?queue=orders for instance";
    let (path, queue) = url.strip_prefix("sqlite://").and_then(|rest| rest.split_once("?queue=")).context(WRITE)?;
    if path.is_empty() || queue.is_empty() || queue.contains('&') {
        bail!(WRITE);
    }
    Ok(QueueInFile { path: path.into(), queue: queue.to_owned() })
}

#[async_trait]
impl NamedSource for QueueInFile {
    fn group(&self) -> &str {
        &self.queue
    }

    fn ordered_by_header(&self, _name: &str) -> Result<Arc<dyn NamedSource>> {
        bail!("the queue has a column for ordering keys; remove the setting")
    }

    async fn open(&self, runtime: Arc<dyn Runtime>, lease: Duration) -> hapax::Result<Box<dyn Source>> {
        let (queue, settings) = (SqliteQueue::new(&self.queue)?, SqliteSourceSettings::default().lease(lease));
        Ok(Box::new(SqliteSource::open(&self.path, &queue, runtime, settings)?))
    }

    fn watch(&self) -> hapax::Result<Option<Box<dyn WatchedFile>>> {
        Ok(Some(Box::new(SqliteFile::at(&self.path)?)))
    }
}

/// Reads `sqlite://PATH?queue=NAME`, or the path only.
fn sink_queue(url: &str) -> Result<SqliteSinkConfig> {
    const WRITE: &str = "write sqlite://PATH?queue=NAME, sqlite://orders.db?queue=orders for instance";
    let place = url.strip_prefix("sqlite://").context(WRITE)?;
    let (path, queue) = place.split_once('?').map_or((place, None), |(path, query)| (path, Some(query)));
    if path.is_empty() {
        bail!(WRITE);
    }
    let config = SqliteSinkConfig::new(path);
    let Some(query) = queue else { return Ok(config) };
    let name = query.strip_prefix("queue=").filter(|name| !name.contains('&')).context(WRITE)?;
    Ok(config.topic(name.parse()?))
}

#[async_trait]
impl NamedSink for SqliteSinkConfig {
    fn name(&self) -> String {
        self.name()
    }

    async fn open(&self, template: Option<TopicTemplate>, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn Sink>> {
        let config = template.into_iter().fold(self.clone(), Self::topic);
        Ok(Arc::new(SqliteSink::open(config, runtime)?))
    }

    fn refuse_missing_tables(&self) -> Result<()> {
        let path = self.path();
        if !path.exists() {
            bail!("{} does not exist; name the file of the worker, or run `hapax migrate`", path.display());
        }
        if SqliteTables::new(path).missing()?.contains(&QUEUES) {
            bail!("{} has no queues yet; run `hapax migrate --database sqlite://{0}`", path.display());
        }
        Ok(())
    }
}

impl WatchedFile for SqliteFile {
    fn check(&self) -> hapax::Result<()> {
        self.check()
    }
}
