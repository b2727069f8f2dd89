//! Where a worker writes its dead letters, and whether they come back.

use std::sync::Arc;

use hapax::broker::{DeadLetterStore, DeadLetters, SinkDeadLetters, Source};
use hapax::outbox::Sink;
use hapax::runtime::Runtime;
use hapax::worker::{RecordReopener, RedriveSource};

use crate::serve::exit::{CommandError, request};
use crate::store::checks::{CheckFailure, usable};
use crate::store::wiring;
use crate::store::wiring::dead::DeadLetterPlace;

/// The dead letters of a running worker.
#[derive(Debug)]
pub(crate) enum WorkerDeadLetters {
    /// Operators read them, and mark them for a redrive.
    Kept(Arc<dyn DeadLetterStore>),
    /// The consumers of a broker read them.
    Published(Arc<dyn Sink>),
}

impl WorkerDeadLetters {
    /// Opens the place. May block, and creates a file that is missing.
    pub(crate) async fn open(place: &DeadLetterPlace, runtime: Arc<dyn Runtime>) -> Result<Self, CommandError> {
        match place {
            DeadLetterPlace::Kept(url) => wiring::dead::create(url, runtime).map(Self::Kept),
            DeadLetterPlace::Published(sink) => request(sink.open(runtime)).await.map(Self::Published),
        }
    }

    /// Checks what the worker cannot find out before its first dead letter.
    ///
    /// # Errors
    /// If a broker must not be used. One that cannot be reached is no error: the messages wait.
    pub(crate) async fn check_start(&self) -> Result<(), CommandError> {
        let Self::Published(sink) = self else { return Ok(()) };
        match usable(sink.check()).await {
            Ok(findings) => findings.iter().for_each(|finding| tracing::warn!("dead letters: {}", finding.message)),
            Err(CheckFailure::Refused(error)) => return Err(CommandError::cannot_start(error.context("dead letters"))),
            Err(CheckFailure::Unreachable(error)) => tracing::warn!(
                "dead letters cannot be published yet; a message that nobody can process waits: {error:#}"
            ),
        }
        let sink = &**sink.name();
        tracing::info!(sink, "dead letters are published; `hapax dead` does not know them, and nothing redrives them");
        Ok(())
    }

    /// The source with the letters that are marked for a redrive.
    pub(crate) fn redriven(
        &self,
        source: Box<dyn Source>,
        runtime: Arc<dyn Runtime>,
        records: RecordReopener,
    ) -> Box<dyn Source> {
        match self {
            Self::Kept(letters) => {
                Box::new(RedriveSource::reopening(source, Arc::clone(letters), runtime, Arc::new(records)))
            }
            Self::Published(_) => source,
        }
    }

    /// Where the worker writes.
    pub(crate) fn letters(&self, runtime: Arc<dyn Runtime>) -> Arc<dyn DeadLetters> {
        match self {
            Self::Kept(letters) => Arc::clone(letters) as _,
            Self::Published(sink) => Arc::new(SinkDeadLetters::new(Arc::clone(sink), runtime)),
        }
    }

    /// The letters that tell their ordering keys, for a worker that parks them.
    pub(crate) fn kept(&self) -> Option<Arc<dyn DeadLetterStore>> {
        match self {
            Self::Kept(letters) => Some(Arc::clone(letters)),
            Self::Published(_) => None,
        }
    }

    /// Closes the connection to a broker, after the last letter.
    pub(crate) async fn close(&self) {
        if let Self::Published(sink) = self {
            sink.close().await;
        }
    }
}
