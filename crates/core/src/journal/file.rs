//! ```text
//! append, done, replay ─► thread: all appends that wait, one write, one fdatasync, then the replies
//!
//! <directory>/spill-….journal   own, locked        emptied when all of it is done, deleted at the end
//!             spill-….journal   adopted, locked    deleted when all of it is done
//!             spill-….journal   another process's, which holds its lock
//!             spill-….damaged   adopted, read as far as possible, and kept for somebody to look at
//! ```

mod folder;
mod log;
mod report;
mod thread;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, ErrorKind, Result};
use crate::journal::{Journal, Number, Spilled};
use crate::runtime::Runtime;
use thread::{Files, Job, Reply};

/// Settings of a [`FileJournal`].
///
/// ```
/// use hapax_core::journal::FileJournalSettings;
///
/// let settings = FileJournalSettings::default().max_bytes(64 << 20);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileJournalSettings {
    /// How many bytes the files of one process may take, those it adopted included; an append beyond it is refused with
    /// `NotApplied`. 1 GiB.
    pub max_bytes: u64,
}

impl Default for FileJournalSettings {
    fn default() -> Self {
        Self { max_bytes: 1 << 30 }
    }
}

impl FileJournalSettings {
    /// Takes at most this many bytes.
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }
}

/// A journal in a directory of files: one locked file for each process that runs, and what earlier ones left.
///
/// What crashed in the middle of an append loses that append only. A file that is damaged is reported, read as far as possible,
/// and kept under another name once what could be read is done.
///
/// Dropped, it lets go of its files soon after: its own is deleted unless something in it is not done. [`FileJournal::close`]
/// waits for that.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax_core::Result<()> {
/// use std::sync::Arc;
/// use hapax_core::Journal;
/// use hapax_core::journal::{FileJournal, FileJournalSettings};
/// use hapax_core::runtime::Tokio;
///
/// # let directory = std::env::temp_dir().join(format!("hapax-journal-example-{}", std::process::id()));
/// let settings = FileJournalSettings::default();
/// let journal = FileJournal::open(&directory, Arc::new(Tokio::current()), settings)?;
/// for (number, spilled) in journal.replay().await? {
///     // Complete it, and then:
///     journal.done(number).await?;
/// }
/// journal.close().await;
/// # std::fs::remove_dir(directory).ok();
/// # Ok(())
/// # }
/// ```
pub struct FileJournal {
    directory: PathBuf,
    jobs: mpsc::Sender<Job>,
}

/// How many callers may wait for the thread; further ones wait for their place.
const QUEUE: usize = 1024;

impl FileJournal {
    /// Makes the directory if there is none, and a file of its own in it, and adopts the files that no process holds any more.
    /// Blocks while it reads those.
    ///
    /// # Errors
    /// `Unusable` for a directory that cannot be made, read or written, or one on a file system without locks.
    pub fn open(directory: &Path, runtime: Arc<dyn Runtime>, settings: FileJournalSettings) -> Result<Self> {
        let directory = folder::prepare(directory)?;
        let files = Files::open(&directory, &*runtime, settings)?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        let body = Box::new(move || thread::work(files, queue));
        runtime.blocking("hapax-journal", body).map_err(|source| {
            let message = "the system has no thread left for the journal";
            Error::new(ErrorKind::Unusable, message).caused_by(source)
        })?;
        Ok(Self { directory, jobs })
    }

    /// Carries out what was asked before and lets go of the files; whatever is asked later is refused.
    ///
    /// # Cancel safety
    /// Dropped, it closes all the same or not at all.
    pub async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        if self.jobs.send(Job::Close(reply)).await.is_ok() {
            // A thread that panicked has let go of the files, too.
            let _ = closed.await;
        }
    }

    async fn step<T: Send + 'static>(&self, step: impl FnOnce(&mut Files) -> Result<T> + Send + 'static) -> Result<T> {
        self.ask(|reply| {
            Job::Step(Box::new(move |files| {
                // The caller may have gone; what was done stands.
                let _ = reply.send(step(files));
            }))
        })
        .await
    }

    async fn ask<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T> {
        let (reply, replied) = oneshot::channel();
        if self.jobs.send(job(reply)).await.is_err() {
            return Err(Error::new(ErrorKind::NotApplied, "the journal is closed"));
        }
        replied.await.unwrap_or_else(|_| {
            let message = "the journal's thread ended in mid-step";
            Err(Error::new(ErrorKind::Unknown, message))
        })
    }
}

#[async_trait]
impl Journal for FileJournal {
    async fn append(&self, entry: &Spilled) -> Result<Number> {
        let entry = Box::new(entry.clone());
        self.ask(|reply| Job::Append(entry, reply)).await
    }

    async fn done(&self, number: Number) -> Result<()> {
        self.step(move |files| files.done(number)).await
    }

    async fn replay(&self) -> Result<Vec<(Number, Spilled)>> {
        self.step(|files| Ok(files.replay())).await
    }
}

impl fmt::Debug for FileJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileJournal({})", self.directory.display())
    }
}
