//! One file of a journal: frames are added at its end until all of its entries are done.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;

use super::folder::Locked;
use super::report;
use crate::error::{Error, ErrorKind, Result};
use crate::journal::entry::{self, Frames, Mark, Place, Scan};
use crate::journal::{Number, Spilled};
use crate::runtime::Runtime;

/// A file of this process, and what in it is not done.
#[derive(Debug)]
pub(super) struct Log {
    locked: Locked,
    mark: Mark,
    end: u64,
    /// Whether something may stand behind the end, left by a write that failed.
    ragged: bool,
    fate: Fate,
    undone: BTreeMap<Number, Place>,
}

/// What becomes of a file when all that could be read of it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Delete,
    /// It is damaged: somebody may want to look at it.
    SetAside,
    /// A later release adopts it and reads the rest.
    Leave,
}

/// Why a write failed, the same for everybody whose frames were in it.
#[derive(Debug)]
pub(super) struct Trouble {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<io::Error>>,
}

impl Trouble {
    pub(super) fn error(&self) -> Error {
        let error = Error::new(self.kind, self.message.clone());
        match &self.source {
            Some(source) => error.caused_by(Arc::clone(source)),
            None => error,
        }
    }
}

impl Log {
    pub(super) fn new(locked: Locked, runtime: &dyn Runtime) -> Self {
        Self { locked, mark: Mark::draw(runtime), end: 0, ragged: false, fate: Fate::Delete, undone: BTreeMap::new() }
    }

    /// Takes over what an earlier process left; nothing if there is nothing left to do.
    pub(super) fn adopt(mut locked: Locked, next: &mut u64) -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        locked.file.read_to_end(&mut bytes)?;
        let scan = entry::scan(&bytes);
        let fate = judge(&locked, &scan);
        let undone = scan.undone.into_values().map(|place| {
            *next += 1;
            (Number(*next), place)
        });
        let mut log = Self {
            locked,
            mark: scan.mark.unwrap_or_default(),
            end: scan.end,
            ragged: false,
            fate,
            undone: undone.collect(),
        };
        let torn = bytes.len() as u64 - scan.end;
        if torn > 0 {
            report::torn(&log.locked.path, torn);
            log.cut()?;
        }
        if log.undone.is_empty() {
            log.end();
            return Ok(None);
        }
        Ok(Some(log))
    }

    pub(super) fn len(&self) -> u64 {
        self.end
    }

    pub(super) fn is_done(&self) -> bool {
        self.undone.is_empty()
    }

    /// Frames that will go to the end of this file.
    pub(super) fn frames(&self) -> Frames {
        Frames::after(self.end, self.mark)
    }

    /// Writes the frames, and returns when they are safe from a power failure.
    pub(super) fn append(&mut self, frames: &Frames) -> Result<(), Trouble> {
        let is_deleted = self.locked.is_deleted();
        if is_deleted.map_err(|source| self.trouble(ErrorKind::NotApplied, source))? {
            let path = self.locked.path.display();
            let message = format!("somebody deleted the journal's file {path}: restart to make a new one");
            return Err(Trouble { kind: ErrorKind::NotApplied, message, source: None });
        }
        self.write(frames, std::fs::File::sync_data)
    }

    pub(super) fn keep(&mut self, number: Number, place: Place) {
        self.undone.insert(number, place);
    }

    /// Notes that an entry is done, if it is in this file. That needs no sync: to do it again does no harm.
    pub(super) fn done(&mut self, number: Number) -> Option<Result<(), Trouble>> {
        let place = self.undone.remove(&number)?;
        if self.undone.is_empty() && self.fate != Fate::Leave {
            // The file is emptied, deleted or renamed next, which a full disk does not hinder.
            return Some(Ok(()));
        }
        let mut frames = self.frames();
        frames.done(&place);
        Some(self.write(&frames, |_| Ok(())))
    }

    fn write(&mut self, frames: &Frames, sync: impl FnOnce(&std::fs::File) -> io::Result<()>) -> Result<(), Trouble> {
        if self.ragged {
            self.cut().map_err(|source| self.trouble(ErrorKind::NotApplied, source))?;
        }
        let file = &self.locked.file;
        let written = file.write_all_at(frames.bytes(), self.end).and_then(|()| sync(file));
        match written {
            Ok(()) => {
                self.end += frames.bytes().len() as u64;
                Ok(())
            }
            Err(source) => Err(match self.cut() {
                Ok(()) => self.trouble(ErrorKind::NotApplied, source),
                Err(_) => self.trouble(ErrorKind::Unknown, source),
            }),
        }
    }

    /// Cuts off what a write that failed has left, so that it neither comes back nor hides what is written later.
    fn cut(&mut self) -> io::Result<()> {
        self.ragged = true;
        self.locked.file.set_len(self.end)?;
        self.locked.file.sync_data()?;
        self.ragged = false;
        Ok(())
    }

    /// Empties the file, all of whose entries are done.
    pub(super) fn clear(&mut self) -> Result<(), Trouble> {
        self.end = 0;
        self.cut().map_err(|source| self.trouble(ErrorKind::NotApplied, source))
    }

    /// What is not done. What cannot be read any more is reported and stays in the file.
    pub(super) fn replay(&self) -> Vec<(Number, Spilled)> {
        let read = |(number, place): (&Number, &Place)| match self.read(place) {
            Ok(spilled) => Some((*number, spilled)),
            Err(error) => {
                report::entry_damaged(&self.locked.path, *number, &error);
                None
            }
        };
        self.undone.iter().filter_map(read).collect()
    }

    fn read(&self, place: &Place) -> Result<Spilled> {
        let message = "an entry of the journal is damaged";
        let damaged = || Error::new(ErrorKind::Damaged, message);
        let mut frame = vec![0; usize::try_from(place.len).map_err(|_| damaged())?];
        self.locked.file.read_exact_at(&mut frame, place.position).map_err(|source| damaged().caused_by(source))?;
        entry::read_entry(&Bytes::from(frame), place.position, self.mark).ok_or_else(damaged)
    }

    /// Lets go of the file, all of whose entries are done.
    pub(super) fn end(&self) {
        let path = &self.locked.path;
        let ended = match self.fate {
            Fate::Delete => self.locked.delete(),
            Fate::SetAside => {
                let kept = self.locked.set_aside();
                kept.map(|kept| report::set_aside(path, &kept))
            }
            Fate::Leave => Ok(()),
        };
        if let Err(error) = ended {
            report::not_ended(path, &error);
        }
    }

    fn trouble(&self, kind: ErrorKind, source: io::Error) -> Trouble {
        let path = self.locked.path.display();
        Trouble {
            kind,
            message: format!("the journal's file {path} cannot be written: is its disk full?"),
            source: Some(Arc::new(source)),
        }
    }
}

/// Says what was found in a file, and what becomes of it.
fn judge(locked: &Locked, scan: &Scan) -> Fate {
    let (path, left) = (&locked.path, scan.undone.len());
    report::adopted(path, left);
    if let Some(at) = scan.damage {
        report::damaged(path, at, left);
    }
    if scan.unknown {
        report::of_a_later_release(path);
        return Fate::Leave;
    }
    if scan.damage.is_some() { Fate::SetAside } else { Fate::Delete }
}
