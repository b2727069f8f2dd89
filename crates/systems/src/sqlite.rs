//! Files of SQLite.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use hapax::broker::Source;
use hapax::outbox::{Sink, TopicTemplate};
use hapax::runtime::Runtime;
use hapax::stores::{
    SqliteFile, SqliteQueue, SqliteSink, SqliteSinkConfig, SqliteSource, SqliteSourceSettings, SqliteTables,
};

use crate::sink::NamedSink;
use crate::source::NamedSource;
use crate::table::{Offer, Offers};
use crate::watch::WatchedFile;

pub(crate) const OFFERS: Offers = Offers {
    source: Some(Offer { form: "sqlite://PATH?queue=NAME", read: |url| Ok(Arc::new(source_queue(url)?)) }),
    sink: Some(Offer { form: "sqlite://PATH[?queue=NAME]", read: |url| Ok(Arc::new(sink_queue(url)?)) }),
};

/// The version of the tables that has the queues.
const QUEUES: i32 = 3;

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
