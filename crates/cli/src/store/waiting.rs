//! Opens what a process needs beside its store, also while a broker is away.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use hapax::outbox::Sink;
use hapax::runtime::Runtime;
use hapax::store::{Finding, Severity};
use hapax::{Error, ErrorKind};
use hapax_systems::SinkUrl;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use crate::causes::in_words;
use crate::serve::exit::CommandError;
use crate::store::health::ReportFindings;

/// How long a broker may take until its sink is open.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The pauses between two tries.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A thing that a process waits for, and why it is not open yet. Until it is open, the process is not ready.
#[derive(Debug)]
pub(crate) struct OpeningWait {
    what: &'static str,
    /// Why the last try failed.
    failure: Mutex<Option<String>>,
}

impl OpeningWait {
    /// Nothing was tried yet. `what` is its name in logs, for instance `sink`.
    pub(crate) fn of(what: &'static str) -> Self {
        Self { what, failure: Mutex::default() }
    }

    /// Opens it. Tries again while what it needs is away.
    ///
    /// # Errors
    /// If an operator must change something first.
    pub(crate) async fn open<T>(&self, once: impl AsyncFn() -> Result<T, Error>) -> Result<T, CommandError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match once().await {
                Ok(opened) => {
                    *self.failure.lock() = None;
                    return Ok(opened);
                }
                Err(error) if is_temporary(&error) => error,
                Err(error) => return Err(lasting(error)),
            };
            let (what, reason) = (self.what, in_words(&error));
            tracing::warn!(pause_ms = pause.as_millis(), "the {what} cannot be opened; it is tried again: {reason}");
            *self.failure.lock() = Some(reason);
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

#[async_trait]
impl ReportFindings for OpeningWait {
    async fn findings(&self) -> Vec<Finding> {
        let failure = self.failure.lock().clone();
        let what = self.what;
        let refuse = |reason| Finding { severity: Severity::Refuse, message: format!("the {what}: {reason}") };
        failure.map(refuse).into_iter().collect()
    }
}

/// A sink, once it is open.
pub(crate) struct SinkSlot {
    sink: OnceLock<Arc<dyn Sink>>,
    wait: OpeningWait,
}

impl fmt::Debug for SinkSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkSlot").field("sink", &self.sink).finish_non_exhaustive()
    }
}

impl SinkSlot {
    /// A slot whose sink is not open.
    pub(crate) fn of(what: &'static str) -> Self {
        Self { sink: OnceLock::new(), wait: OpeningWait::of(what) }
    }

    /// A slot whose sink is open.
    #[cfg(test)]
    pub(crate) fn with(sink: Arc<dyn Sink>) -> Self {
        Self { sink: OnceLock::from(sink), ..Self::of("sink") }
    }

    /// The sink.
    ///
    /// # Errors
    /// Why it is not open yet.
    pub(crate) fn opened(&self) -> Result<&Arc<dyn Sink>, String> {
        self.sink.get().ok_or_else(|| self.wait.failure.lock().clone().unwrap_or_else(|| "it is being opened".into()))
    }

    /// Opens the sink. Tries again while its broker is away.
    ///
    /// # Errors
    /// If an operator must change something first.
    pub(crate) async fn open(&self, sink: &SinkUrl, runtime: &Arc<dyn Runtime>) -> Result<Arc<dyn Sink>, CommandError> {
        let opened = self.wait.open(async || open_once(sink, runtime).await).await?;
        Ok(Arc::clone(self.sink.get_or_init(|| opened)))
    }
}

#[async_trait]
impl ReportFindings for SinkSlot {
    async fn findings(&self) -> Vec<Finding> {
        self.wait.findings().await
    }
}

/// Opens the sink for a check, which does not wait for a broker.
///
/// # Errors
/// If its broker cannot be reached or refuses the relay, or a file does not exist.
pub(crate) async fn open_for_check(sink: &SinkUrl, runtime: &Arc<dyn Runtime>) -> Result<Arc<dyn Sink>, CommandError> {
    sink.refuse_missing_tables().map_err(CommandError::cannot_start)?;
    open_once(sink, runtime).await.map_err(lasting)
}

async fn open_once(sink: &SinkUrl, runtime: &Arc<dyn Runtime>) -> Result<Arc<dyn Sink>, Error> {
    let late = || Err(Error::new(ErrorKind::NotApplied, format!("the sink does not reply within {TIME_LIMIT:?}")));
    timeout(TIME_LIMIT, sink.open(Arc::clone(runtime))).await.unwrap_or_else(|_| late())
}

fn is_temporary(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotApplied | ErrorKind::Unknown | ErrorKind::Full)
}

fn lasting(error: Error) -> CommandError {
    if error.kind() == ErrorKind::Invalid { CommandError::usage(error) } else { CommandError::cannot_start(error) }
}
