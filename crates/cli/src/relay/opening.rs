//! Opens the sink of a relay, also one whose broker is away.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hapax::outbox::Sink;
use hapax::runtime::Runtime;
use hapax::{Error, ErrorKind};
use hapax_systems::SinkUrl;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use crate::causes::in_words;
use crate::serve::exit::CommandError;

/// How long a broker may take until its sink is open.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The pauses between two tries.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The sink of a relay, once it is open.
#[derive(Debug, Default)]
pub(crate) struct SinkSlot {
    sink: OnceLock<Arc<dyn Sink>>,
    /// Why it is not open yet.
    failure: Mutex<Option<String>>,
}

impl SinkSlot {
    /// A slot whose sink is open.
    #[cfg(test)]
    pub(crate) fn of(sink: Arc<dyn Sink>) -> Self {
        Self { sink: OnceLock::from(sink), failure: Mutex::default() }
    }

    /// The sink.
    ///
    /// # Errors
    /// Why it is not open yet.
    pub(crate) fn opened(&self) -> Result<&Arc<dyn Sink>, String> {
        self.sink.get().ok_or_else(|| self.failure.lock().clone().unwrap_or_else(|| "it is being opened".into()))
    }

    /// Opens the sink. Tries again while its broker is away.
    ///
    /// # Errors
    /// If an operator must change something first.
    pub(crate) async fn open(&self, sink: &SinkUrl, runtime: &Arc<dyn Runtime>) -> Result<Arc<dyn Sink>, CommandError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match open_once(sink, runtime).await {
                Ok(sink) => return Ok(Arc::clone(self.sink.get_or_init(|| sink))),
                Err(error) if is_temporary(&error) => error,
                Err(error) => return Err(lasting(error)),
            };
            let reason = in_words(&error);
            tracing::warn!(pause_ms = pause.as_millis(), "the sink cannot be opened; the relay tries again: {reason}");
            *self.failure.lock() = Some(reason);
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
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
