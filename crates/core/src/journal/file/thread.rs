//! The thread that reads and writes the files of a journal.

use std::iter;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{mpsc, oneshot};

use super::FileJournalSettings;
use super::folder::{self, LockedFile};
use super::log::{Adopted, JournalFile};
use super::report;
use crate::error::{Error, ErrorKind, Result};
use crate::journal::entry::{EntryLocation, Frames};
use crate::journal::{EntryNumber, ForeignJournal, Spilled, StorePlace};
use crate::runtime::Runtime;

/// Sends the result of a job. If the caller has gone away, the job is done all the same.
pub(super) type JobReply<T> = oneshot::Sender<Result<T>>;

/// What callers send to the thread.
pub(super) enum JournalJob {
    Append(Box<Spilled>, JobReply<EntryNumber>),
    Unsynced(UnsyncedJob),
    Close(oneshot::Sender<()>),
}

/// A job without an `fdatasync`, so it has nothing to share with other jobs.
pub(super) type UnsyncedJob = Box<dyn FnOnce(&mut JournalFiles) + Send>;

/// Runs the jobs until the journal is closed or dropped.
pub(super) fn run(mut files: JournalFiles, mut jobs: mpsc::Receiver<JournalJob>) {
    let mut closing = Vec::new();
    while let Some(first) = jobs.blocking_recv() {
        let mut group = JobGroup::default();
        group.take(first);
        while group.has_room()
            && let Ok(job) = jobs.try_recv()
        {
            group.take(job);
        }
        if !group.closing.is_empty() {
            // Later jobs are refused. Those that are queued already still run.
            jobs.close();
        }
        // Appends go first, whatever the order in the queue: a caller that needs an order awaits the first reply.
        files.append(group.appends);
        group.unsynced.into_iter().for_each(|job| job(&mut files));
        files.count_undone();
        closing.append(&mut group.closing);
    }
    // `close` returns only when the files are closed and unlocked.
    drop(files);
    for reply in closing {
        let _ = reply.send(());
    }
}

/// Jobs that share one write.
#[derive(Default)]
struct JobGroup {
    appends: Vec<(Box<Spilled>, JobReply<EntryNumber>)>,
    bytes: usize,
    unsynced: Vec<UnsyncedJob>,
    closing: Vec<oneshot::Sender<()>>,
}

/// Approximate limit on the bytes of answers in one write. It bounds the memory of the thread, which copies them.
const GROUP_BYTES: usize = 8 << 20;
const GROUP_APPENDS: usize = 1024;

impl JobGroup {
    fn take(&mut self, job: JournalJob) {
        match job {
            JournalJob::Append(spilled, reply) => {
                self.bytes += spilled.complete.answer.len();
                self.appends.push((spilled, reply));
            }
            JournalJob::Unsynced(job) => self.unsynced.push(job),
            JournalJob::Close(reply) => self.closing.push(reply),
        }
    }

    fn has_room(&self) -> bool {
        self.bytes < GROUP_BYTES && self.appends.len() < GROUP_APPENDS
    }
}

/// The files of a journal.
#[derive(Debug)]
pub(super) struct JournalFiles {
    own: JournalFile,
    adopted: Vec<JournalFile>,
    foreign: Vec<ForeignJournal>,
    /// The number of the newest entry.
    last: u64,
    undone: Arc<AtomicUsize>,
    settings: FileJournalSettings,
}

