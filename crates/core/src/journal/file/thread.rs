//! The thread that does a journal's work.

use std::iter;
use std::path::Path;

use tokio::sync::{mpsc, oneshot};

use super::FileJournalSettings;
use super::folder::Locked;
use super::log::Log;
use super::report;
use crate::error::{Error, ErrorKind, Result};
use crate::journal::entry::{Frames, Place};
use crate::journal::{Number, Spilled};
use crate::runtime::Runtime;

/// Where the result of a job goes. The caller may have gone; what was done stands.
pub(super) type Reply<T> = oneshot::Sender<Result<T>>;

/// What callers send to the thread.
pub(super) enum Job {
    Append(Box<Spilled>, Reply<Number>),
    Step(Step),
    Close(oneshot::Sender<()>),
}

/// What is neither shared with others nor synced.
pub(super) type Step = Box<dyn FnOnce(&mut Files) + Send>;

/// Carries out what callers send, until the journal is closed or dropped.
pub(super) fn work(mut files: Files, mut jobs: mpsc::Receiver<Job>) {
    let mut closing = Vec::new();
    while let Some(first) = jobs.blocking_recv() {
        let mut group = Group::default();
        group.take(first);
        while group.has_room()
            && let Ok(job) = jobs.try_recv()
        {
            group.take(job);
        }
        if !group.closing.is_empty() {
            jobs.close();
        }
        files.append(group.appends);
        group.steps.into_iter().for_each(|step| step(&mut files));
        closing.append(&mut group.closing);
    }
    drop(files);
    for reply in closing {
        let _ = reply.send(());
    }
}

/// Jobs that are carried out together.
#[derive(Default)]
struct Group {
    appends: Vec<(Box<Spilled>, Reply<Number>)>,
    bytes: usize,
    steps: Vec<Step>,
    closing: Vec<oneshot::Sender<()>>,
}

/// How many bytes of answers may share a write, about: the copy of them is all the memory that the thread takes.
const GROUP_BYTES: usize = 8 << 20;
const GROUP_APPENDS: usize = 1024;

impl Group {
    fn take(&mut self, job: Job) {
        match job {
            Job::Append(spilled, reply) => {
                self.bytes += spilled.complete.answer.len();
                self.appends.push((spilled, reply));
            }
            Job::Step(step) => self.steps.push(step),
            Job::Close(reply) => self.closing.push(reply),
        }
    }

    fn has_room(&self) -> bool {
        self.bytes < GROUP_BYTES && self.appends.len() < GROUP_APPENDS
    }
}

/// The files of a journal.
#[derive(Debug)]
pub(super) struct Files {
    own: Log,
    adopted: Vec<Log>,
    /// The last number that was given away.
    last: u64,
    settings: FileJournalSettings,
}

impl Files {
    pub(super) fn open(directory: &Path, runtime: &dyn Runtime, settings: FileJournalSettings) -> Result<Self> {
        let own = Locked::create(directory, runtime)?;
        let owner = own.owner()?;
        let mut files = Self { own: Log::new(own, runtime), adopted: Vec::new(), last: 0, settings };
        for left in Locked::left_in(directory, owner)? {
            let path = left.path.clone();
            match Log::adopt(left, &mut files.last) {
                Ok(adopted) => files.adopted.extend(adopted),
                Err(error) => report::not_adopted(&path, &error),
            }
        }
        Ok(files)
    }

    /// One write and one sync for all; nobody hears of its entry before that.
    fn append(&mut self, appends: Vec<(Box<Spilled>, Reply<Number>)>) {
        let mut frames = self.own.frames();
        let mut staged = Vec::new();
        for (spilled, reply) in appends {
            match self.stage(&spilled, &mut frames) {
                Ok(place) => staged.push((place, reply)),
                Err(full) => drop(reply.send(Err(full))),
            }
        }
        if staged.is_empty() {
            return;
        }
        let written = self.own.append(&frames);
        for (place, reply) in staged {
            let result = match &written {
                Ok(()) => Ok(self.number(place)),
                Err(trouble) => Err(trouble.error()),
            };
            drop(reply.send(result));
        }
    }

    fn stage(&self, spilled: &Spilled, frames: &mut Frames) -> Result<Place> {
        let adopted: u64 = self.adopted.iter().map(Log::len).sum();
        let max = self.settings.max_bytes;
        match frames.end_with(spilled) {
            Some(end) if adopted.saturating_add(end) <= max => Ok(frames.entry(spilled)),
            Some(_) | None => {
                let message =
                    format!("the journal is full (max_bytes is {max}): it drains when the store answers again");
                Err(Error::new(ErrorKind::NotApplied, message))
            }
        }
    }

    fn number(&mut self, place: Place) -> Number {
        self.last += 1;
        let number = Number(self.last);
        self.own.keep(number, place);
        number
    }

    /// An entry that is not there is done.
    pub(super) fn done(&mut self, number: Number) -> Result<()> {
        if let Some(noted) = self.own.done(number) {
            let noted = if self.own.is_done() { self.own.clear() } else { noted };
            return noted.map_err(|trouble| trouble.error());
        }
        let mut logs = self.adopted.iter_mut().enumerate();
        let found = logs.find_map(|(at, log)| log.done(number).map(|noted| (at, noted)));
        let Some((at, noted)) = found else {
            return Ok(());
        };
        if self.adopted[at].is_done() {
            self.adopted.swap_remove(at).end();
        }
        noted.map_err(|trouble| trouble.error())
    }

    pub(super) fn replay(&self) -> Vec<(Number, Spilled)> {
        let logs = iter::once(&self.own).chain(&self.adopted);
        let mut left: Vec<_> = logs.flat_map(Log::replay).collect();
        left.sort_by_key(|(number, spilled)| (spilled.ended, *number));
        left
    }
}

/// Own entries that are not done are for the next process.
impl Drop for Files {
    fn drop(&mut self) {
        if self.own.is_done() {
            self.own.end();
        }
    }
}
