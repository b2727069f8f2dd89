//! Where a worker writes its dead letters, and whether they come back.

use std::sync::Arc;

use anyhow::anyhow;
use async_trait::async_trait;
use hapax::broker::{DeadLetterStore, DeadLetters, SinkDeadLetters, Source};
use hapax::outbox::Sink;
use hapax::runtime::Runtime;
use hapax::store::{Finding, Severity};
use hapax::worker::{RecordReopener, RedriveSource};
use hapax_systems::DeadLetterPlace;

use crate::serve::exit::CommandError;
use crate::store::checks::{CheckFailure, usable};
use crate::store::health::ReportFindings;
use crate::store::waiting::SinkSlot;

/// The dead letters of a running worker.
#[derive(Clone, Debug)]
pub(crate) enum WorkerDeadLetters {
    /// Operators read them, and mark them for a redrive.
    Kept(Arc<dyn DeadLetterStore>),
    /// The consumers of a broker read them. The sink is open once the worker takes messages.
    Published(Arc<SinkSlot>),
}

impl WorkerDeadLetters {
    /// Opens a store. May block, and creates a file that is missing. A broker is not asked yet.
    pub(crate) fn open(place: &DeadLetterPlace, runtime: Arc<dyn Runtime>) -> Result<Self, CommandError> {
        match place {
            DeadLetterPlace::Kept(url) => Ok(Self::Kept(url.dead_letters(runtime)?)),
            DeadLetterPlace::Published(_) => Ok(Self::Published(Arc::new(SinkSlot::of("broker of the dead letters")))),
        }
    }

    /// Waits for a broker that is away, and checks what the worker cannot find out before its first dead letter.
    ///
    /// # Errors
    /// If the place must not be used. A store that cannot be reached is no error: the messages wait.
    pub(crate) async fn start(&self, place: &DeadLetterPlace, runtime: &Arc<dyn Runtime>) -> Result<(), CommandError> {
        if let (Self::Published(slot), DeadLetterPlace::Published(sink)) = (self, place) {
            slot.open(sink, runtime).await?;
        }
        match self.check().await {
            Ok(findings) => findings.iter().for_each(|finding| tracing::warn!("dead letters: {}", finding.message)),
            Err(CheckFailure::Refused(error)) => return Err(CommandError::cannot_start(error.context("dead letters"))),
            Err(CheckFailure::Unreachable(error)) => {
                tracing::warn!(
                    "dead letters cannot be written yet; a message that nobody can process waits: {error:#}"
                );
            }
        }
        if let Some(sink) = self.sink() {
            let sink = &**sink.name();
            let message = "dead letters are published; `hapax dead` does not know them, and nothing redrives them";
            tracing::info!(sink, "{message}");
        }
        Ok(())
    }

    /// The open sink, if the letters are published.
    fn sink(&self) -> Option<&Arc<dyn Sink>> {
        match self {
            Self::Kept(_) => None,
            Self::Published(slot) => slot.opened().ok(),
        }
    }

    async fn check(&self) -> Result<Vec<Finding>, CheckFailure> {
        match self {
            Self::Kept(letters) => usable(letters.check()).await,
            Self::Published(slot) => {
                let sink = slot.opened().map_err(|reason| CheckFailure::Unreachable(anyhow!(reason)))?;
                usable(sink.check()).await
            }
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

    /// Where the worker writes, once it has started.
    ///
    /// # Errors
    /// If the sink is not open.
    pub(crate) fn letters(&self, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn DeadLetters>, CommandError> {
        match self {
            Self::Kept(letters) => Ok(Arc::clone(letters) as _),
            Self::Published(slot) => {
                let sink = slot.opened().map_err(|reason| CommandError::cannot_start(anyhow!(reason)))?;
                Ok(Arc::new(SinkDeadLetters::new(Arc::clone(sink), runtime)))
            }
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
        if let Some(sink) = self.sink() {
            sink.close().await;
        }
    }
}

#[async_trait]
impl ReportFindings for WorkerDeadLetters {
    /// None if the place cannot be reached: each letter tries that again. A broker is checked at the start only, and
    /// waited for.
    async fn findings(&self) -> Vec<Finding> {
        let letters = match self {
            Self::Kept(letters) => letters,
            Self::Published(slot) => return slot.findings().await,
        };
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
