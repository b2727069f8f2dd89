//! One file of a journal: frames are appended until all entries are done.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;

use super::folder::LockedFile;
use super::report;
use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::journal::entry::{self, EntryLocation, FileMark, FileScan, Frames};
use crate::journal::{EntryNumber, ForeignJournal, Spilled, StorePlace};
use crate::runtime::Runtime;

/// A file that this process has locked, and its entries that are not done.
#[derive(Debug)]
pub(super) struct JournalFile {
    locked: LockedFile,
    mark: FileMark,
    place: StorePlace,
    end: u64,
    /// Whether a failed write may have left bytes after `end`.
    has_garbage: bool,
    end_action: EndAction,
    undone: BTreeMap<EntryNumber, EntryLocation>,
}

/// How a file ends when all of its readable entries are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndAction {
    Delete,
    /// The file is damaged, so it is renamed for an operator.
    SetAside,
    /// A later release wrote frames that this one cannot read, and must adopt the file.
    Leave,
}

/// The result of adopting a file that an earlier process left.
#[derive(Debug)]
pub(super) enum Adopted {
    /// Its entries are to be recorded.
    Entries(JournalFile),
    /// All of its entries are done.
    Nothing,
    /// It has entries for another store, and nothing was changed.
    Foreign(ForeignJournal),
}

/// Why a write failed. Every entry of the write gets the same error.
#[derive(Debug)]
pub(super) struct WriteFailure {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<io::Error>>,
}

impl WriteFailure {
    pub(super) fn error(&self) -> Error {
        let error = Error::new(self.kind, self.message.clone());
        match &self.source {
            Some(source) => error.caused_by(Arc::clone(source)),
            None => error,
        }
    }
}

impl JournalFile {
    pub(super) fn new(locked: LockedFile, place: StorePlace, runtime: &dyn Runtime) -> Self {
        Self {
            locked,
            mark: FileMark::draw(runtime),
            place,
            end: 0,
            has_garbage: false,
            end_action: EndAction::Delete,
            undone: BTreeMap::new(),
        }
    }

    /// Adopts a file that an earlier process left, if its entries are for the store at this place.
    pub(super) fn adopt(mut locked: LockedFile, place: &StorePlace, next: &mut u64) -> io::Result<Adopted> {
        let mut bytes = Vec::new();
        locked.file.read_to_end(&mut bytes)?;
        let scan = entry::scan(&bytes);
        let own_place = scan.place.clone().unwrap_or_else(StorePlace::unknown);
        if own_place != *place && !scan.undone.is_empty() && !Mutant::JournalOfAnyStore.is_on() {
            let answers = scan.undone.len();
            return Ok(Adopted::Foreign(ForeignJournal { path: locked.path.clone(), place: own_place, answers }));
        }
        let end_action = choose_end_action(&locked, &scan);
        let undone = scan.undone.into_values().map(|location| {
            *next += 1;
            (EntryNumber(*next), location)
        });
        let mut log = Self {
            locked,
            mark: scan.mark.unwrap_or_default(),
            place: own_place,
            end: scan.end,
            has_garbage: false,
            end_action,
            undone: undone.collect(),
        };
        // Truncated now: the next frames of this process go to `end`, and old bytes behind them would look like damage.
        let torn = bytes.len() as u64 - scan.end;
        if torn > 0 {
            report::torn(&log.locked.path, torn);
            log.truncate()?;
        }
        if log.undone.is_empty() {
            log.end();
            return Ok(Adopted::Nothing);
        }
        Ok(Adopted::Entries(log))
    }

    pub(super) fn len(&self) -> u64 {
        self.end
    }

    pub(super) fn is_done(&self) -> bool {
        self.undone.is_empty()
    }

    pub(super) fn undone(&self) -> usize {
        self.undone.len()
    }

    /// Frames that will go to the end of this file.
    pub(super) fn frames(&self) -> Frames {
        Frames::after(self.end, self.mark, &self.place)
    }

    /// Writes the frames and syncs them.
    pub(super) fn append(&mut self, frames: &Frames) -> Result<(), WriteFailure> {
        // A write to a deleted file succeeds, but no later process would find the entry.
        let is_deleted = self.locked.is_deleted();
        if is_deleted.map_err(|source| self.failure(ErrorKind::NotApplied, source))? {
            let path = self.locked.path.display();
            let message = format!("the journal file {path} was deleted; restart to create a new one");
            return Err(WriteFailure { kind: ErrorKind::NotApplied, message, source: None });
        }
        // `fdatasync` also writes the length of the file, which reading the frames needs.
        self.write(frames, std::fs::File::sync_data)
    }

