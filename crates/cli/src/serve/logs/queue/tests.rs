use std::collections::VecDeque;
use std::io::{PipeReader, Read, pipe};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::*;

/// More than a pipe holds, with the end of the line.
const LINE: usize = 1 << 17;

fn line(byte: u8) -> Vec<u8> {
    vec![byte; LINE - 1]
}

fn lines(byte: u8, count: usize) -> Vec<u8> {
    let mut line = line(byte);
    line.push(b'\n');
    line.repeat(count)
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
        queue.push(&line(b'a'), LineRank::Ordinary);
    }
    assert_eq!(queue.newly_lost(), None, "the report would be lost");
    for _ in 0..(AUDIT_LIMIT - LIMIT) / LINE + 2 {
        queue.push(&line(b'b'), LineRank::Audit);
    }
    assert!(!queue.wait_until_written(Duration::ZERO));
    let mut read = vec![0; AUDIT_LIMIT];
    reader.read_exact(&mut read).unwrap();
    assert!(queue.wait_until_written(Duration::from_secs(60)));
    let expected = [lines(b'a', LIMIT / LINE), lines(b'b', (AUDIT_LIMIT - LIMIT) / LINE)].concat();
    assert!(read == expected);
    assert_eq!(queue.newly_lost(), Some(LostLines { all: 9, audit: 2 }));
    assert_eq!(queue.newly_lost(), None, "nothing was lost since");
    queue.push(&line(b'c'), LineRank::Ordinary);
    reader.read_exact(&mut read[..LINE]).unwrap();
    assert_eq!(read[0], b'c');
}

#[test]
fn a_line_that_cannot_be_written_is_counted() {
    let (queue, reader) = queue();
    drop(reader);
    queue.push(&line(b'a'), LineRank::Audit);
    assert!(queue.wait_until_written(Duration::from_secs(60)));
    assert_eq!(queue.newly_lost(), Some(LostLines { all: 1, audit: 1 }));
}

#[test]
fn a_new_file_gets_what_the_old_one_has_not_taken() {
    let (queue, mut old) = queue();
    queue.push(&line(b'a'), LineRank::Ordinary);
    queue.push(&line(b'b'), LineRank::Ordinary);
    // The first line is being written, and the second one waits.
    old.read_exact(&mut [0]).unwrap();
    let (mut new, writer) = pipe().unwrap();
    queue.replace_file(File::from(OwnedFd::from(writer)));
    let mut rest = vec![0; LINE - 1];
    old.read_exact(&mut rest).unwrap();
    let mut read = vec![0; LINE];
    new.read_exact(&mut read).unwrap();
    assert!(read == lines(b'b', 1));
}

#[test]
fn the_last_lines_have_room_and_no_other_follows_them() {
    let (queue, mut reader) = queue();
    for _ in 0..LIMIT / LINE + 1 {
        queue.push(&line(b'a'), LineRank::Ordinary);
    }
    assert!(queue.end() && !queue.end());
    assert_eq!(queue.newly_lost(), Some(LostLines { all: 1, audit: 0 }));
    for (byte, rank) in [(b'b', LineRank::Last), (b'c', LineRank::Ordinary), (b'd', LineRank::Audit)] {
        queue.push(&line(byte), rank);
    }
    let mut read = vec![0; LIMIT + LINE];
    reader.read_exact(&mut read).unwrap();
    assert!(queue.wait_until_written(Duration::from_secs(60)));
    assert!(read == [lines(b'a', LIMIT / LINE), lines(b'b', 1)].concat());
}

/// A file that takes so many bytes at each write, or fails at it.
#[derive(Debug, Default)]
struct Scripted {
    takes: VecDeque<Option<usize>>,
    written: Vec<String>,
}

impl Write for Scripted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.takes.pop_front().unwrap_or(Some(usize::MAX));
        let count = taken.ok_or(io::ErrorKind::StorageFull)?.min(bytes.len());
        self.written.push(String::from_utf8(bytes[..count].to_vec()).unwrap());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes these lines, at most 10 bytes at once, and returns the writes and what was noted after each.
fn written(takes: &[Option<usize>], texts: &[&str]) -> (Vec<String>, Vec<(usize, Option<LineRank>)>) {
    let file = Scripted { takes: takes.iter().copied().collect(), written: Vec::new() };
    let mut file = LineFile { file, largest_write: 10, is_within_line: false };
    let (mut lines, mut notes) = (LineBatch::new(), Vec::new());
    let ranks = [LineRank::Ordinary, LineRank::Audit].into_iter().cycle();
    texts.iter().zip(ranks).for_each(|(text, rank)| lines.push(text.as_bytes(), rank));
    let mut place = BatchPlace::default();
    while place.line < lines.ends.len() {
        let (next, lost) = file.write_some(&lines, place);
        notes.push((next.byte - place.byte, lost));
        place = next;
    }
    assert_eq!(notes.iter().map(|(bytes, _)| bytes).sum::<usize>(), lines.text.len());
    (file.file.written, notes)
}

#[test]
fn a_write_has_as_many_whole_lines_as_fit() {
    let (writes, notes) = written(&[], &["abcd", "efgh", "i", "a line that is longer", "j"]);
    assert_eq!(writes, ["abcd\nefgh\n", "i\n", "a line that is longer\n", "j\n"]);
    assert_eq!(notes, [(10, None), (2, None), (22, None), (2, None)]);
}

#[test]
fn a_short_write_goes_on_where_it_stopped() {
    let (writes, notes) = written(&[Some(3), Some(4)], &["abcd", "efgh"]);
    assert_eq!(writes, ["abc", "d\nef", "gh\n"]);
    assert_eq!(notes, [(10, None)]);
}

#[test]
fn only_the_line_of_a_failed_write_is_lost() {
    // The disk is full in the middle of the second line, and has room again.
    let (writes, notes) = written(&[Some(7), None], &["abcd", "efgh", "ijkl"]);
    assert_eq!(writes, ["abcd\nef", "\n", "ijkl\n"]);
    assert_eq!(notes, [(10, Some(LineRank::Audit)), (5, None)]);
    // It is full exactly behind the first line.
    let (writes, notes) = written(&[Some(5), None], &["abcd", "efgh", "ijkl"]);
    assert_eq!(writes, ["abcd\n", "ijkl\n"]);
    assert_eq!(notes, [(10, Some(LineRank::Audit)), (5, None)]);
    // It stays full.
    let (writes, notes) = written(&[None; 3], &["abcd", "efgh", "ijkl"]);
    assert_eq!(writes, [""; 0]);
    assert_eq!(notes, [(5, Some(LineRank::Ordinary)), (5, Some(LineRank::Audit)), (5, Some(LineRank::Ordinary))]);
}
