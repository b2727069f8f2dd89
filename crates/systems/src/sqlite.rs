//! Files of SQLite.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use hapax::broker::Source;
use hapax::runtime::Runtime;
use hapax::stores::{SqliteFile, SqliteQueue, SqliteSource, SqliteSourceSettings};

use crate::source::NamedSource;
use crate::table::{Offer, Offers};
use crate::watch::WatchedFile;

pub(crate) const OFFERS: Offers =
    Offers { source: Some(Offer { form: "sqlite://PATH?queue=NAME", read: |url| Ok(Arc::new(queue(url)?)) }) };

/// A queue in a file.
#[derive(Debug)]
struct QueueInFile {
    path: PathBuf,
    queue: String,
}

/// Reads `sqlite://PATH?queue=NAME`.
fn queue(url: &str) -> Result<QueueInFile> {
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

impl WatchedFile for SqliteFile {
    fn check(&self) -> hapax::Result<()> {
        self.check()
    }
}
