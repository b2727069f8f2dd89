use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use hapax::broker::{DeadLetterStore, Source};
use hapax::outbox::{OutboxUpkeep, Sink};

/// Opens what the URLs of a run name. The program that runs the demo knows all systems.
#[async_trait]
pub trait Systems: fmt::Debug + Send + Sync {
    /// Checks the URL of the store of the gateways.
    ///
    /// # Errors
    /// If it names no store, or one that two processes cannot share.
    fn check_store(&self, url: &str) -> Result<()>;

    /// Opens a source of messages. `lease` is how long a message belongs to a worker, where the worker may choose.
    ///
    /// # Errors
    /// If the URL names no source, or the source cannot be opened.
    async fn source(&self, url: &str, lease: Duration) -> Result<Box<dyn Source>>;

    /// Opens a sink of events.
    ///
    /// # Errors
    /// If the URL names no sink, or the sink cannot be opened.
    async fn sink(&self, url: &str) -> Result<Arc<dyn Sink>>;

    /// Opens the outbox in a database, as an operator does.
    ///
    /// # Errors
    /// If the URL names no database, or the database cannot be opened.
    fn outbox(&self, database: &str) -> Result<Arc<dyn OutboxUpkeep>>;

    /// Opens the dead letters in a database.
    ///
    /// # Errors
    /// If the URL names no database, or the database cannot be opened.
    fn dead_letters(&self, database: &str) -> Result<Arc<dyn DeadLetterStore>>;
}
