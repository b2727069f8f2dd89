//! The lines that wait to be written. A thread of its own writes them, so that a log that nobody reads blocks no
//! request.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How many bytes wait at most.
const LIMIT: usize = 8 << 20;

/// Further bytes for lines that may be the last trace of an operation.
const AUDIT_LIMIT: usize = LIMIT + (1 << 20);

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
    lines: VecDeque<(Vec<u8>, LineRank)>,
    /// The bytes of these lines, and of the line that is being written.
    bytes: usize,
    /// Takes the place of the present file before the next line.
    next_file: Option<File>,
    lost: LostLines,
    reported: LostLines,
    has_ended: bool,
}

impl LogQueue {
    pub(super) const fn new() -> Self {
        let state = WaitingLines {
            lines: VecDeque::new(),
            bytes: 0,
            next_file: None,
            lost: LostLines::NONE,
            reported: LostLines::NONE,
            has_ended: false,
        };
        Self { state: Mutex::new(state), is_filled: Condvar::new(), is_written: Condvar::new() }
    }

    /// Queues a line, or counts it as lost if there is no room. After the end of the log only last lines are queued.
    pub(super) fn push(&self, line: Vec<u8>, rank: LineRank) {
        let mut state = self.state.lock();
        let limit = match rank {
            LineRank::Ordinary | LineRank::Audit if state.has_ended => return,
            LineRank::Ordinary => LIMIT,
            LineRank::Audit => AUDIT_LIMIT,
            LineRank::Last => usize::MAX,
        };
        if state.bytes + line.len() > limit {
            state.lost.add(rank);
            return;
        }
        state.bytes += line.len();
        state.lines.push_back((line, rank));
        drop(state);
        self.is_filled.notify_one();
    }

    /// The next lines go to this file.
    pub(super) fn replace_file(&self, file: File) {
        self.state.lock().next_file = Some(file);
    }

    /// Writes lines to this file until the process ends.
    pub(super) fn write_to(&self, file: File) {
        let mut file = LineFile { file, is_within_line: false };
        let mut state = self.state.lock();
        loop {
            let Some((line, rank)) = state.lines.pop_front() else {
                self.is_written.notify_all();
                self.is_filled.wait(&mut state);
                continue;
            };
            if let Some(next) = state.next_file.take() {
                // The new file may be the old one, so what is known about its end stays.
                file.file = next;
            }
            drop(state);
            let written = file.write_line(&line);
            state = self.state.lock();
            state.bytes -= line.len();
            if written.is_err() {
                state.lost.add(rank);
            }
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
        !std::mem::replace(&mut self.state.lock().has_ended, true)
    }

    /// Waits until all lines are written, at most for this long. Returns whether they are.
    pub(super) fn wait_until_written(&self, limit: Duration) -> bool {
        let mut state = self.state.lock();
        self.is_written.wait_while_for(&mut state, |state| state.bytes > 0, limit);
        state.bytes == 0
    }
}

/// A file of lines. A failed write may leave the beginning of a line in it.
struct LineFile {
    file: File,
    is_within_line: bool,
}

impl LineFile {
    /// Writes a line on a line of its own, also after one that was cut.
    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_within_line {
            self.write_all(b"\n")?;
        }
        self.write_all(line)?;
        self.is_within_line = false;
        Ok(())
    }
}

impl Write for LineFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.is_within_line = bytes[..written].last().map_or(self.is_within_line, |last| *last != b'\n');
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read, pipe};
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use super::*;

    /// More than a pipe holds.
    const LINE: usize = 1 << 17;

    fn line(byte: u8) -> Vec<u8> {
        vec![byte; LINE]
    }

    /// Returns a queue that is written to a pipe.
    fn queue() -> (Arc<LogQueue>, PipeReader) {
        let (reader, writer) = pipe().unwrap();
        let queue = Arc::new(LogQueue::new());
        let writing = Arc::clone(&queue);
        std::thread::spawn(move || writing.write_to(File::from(OwnedFd::from(writer))));
        (queue, reader)
    }

    #[test]
    fn lines_beyond_the_limit_are_counted_and_later_ones_are_written() {
        let (queue, mut reader) = queue();
        for _ in 0..LIMIT / LINE + 7 {
            queue.push(line(b'a'), LineRank::Ordinary);
        }
        assert_eq!(queue.newly_lost(), None, "the report would be lost");
        for _ in 0..(AUDIT_LIMIT - LIMIT) / LINE + 2 {
            queue.push(line(b'b'), LineRank::Audit);
        }
        assert!(!queue.wait_until_written(Duration::ZERO));
        let mut read = vec![0; AUDIT_LIMIT];
        reader.read_exact(&mut read).unwrap();
        assert!(queue.wait_until_written(Duration::from_secs(60)));
        assert!(read[..LIMIT].iter().all(|byte| *byte == b'a') && read[LIMIT..].iter().all(|byte| *byte == b'b'));
        assert_eq!(queue.newly_lost(), Some(LostLines { all: 9, audit: 2 }));
        assert_eq!(queue.newly_lost(), None, "nothing was lost since");
        queue.push(line(b'c'), LineRank::Ordinary);
        reader.read_exact(&mut read[..LINE]).unwrap();
        assert_eq!(read[0], b'c');
    }

    #[test]
    fn a_line_that_cannot_be_written_is_counted() {
        let (queue, reader) = queue();
        drop(reader);
        queue.push(line(b'a'), LineRank::Audit);
        assert!(queue.wait_until_written(Duration::from_secs(60)));
        assert_eq!(queue.newly_lost(), Some(LostLines { all: 1, audit: 1 }));
    }

    #[test]
    fn the_last_lines_have_room_and_no_other_follows_them() {
        let (queue, mut reader) = queue();
        for _ in 0..LIMIT / LINE + 1 {
            queue.push(line(b'a'), LineRank::Ordinary);
        }
        assert!(queue.end() && !queue.end());
        assert_eq!(queue.newly_lost(), Some(LostLines { all: 1, audit: 0 }));
        for (byte, rank) in [(b'b', LineRank::Last), (b'c', LineRank::Ordinary), (b'd', LineRank::Audit)] {
            queue.push(line(byte), rank);
        }
        let mut read = vec![0; LIMIT + LINE];
        reader.read_exact(&mut read).unwrap();
        assert!(queue.wait_until_written(Duration::from_secs(60)));
        assert_eq!(read.last(), Some(&b'b'));
    }
}
