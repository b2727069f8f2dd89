//! The lines that wait to be written. A thread of its own writes them, so that a log that nobody reads blocks no
//! request. It gathers lines for a moment and writes many at once: a wake-up and a write for each would cost more than
//! the lines.

use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How many bytes wait at most.
const LIMIT: usize = 8 << 20;

/// Further bytes for lines that may be the last trace of an operation.
const AUDIT_LIMIT: usize = LIMIT + (1 << 20);

/// How long a line waits for others.
const GATHERING: Duration = Duration::from_millis(20);

/// How many bytes one write to a file has, unless a line is longer. So many end the wait for others, too.
const FILE_WRITE: usize = 64 << 10;

/// How many bytes one write to anything else has. Other processes may write to the same pipe, and Linux keeps together
/// only what is as small as this.
const PIPE_WRITE: usize = 4 << 10;

/// Which lines have room when others have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineRank {
    Ordinary,
    /// The line may be the last trace of an operation.
    Audit,
    /// A line of the end of the log: it always has room.
    Last,
}

/// How many lines were lost since the start, because they found no room or could not be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LostLines {
    pub(super) all: u64,
    /// Those with the rank [`LineRank::Audit`].
    pub(super) audit: u64,
}

impl LostLines {
    const NONE: Self = Self { all: 0, audit: 0 };

    fn add(&mut self, rank: LineRank) {
        self.all += 1;
        self.audit += u64::from(rank == LineRank::Audit);
    }
}

/// A queue of lines between many threads and the one that writes.
#[derive(Debug)]
pub(super) struct LogQueue {
    state: Mutex<WaitingLines>,
    /// There is something to write.
    is_filled: Condvar,
    /// Everything is written.
    is_written: Condvar,
}

#[derive(Debug)]
struct WaitingLines {
    lines: LineBatch,
    /// The bytes of these lines, and of those that are being written.
    bytes: usize,
    /// A line must be written at once.
    is_urgent: bool,
    /// Takes the place of the present file before the next write.
    next_file: Option<File>,
    lost: LostLines,
    reported: LostLines,
    has_ended: bool,
}

impl LogQueue {
    pub(super) const fn new() -> Self {
        let state = WaitingLines {
            lines: LineBatch::new(),
            bytes: 0,
            is_urgent: false,
            next_file: None,
            lost: LostLines::NONE,
            reported: LostLines::NONE,
            has_ended: false,
        };
        Self { state: Mutex::new(state), is_filled: Condvar::new(), is_written: Condvar::new() }
    }

    /// Queues a line, given without its end, or counts it as lost if there is no room. After the end of the log only
    /// last lines are queued.
    pub(super) fn push(&self, line: &[u8], rank: LineRank) {
        let mut state = self.state.lock();
        let limit = match rank {
            LineRank::Ordinary | LineRank::Audit if state.has_ended => return,
            LineRank::Ordinary => LIMIT,
            LineRank::Audit => AUDIT_LIMIT,
            LineRank::Last => usize::MAX,
        };
        let length = line.len() + 1;
        if state.bytes + length > limit {
            state.lost.add(rank);
            return;
        }
        let before = state.lines.text.len();
        state.bytes += length;
        state.lines.push(line, rank);
        // The process may be killed while the line waits for others.
        let is_urgent = rank != LineRank::Ordinary;
        state.is_urgent |= is_urgent;
        let is_due = is_urgent || before == 0 || (before < FILE_WRITE && before + length >= FILE_WRITE);
        drop(state);
        if is_due {
            self.is_filled.notify_one();
        }
    }

    /// The next lines go to this file.
    pub(super) fn replace_file(&self, file: File) {
        self.state.lock().next_file = Some(file);
    }

    /// Writes lines to this file until the process ends.
    pub(super) fn write_to(&self, file: File) {
        let mut file = LineFile::new(file);
        let mut lines = LineBatch::new();
        loop {
            self.take_lines(&mut lines);
            self.write_lines(&lines, &mut file);
        }
    }

    /// Waits for lines, gathers more for a moment, and takes them all.
    fn take_lines(&self, lines: &mut LineBatch) {
        lines.clear();
        let mut state = self.state.lock();
        self.is_filled.wait_while(&mut state, |state| state.lines.text.is_empty());
        let gathers =
            |state: &mut WaitingLines| state.lines.text.len() < FILE_WRITE && !state.is_urgent && !state.has_ended;
        self.is_filled.wait_while_for(&mut state, gathers, GATHERING);
        state.is_urgent = false;
        std::mem::swap(&mut state.lines, lines);
    }

    /// Writes lines to this file, or to the next one as soon as there is one.
    fn write_lines(&self, lines: &LineBatch, file: &mut LineFile) {
        let mut place = BatchPlace::default();
        while place.line < lines.ends.len() {
            if let Some(next) = self.state.lock().next_file.take() {
                file.replace(next);
            }
            let (next, lost) = file.write_some(lines, place);
            self.note_written(next.byte - place.byte, lost);
            place = next;
        }
    }

