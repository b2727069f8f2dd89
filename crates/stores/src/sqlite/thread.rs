use std::sync::Arc;

use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, Result};
use tokio::sync::{mpsc, oneshot};

use crate::sqlite::step::Step;

/// How many callers may wait for a thread; further ones wait for their place.
const QUEUE: usize = 4096;

/// A thread that owns a connection and carries out what callers send it.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: mpsc::Sender<Box<dyn Job>>,
}

impl Worker {
    pub(super) fn start(runtime: &dyn Runtime, name: &str, body: impl FnOnce(Jobs) + Send + 'static) -> Result<Self> {
        let (jobs, queue) = mpsc::channel(QUEUE);
        runtime.blocking(name, Box::new(move || body(Jobs(queue)))).map_err(|source| {
            Error::new(ErrorKind::Unusable, "the system has no thread left for the SQLite store").caused_by(source)
        })?;
        Ok(Self { jobs })
    }

    /// Has the thread carry this out.
    ///
    /// # Cancel safety
    /// Dropped before it returns, the step may or may not be carried out.
    pub(super) async fn run<T, W>(&self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&mut Step<'_>) -> Result<T, Fault> + Send + 'static,
    {
        let (reply, replied) = oneshot::channel();
        let job = Box::new(Call { work: Some(work), result: None, reply });
        if self.jobs.send(job).await.is_err() {
            return Err(Error::new(ErrorKind::NotApplied, "the SQLite store's thread has ended"));
        }
        let ended = || Error::new(ErrorKind::Unknown, "the SQLite store's thread ended in mid-step");
        replied.await.unwrap_or_else(|_| Err(ended()))
    }
}

/// Why a step of one caller failed.
pub(super) enum Fault {
    /// The database refused: the whole group is rolled back.
    Database(rusqlite::Error),
    /// This caller's record cannot be read; the others are not concerned.
    Record(Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

/// Why a group failed, the same for each of its callers.
pub(super) struct Trouble {
    pub(super) kind: ErrorKind,
    pub(super) message: &'static str,
    pub(super) source: Arc<rusqlite::Error>,
}

impl Trouble {
    fn error(&self) -> Error {
        Error::new(self.kind, self.message).caused_by(Arc::clone(&self.source))
    }
}

/// What one caller asked for.
pub(super) trait Job: Send {
    /// Carries it out and keeps the result until the group is committed.
    fn carry_out(&mut self, step: &mut Step<'_>) -> Result<(), rusqlite::Error>;

    /// Tells the caller.
    fn reply(self: Box<Self>, committed: &Result<(), Trouble>);
}

struct Call<T, W> {
    work: Option<W>,
    result: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, W> Job for Call<T, W>
where
    T: Send,
    W: FnOnce(&mut Step<'_>) -> Result<T, Fault> + Send,
{
    fn carry_out(&mut self, step: &mut Step<'_>) -> Result<(), rusqlite::Error> {
        // Of a caller who has gone, the step may or may not be carried out: not.
        let Some(work) = self.work.take().filter(|_| !self.reply.is_closed()) else {
            return Ok(());
        };
        self.result = Some(match work(step) {
            Ok(value) => Ok(value),
            Err(Fault::Record(error)) => Err(error),
            Err(Fault::Database(error)) => return Err(error),
        });
        Ok(())
    }

    fn reply(self: Box<Self>, committed: &Result<(), Trouble>) {
        let result = match (committed, self.result) {
            (Ok(()), Some(result)) => result,
            (Err(trouble), _) => Err(trouble.error()),
            (Ok(()), None) => Err(Error::new(ErrorKind::NotApplied, "the step was not carried out")),
        };
        // The caller may have gone; the step stands.
        let _ = self.reply.send(result);
    }
}

/// The callers that wait for a thread.
pub(super) struct Jobs(mpsc::Receiver<Box<dyn Job>>);

impl Jobs {
    /// Blocks until somebody waits; then all who do, up to `most`. Nothing once the store is dropped.
    pub(super) fn next(&mut self, most: usize) -> Option<Vec<Box<dyn Job>>> {
        let mut group = vec![self.0.blocking_recv()?];
        while group.len() < most
            && let Ok(job) = self.0.try_recv()
        {
            group.push(job);
        }
        Some(group)
    }
}
