//! Where a worker writes its dead letters, and whether they come back.

use std::sync::Arc;

use async_trait::async_trait;
use hapax::broker::{DeadLetterStore, DeadLetters, SinkDeadLetters, Source};
use hapax::outbox::Sink;
use hapax::runtime::Runtime;
use hapax::store::{Finding, Severity};
use hapax::worker::{RecordReopener, RedriveSource};
use hapax_systems::DeadLetterPlace;

use crate::serve::exit::{CommandError, request};
use crate::store::checks::{CheckFailure, usable};
use crate::store::health::ReportFindings;

/// The dead letters of a running worker.
#[derive(Clone, Debug)]
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
            DeadLetterPlace::Kept(url) => Ok(Self::Kept(url.dead_letters(runtime)?)),
            DeadLetterPlace::Published(sink) => request(sink.open(runtime)).await.map(Self::Published),
        }
    }

    /// Checks what the worker cannot find out before its first dead letter.
    ///
    /// # Errors
    /// If the place must not be used. One that cannot be reached is no error: the messages wait.
    pub(crate) async fn check_start(&self) -> Result<(), CommandError> {
        match self.check().await {
            Ok(findings) => findings.iter().for_each(|finding| tracing::warn!("dead letters: {}", finding.message)),
            Err(CheckFailure::Refused(error)) => return Err(CommandError::cannot_start(error.context("dead letters"))),
            Err(CheckFailure::Unreachable(error)) => {
                tracing::warn!(
                    "dead letters cannot be written yet; a message that nobody can process waits: {error:#}"
                );
            }
        }
        let Self::Published(sink) = self else { return Ok(()) };
        let sink = &**sink.name();
        tracing::info!(sink, "dead letters are published; `hapax dead` does not know them, and nothing redrives them");
        Ok(())
    }

    async fn check(&self) -> Result<Vec<Finding>, CheckFailure> {
        match self {
            Self::Kept(letters) => usable(letters.check()).await,
            Self::Published(sink) => usable(sink.check()).await,
        }
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

#[async_trait]
impl ReportFindings for WorkerDeadLetters {
    /// None if the place cannot be reached: each letter tries that again. A broker is checked at the start only.
    async fn findings(&self) -> Vec<Finding> {
        let Self::Kept(letters) = self else { return Vec::new() };
        match usable(letters.check()).await {
            Ok(findings) => findings,
            Err(CheckFailure::Refused(error)) => {
                vec![Finding { severity: Severity::Refuse, message: format!("dead letters: {error:#}") }]
            }
            Err(CheckFailure::Unreachable(error)) => {
                tracing::debug!(?error, "the place of the dead letters could not be checked");
                Vec::new()
            }
        }
    }
}