    fn note_written(&self, bytes: usize, lost: Option<LineRank>) {
        let mut state = self.state.lock();
        state.bytes -= bytes;
        if let Some(rank) = lost {
            state.lost.add(rank);
        }
        if state.bytes == 0 {
            self.is_written.notify_all();
        }
    }

    pub(super) fn lost(&self) -> LostLines {
        self.state.lock().lost
    }

    /// Returns the number of lost lines, if it has grown since the last call. While there is little room, a report
    /// would be lost too, and nothing is returned.
    pub(super) fn newly_lost(&self) -> Option<LostLines> {
        let mut state = self.state.lock();
        if state.lost == state.reported || (state.bytes > LIMIT / 2 && !state.has_ended) {
            return None;
        }
        state.reported = state.lost;
        Some(state.lost)
    }

    /// From now on only last lines are queued. Returns false if the log has ended before.
    pub(super) fn end(&self) -> bool {
        let has_ended = std::mem::replace(&mut self.state.lock().has_ended, true);
        self.is_filled.notify_one();
        !has_ended
    }

    /// Waits until all lines are written, at most for this long. Returns whether they are.
    pub(super) fn wait_until_written(&self, limit: Duration) -> bool {
        let mut state = self.state.lock();
        self.is_written.wait_while_for(&mut state, |state| state.bytes > 0, limit);
        state.bytes == 0
    }
}

/// Lines one after the other.
#[derive(Debug)]
struct LineBatch {
    text: Vec<u8>,
    /// Where each line ends in the text, and its rank.
    ends: Vec<(usize, LineRank)>,
}

impl LineBatch {
    const fn new() -> Self {
        Self { text: Vec::new(), ends: Vec::new() }
    }

    fn push(&mut self, line: &[u8], rank: LineRank) {
        self.text.extend_from_slice(line);
        self.text.push(b'\n');
        self.ends.push((self.text.len(), rank));
    }

    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        // After a rare flood of lines its memory is not needed.
        self.text.shrink_to(4 * FILE_WRITE);
        self.ends.shrink_to(FILE_WRITE / 64);
    }

    /// How many lines from this place on have at most so many bytes together. At least one.
    fn fitting(&self, place: BatchPlace, bytes: usize) -> usize {
        self.ends[place.line..].iter().take_while(|(end, _)| end - place.byte <= bytes).count().max(1)
    }

    /// The place behind the line of this number.
    fn behind(&self, line: usize) -> BatchPlace {
        BatchPlace { line: line + 1, byte: self.ends[line].0 }
    }
}

/// The number of a line, and where it begins in the text.
#[derive(Clone, Copy, Debug, Default)]
struct BatchPlace {
    line: usize,
    byte: usize,
}

/// A file of lines. A failed write may leave the beginning of a line in it.
struct LineFile<W = File> {
    file: W,
    /// How many bytes one write has, unless a line is longer.
    largest_write: usize,
    is_within_line: bool,
}

impl LineFile {
    fn new(file: File) -> Self {
        let largest_write = largest_write(&file);
        Self { file, largest_write, is_within_line: false }
    }

    /// Goes on in this file. It may be the old one, so what is known about its end stays.
    fn replace(&mut self, file: File) {
        self.largest_write = largest_write(&file);
        self.file = file;
    }
}

impl<W: Write> LineFile<W> {
    /// Writes as many lines from this place on as one write may have. Returns the place of the next line, and the rank
    /// of the line before it if that one was lost.
    fn write_some(&mut self, lines: &LineBatch, place: BatchPlace) -> (BatchPlace, Option<LineRank>) {
        let last = lines.behind(place.line + lines.fitting(place, self.largest_write) - 1);
        match self.write_chunk(&lines.text[place.byte..last.byte]) {
            Ok(()) => (last, None),
            Err(Written(bytes)) => {
                let rest = lines.ends[place.line..].iter();
                let lost = place.line + rest.take_while(|(end, _)| *end <= place.byte + bytes).count();
                (lines.behind(lost), Some(lines.ends[lost].1))
            }
        }
    }

    /// Writes whole lines, on lines of their own, also after one that was cut.
    fn write_chunk(&mut self, lines: &[u8]) -> Result<(), Written> {
        if self.is_within_line {
            self.write_bytes(b"\n").map_err(|_| Written(0))?;
        }
        self.write_bytes(lines)
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), Written> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return Err(Written(bytes.len() - rest.len())),
                Ok(count) => {
                    self.is_within_line = rest[count - 1] != b'\n';
                    rest = &rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Written(bytes.len() - rest.len())),
            }
        }
        Ok(())
    }
}

/// How many bytes were written before an error.
struct Written(usize);

fn largest_write(file: &File) -> usize {
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) { FILE_WRITE } else { PIPE_WRITE }
}

#[cfg(test)]
mod tests;
