use std::borrow::Cow;
use std::sync::Arc;

use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, Result};
use tokio::sync::{mpsc, oneshot};

use crate::sqlite::step::{StepContext, StepError};

/// How many steps may wait for a thread. A caller that finds the queue full waits for a free place.
const QUEUE: usize = 4096;

/// A thread that owns a connection and runs the steps that callers send to it.
#[derive(Debug)]
pub(super) struct DatabaseThread {
    steps: mpsc::Sender<Box<dyn QueuedStep>>,
}

impl DatabaseThread {
    pub(super) fn start(
        runtime: &dyn Runtime,
        name: &str,
        body: impl FnOnce(StepQueue) + Send + 'static,
    ) -> Result<Self> {
        let (steps, queue) = mpsc::channel(QUEUE);
        runtime.blocking(name, Box::new(move || body(StepQueue(queue)))).map_err(|source| {
            Error::new(ErrorKind::Unusable, "the system cannot start a thread for the SQLite store").caused_by(source)
        })?;
        Ok(Self { steps })
    }

    /// Runs a step on the thread and returns its result.
    ///
    /// # Cancel safety
    /// If the future is dropped before it returns, the step may or may not run.
    pub(super) async fn run<T, W>(&self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: Fn(&mut StepContext<'_>) -> Result<T, StepError> + Send + 'static,
    {
        let (reply, replied) = oneshot::channel();
        let step = Box::new(StepRequest { work, result: None, reply });
        if self.steps.send(step).await.is_err() {
            return Err(Error::new(ErrorKind::NotApplied, "the SQLite store's thread has ended"));
        }
        let ended = || Error::new(ErrorKind::Unknown, "the SQLite store's thread ended while it ran the step");
        replied.await.unwrap_or_else(|_| Err(ended()))
    }
}

/// Why the transaction of a group failed. Each caller of the group gets this error.
pub(super) struct GroupError {
    pub(super) kind: ErrorKind,
    pub(super) message: Cow<'static, str>,
    /// None if no statement failed.
    pub(super) source: Option<Arc<rusqlite::Error>>,
    /// The place in the group of a step that found a damaged row. The other steps may succeed without it.
    pub(super) damaged_step: Option<usize>,
}

impl GroupError {
    fn error(&self) -> Error {
        let error = Error::new(self.kind, self.message.clone());
        match &self.source {
            Some(source) => error.caused_by(Arc::clone(source)),
            None => error,
        }
    }
}

/// One caller's step, from the queue to its reply.
pub(super) trait QueuedStep: Send {
    /// Runs the step and keeps its result until the group is committed. It runs again if its group is rolled back.
    fn carry_out(&mut self, context: &mut StepContext<'_>) -> Result<(), rusqlite::Error>;

    /// Sends the result to the caller, or the group's error if the commit failed.
    fn reply(self: Box<Self>, committed: &Result<(), GroupError>);
}

struct StepRequest<T, W> {
    work: W,
    result: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, W> QueuedStep for StepRequest<T, W>
where
    T: Send,
    W: Fn(&mut StepContext<'_>) -> Result<T, StepError> + Send,
{
    fn carry_out(&mut self, context: &mut StepContext<'_>) -> Result<(), rusqlite::Error> {
        // The caller was cancelled. A cancelled call may or may not be applied, so skip the step.
        if self.reply.is_closed() {
            return Ok(());
        }
        self.result = Some(match (self.work)(context) {
            Ok(value) => Ok(value),
            Err(StepError::Record(error)) => Err(error),
            Err(StepError::Database(error)) => return Err(error),
        });
        Ok(())
    }

    fn reply(self: Box<Self>, committed: &Result<(), GroupError>) {
        let result = match (committed, self.result) {
            (Ok(()), Some(result)) => result,
            (Err(failed), _) => Err(failed.error()),
            (Ok(()), None) => Err(Error::new(ErrorKind::NotApplied, "the step was not run")),
        };
        // A failed send means that the caller was cancelled; the committed step stays.
        let _ = self.reply.send(result);
    }
}

/// The steps that wait for a thread, in the order of their arrival.
pub(super) struct StepQueue(mpsc::Receiver<Box<dyn QueuedStep>>);

impl StepQueue {
    /// Blocks until a step waits, then takes all waiting steps, at most `most`. Returns `None` once the store is
    /// dropped.
    pub(super) fn next(&mut self, most: usize) -> Option<Vec<Box<dyn QueuedStep>>> {
        let mut group = vec![self.0.blocking_recv()?];
        while group.len() < most
            && let Ok(step) = self.0.try_recv()
        {
            group.push(step);
        }
        Some(group)
    }
}