impl JournalFiles {
    pub(super) fn open(
        directory: &Path,
        place: &StorePlace,
        runtime: &dyn Runtime,
        settings: FileJournalSettings,
    ) -> Result<Self> {
        let turn = folder::take_turn(directory);
        let own = LockedFile::create(directory, runtime)?;
        let owner = own.owner()?;
        let own = JournalFile::new(own, place.clone(), runtime);
        let (adopted, foreign) = (Vec::new(), Vec::new());
        let mut files = Self { own, adopted, foreign, last: 0, undone: Arc::default(), settings };
        for locked in LockedFile::adopt_all(directory, owner)? {
            let path = locked.path.clone();
            match JournalFile::adopt(locked, place, &mut files.last) {
                Ok(Adopted::Entries(adopted)) => files.adopted.push(adopted),
                Ok(Adopted::Nothing) => {}
                Ok(Adopted::Foreign(foreign)) => {
                    report::foreign(&foreign, place);
                    files.foreign.push(foreign);
                }
                Err(error) => report::not_adopted(&path, &error),
            }
        }
        drop(turn);
        files.count_undone();
        Ok(files)
    }

    /// The files of other stores.
    pub(super) fn take_foreign(&mut self) -> Vec<ForeignJournal> {
        std::mem::take(&mut self.foreign)
    }

    /// The number of entries that are not done, for other threads.
    pub(super) fn undone(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.undone)
    }

    fn count_undone(&self) {
        let adopted: usize = self.adopted.iter().map(JournalFile::undone).sum();
        self.undone.store(self.own.undone() + adopted, Ordering::Release);
    }

    /// Writes all entries with one write and one sync. Replies are sent after the sync.
    fn append(&mut self, appends: Vec<(Box<Spilled>, JobReply<EntryNumber>)>) {
        let mut frames = self.own.frames();
        let mut staged = Vec::new();
        for (spilled, reply) in appends {
            match self.stage(&spilled, &mut frames) {
                Ok(location) => staged.push((location, reply)),
                Err(full) => drop(reply.send(Err(full))),
            }
        }
        if staged.is_empty() {
            return;
        }
        let written = self.own.append(&frames);
        for (location, reply) in staged {
            let result = match &written {
                Ok(()) => Ok(self.assign_number(location)),
                Err(failure) => Err(failure.error()),
            };
            drop(reply.send(result));
        }
    }

    fn stage(&self, spilled: &Spilled, frames: &mut Frames) -> Result<EntryLocation> {
        let adopted: u64 = self.adopted.iter().map(JournalFile::len).sum();
        let max = self.settings.max_bytes;
        match frames.end_with(spilled) {
            Some(end) if adopted.saturating_add(end) <= max => Ok(frames.push_entry(spilled)),
            Some(_) | None => {
                let message =
                    format!("the journal is full (max_bytes is {max}); it has room again when the store answers");
                Err(Error::new(ErrorKind::NotApplied, message))
            }
        }
    }

    fn assign_number(&mut self, location: EntryLocation) -> EntryNumber {
        self.last += 1;
        let number = EntryNumber(self.last);
        self.own.keep(number, location);
        number
    }

    /// Marks an entry as done. A missing entry counts as done.
    pub(super) fn done(&mut self, number: EntryNumber) -> Result<()> {
        if let Some(result) = self.own.done(number) {
            // Emptied rather than marked, so that a journal in use does not grow without end.
            let result = if self.own.is_done() { self.own.clear() } else { result };
            return result.map_err(|failure| failure.error());
        }
        let mut logs = self.adopted.iter_mut().enumerate();
        let found = logs.find_map(|(at, log)| log.done(number).map(|result| (at, result)));
        let Some((at, result)) = found else {
            return Ok(());
        };
        if self.adopted[at].is_done() {
            self.adopted.swap_remove(at).end();
        }
        result.map_err(|failure| failure.error())
    }

    pub(super) fn replay(&self) -> Vec<(EntryNumber, Spilled)> {
        let logs = iter::once(&self.own).chain(&self.adopted);
        let mut undone: Vec<_> = logs.flat_map(JournalFile::replay).collect();
        undone.sort_by_key(|(number, spilled)| (spilled.complete.ended, *number));
        undone
    }
}

/// A file with entries that are not done stays for the next process.
impl Drop for JournalFiles {
    fn drop(&mut self) {
        if self.own.is_done() {
            self.own.end();
        }
    }
}
