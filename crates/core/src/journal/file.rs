//! A journal in files: one thread writes them, and a file that no process has locked is adopted.
//!
//! ```text
//! append, done, replay ─► thread: one write and one fdatasync for all waiting appends, then the replies
//!
//! <directory>/spill-….journal   own, locked        emptied when all entries are done, deleted when the journal closes
//!             spill-….journal   adopted, locked    deleted when all entries are done
//!             spill-….journal   another process's, locked by it
//!             spill-….journal   of another store, left alone
//!             spill-….damaged   adopted, damaged: read as far as possible, and kept for an operator
//! ```

mod folder;
mod log;
mod report;
mod thread;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, ErrorKind, Result};
use crate::journal::{EntryNumber, Journal, Spilled, StorePlace};
use crate::runtime::Runtime;
use crate::telemetry;
use thread::{JobReply, JournalFiles, JournalJob};

/// Settings of a [`FileJournal`].
///
/// ```
/// use hapax::journal::FileJournalSettings;
///
/// let settings = FileJournalSettings::default().max_bytes(64 << 20);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileJournalSettings {
    /// How many bytes the files of one process may take, adopted files included. An append beyond this limit fails with
    /// `NotApplied`. 1 GiB.
    pub max_bytes: u64,
}

impl Default for FileJournalSettings {
    fn default() -> Self {
        Self { max_bytes: 1 << 30 }
    }
}

impl FileJournalSettings {
    /// Sets [`max_bytes`](Self::max_bytes).
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }
}

/// A journal in a directory of files: one locked file for each running process, and the files that earlier processes
/// left.
///
/// Each file carries the [`StorePlace`] of its store. A file of another store is left alone: its answers are those of
/// requests that never ran here. [`FileJournal::foreign`] lists such files.
///
/// A crash during an append loses only that append. A damaged file is reported and read as far as possible. When its
/// readable entries are done, it is kept under another name.
///
/// If the journal is dropped, its thread soon closes the files: it deletes the file of this process unless an entry in
/// it is not done. [`FileJournal::close`] waits for that.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// use hapax::Journal;
/// use hapax::journal::{FileJournal, StorePlace};
///
/// # let directory = std::env::temp_dir().join(format!("hapax-journal-example-{}", std::process::id()));
/// let place = StorePlace::new("redis://redis.example:6379/0");
/// let journal = FileJournal::open(&directory, &place)?;
/// for (number, spilled) in journal.replay().await? {
///     // Record the completion in the store, then:
///     journal.done(number).await?;
/// }
/// journal.close().await;
/// # std::fs::remove_dir(directory).ok();
/// # Ok(())
/// # }
/// ```
pub struct FileJournal {
    directory: PathBuf,
    jobs: mpsc::Sender<JournalJob>,
    undone: Arc<AtomicUsize>,
    foreign: Vec<ForeignJournal>,
}

/// A journal file with answers for another store. No running process has locked it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignJournal {
    /// The path of the file.
    pub path: PathBuf,
    /// The store that the answers are for; [`StorePlace::unknown`] if that cannot be read.
    pub place: StorePlace,
    /// How many answers wait in it.
    pub answers: usize,
}

/// How many jobs may wait for the thread. Further callers wait for a free place.
const QUEUE: usize = 1024;

impl FileJournal {
    /// Creates the directory if it is missing and a file for this process, and adopts the files for the store at this
    /// place that no process has locked. Blocks while it reads the adopted files. Uses the default settings and the
    /// current tokio runtime.
    ///
    /// # Errors
    /// `Unusable` if the directory cannot be created, read or written, or if its file system has no locks.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn open(directory: impl AsRef<Path>, place: &StorePlace) -> Result<Self> {
        let runtime = Arc::new(crate::runtime::Tokio::current());
        Self::with(directory.as_ref(), place, runtime, FileJournalSettings::default())
    }

    /// Opens the directory with these settings, on this runtime.
    ///
    /// # Errors
    /// `Unusable` if the directory cannot be created, read or written, or if its file system has no locks.
    pub fn with(
        directory: &Path,
        place: &StorePlace,
        runtime: Arc<dyn Runtime>,
        settings: FileJournalSettings,
    ) -> Result<Self> {
        let directory = folder::prepare(directory)?;
        let mut files = JournalFiles::open(&directory, place, &*runtime, settings)?;
        let (undone, foreign) = (files.undone(), files.take_foreign());
        let (jobs, queue) = mpsc::channel(QUEUE);
        let body = Box::new(move || thread::run(files, queue));
        runtime.blocking("hapax-journal", body).map_err(|source| {
            let message = "cannot start the thread of the journal: the system has no thread left";
            Error::new(ErrorKind::Unusable, message).caused_by(source)
        })?;
        let journal = Self { directory, jobs, undone, foreign };
        journal.foreign();
        Ok(journal)
    }

    /// The directory of the files, as an absolute path.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The files of other stores that were found when the journal was opened and are still there. Sets the metric
    /// `hapax_journal_foreign`.
    pub fn foreign(&self) -> Vec<ForeignJournal> {
        let left: Vec<_> = self.foreign.iter().filter(|file| file.path.exists()).cloned().collect();
        telemetry::journal_foreign(left.iter().map(|file| file.answers).sum());
        left
    }

    /// Finishes the jobs so far and closes the files. Later jobs fail with `NotApplied`.
    ///
    /// # Cancel safety
    /// If dropped, the journal may or may not be closed.
    pub async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        if self.jobs.send(JournalJob::Close(reply)).await.is_ok() {
            // An error means that the thread panicked, which closes the files, too.
            let _ = closed.await;
        }
    }

    async fn run_unsynced<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut JournalFiles) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.send_job(|reply| {
            JournalJob::Unsynced(Box::new(move |files| {
                // The caller may have gone away. The job is done all the same.
                let _ = reply.send(job(files));
            }))
        })
        .await
    }

    async fn send_job<T>(&self, job: impl FnOnce(JobReply<T>) -> JournalJob) -> Result<T> {
        let (reply, replied) = oneshot::channel();
        if self.jobs.send(job(reply)).await.is_err() {
            return Err(Error::new(ErrorKind::NotApplied, "the journal is closed"));
        }
        replied.await.unwrap_or_else(|_| {
            let message = "the thread of the journal panicked";
            Err(Error::new(ErrorKind::Unknown, message))
        })
    }
}

#[async_trait]
impl Journal for FileJournal {
    async fn append(&self, entry: &Spilled) -> Result<EntryNumber> {
        let entry = Box::new(entry.clone());
        self.send_job(|reply| JournalJob::Append(entry, reply)).await
    }

    async fn done(&self, number: EntryNumber) -> Result<()> {
        self.run_unsynced(move |files| files.done(number)).await
    }

    async fn replay(&self) -> Result<Vec<(EntryNumber, Spilled)>> {
        self.run_unsynced(|files| Ok(files.replay())).await
    }

    fn undone(&self) -> usize {
        self.undone.load(Ordering::Acquire)
    }
}

impl fmt::Debug for FileJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileJournal({})", self.directory.display())
    }
}