    pub(super) fn keep(&mut self, number: EntryNumber, location: EntryLocation) {
        self.undone.insert(number, location);
    }

    /// Marks an entry of this file as done. Needs no sync: completing the entry again does no harm.
    pub(super) fn done(&mut self, number: EntryNumber) -> Option<Result<(), WriteFailure>> {
        let location = self.undone.remove(&number)?;
        if self.undone.is_empty() && self.end_action != EndAction::Leave {
            // Not written: the file is emptied, deleted or renamed next, which works on a full disk, too.
            return Some(Ok(()));
        }
        let mut frames = self.frames();
        frames.push_done(&location);
        Some(self.write(&frames, |_| Ok(())))
    }

    fn write(
        &mut self,
        frames: &Frames,
        sync: impl FnOnce(&std::fs::File) -> io::Result<()>,
    ) -> Result<(), WriteFailure> {
        if self.has_garbage {
            self.truncate().map_err(|source| self.failure(ErrorKind::NotApplied, source))?;
        }
        let file = &self.locked.file;
        let written = file.write_all_at(frames.bytes(), self.end).and_then(|()| sync(file));
        match written {
            Ok(()) => {
                self.end += frames.bytes().len() as u64;
                Ok(())
            }
            // Without the truncation the entry may be read after a crash, so the outcome of the append is unknown.
            Err(source) => Err(match self.truncate() {
                Ok(()) => self.failure(ErrorKind::NotApplied, source),
                Err(_) => self.failure(ErrorKind::Unknown, source),
            }),
        }
    }

    /// Truncates what a failed write left, so that it is neither read as an entry nor hides later frames.
    fn truncate(&mut self) -> io::Result<()> {
        self.has_garbage = true;
        self.locked.file.set_len(self.end)?;
        self.locked.file.sync_data()?;
        self.has_garbage = false;
        Ok(())
    }

    /// Empties the file. All of its entries are done.
    pub(super) fn clear(&mut self) -> Result<(), WriteFailure> {
        self.end = 0;
        self.truncate().map_err(|source| self.failure(ErrorKind::NotApplied, source))
    }

    /// Reads the entries that are not done. A damaged entry is reported and stays in the file.
    pub(super) fn replay(&self) -> Vec<(EntryNumber, Spilled)> {
        let read = |(number, location): (&EntryNumber, &EntryLocation)| match self.read(location) {
            Ok(spilled) => Some((*number, spilled)),
            Err(error) => {
                report::entry_damaged(&self.locked.path, *number, &error);
                None
            }
        };
        self.undone.iter().filter_map(read).collect()
    }

    fn read(&self, location: &EntryLocation) -> Result<Spilled> {
        let message = "an entry of the journal is damaged";
        let damaged = || Error::new(ErrorKind::Damaged, message);
        let mut frame = vec![0; usize::try_from(location.len).map_err(|_| damaged())?];
        self.locked.file.read_exact_at(&mut frame, location.position).map_err(|source| damaged().caused_by(source))?;
        entry::read_entry(&Bytes::from(frame), location.position, self.mark).ok_or_else(damaged)
    }

    /// Deletes, renames or leaves the file. All of its readable entries are done.
    pub(super) fn end(&self) {
        let path = &self.locked.path;
        let ended = match self.end_action {
            EndAction::Delete => self.locked.delete(),
            EndAction::SetAside => {
                let kept = self.locked.set_aside();
                kept.map(|kept| report::set_aside(path, &kept))
            }
            EndAction::Leave => Ok(()),
        };
        if let Err(error) = ended {
            report::not_ended(path, &error);
        }
    }

    fn failure(&self, kind: ErrorKind, source: io::Error) -> WriteFailure {
        let path = self.locked.path.display();
        WriteFailure {
            kind,
            message: format!("cannot write to the journal file {path}; is the disk full?"),
            source: Some(Arc::new(source)),
        }
    }
}

/// Reports the findings of a scan, and chooses how the file ends.
fn choose_end_action(locked: &LockedFile, scan: &FileScan) -> EndAction {
    let (path, left) = (&locked.path, scan.undone.len());
    report::adopted(path, left);
    if let Some(at) = scan.damage {
        report::damaged(path, at, left);
    }
    // Before the damage: a later release must find the file under its name.
    if scan.has_unknown_frame {
        report::written_by_later_release(path);
        return EndAction::Leave;
    }
    if scan.damage.is_some() { EndAction::SetAside } else { EndAction::Delete }
}
