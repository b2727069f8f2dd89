//! The stored form of a journal: a header, then frames, one after the other.
//!
//! ```text
//! file    0  "hapaxjnl"            every integer is big-endian
//!         8  mark, 16
//!        24  check, 8
//!        32  frames, the place of the store first
//!
//! frame   0  mark, 16              entry   0  rk, 16              done   0  position of the entry, 8
//!        16  version = 1                  16  owner, 16
//!        17  kind: 1 entry, 2 done,       32  token, 8
//!                  3 place                40  fingerprint rule, 1
//!        18  zero, 2                      41  fingerprint, 12
//!        20  length of the body, 4        53  retention in s, 4
//!        24  check of the header, 8       57  unknown retention in s, 4
//!        32  body                         61  ended in µs, 8       place   0  kind and place of the store, UTF-8
//!         …  check of the frame, 8        69  age in µs, 8
//!                                         77  the answer
//! ```
//!
//! The place is written with the first entry. A file without a readable place belongs to no known store.
//!
//! The mark is drawn at random for each file. It shows where the next frame begins after a damaged one. The author of
//! an answer cannot know the mark, so an answer that contains bytes of a frame is not read as one. A check is the start
//! of the SHA-256 of the position of the frame and all bytes before the check. The header and the checks are the same
//! in every version.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::journal::{Spilled, StorePlace};
use crate::key::{Fingerprint, RecordKey, Rule};
use crate::machine::{Claim, Complete};
use crate::record::{Owner, Seconds, Timestamp, Token};
use crate::runtime::Runtime;

/// The random bytes at the start of every frame of one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileMark([u8; 16]);

const MAGIC: &[u8; 8] = b"hapaxjnl";
const VERSION: u8 = 1;
const ENTRY: u8 = 1;
const DONE: u8 = 2;
const PLACE: u8 = 3;
const HEADER_LEN: usize = 32;
const CHECK_LEN: usize = 8;
const ENTRY_LEN: usize = 77;

impl FileMark {
    pub(super) fn draw(runtime: &dyn Runtime) -> Self {
        let mut bytes = [0; 16];
        runtime.fill_random(&mut bytes);
        Self(bytes)
    }

    fn file_header(self) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        header[..8].copy_from_slice(MAGIC);
        header[8..24].copy_from_slice(&self.0);
        let check = check(0, &header[..24]);
        header[24..].copy_from_slice(&check);
        header
    }
}

/// Where an entry is in its file, and when its handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryLocation {
    pub(super) position: u64,
    pub(super) len: u64,
    pub(super) ended: Timestamp,
}

/// Encoded frames to append to a file.
pub(super) struct Frames {
    mark: FileMark,
    start: u64,
    bytes: Vec<u8>,
}

impl Frames {
    /// Starts at the end of a file. An empty file gets its header first, and the place of its store.
    pub(super) fn after(end: u64, mark: FileMark, place: &StorePlace) -> Self {
        let mut frames = Self { mark, start: end, bytes: Vec::new() };
        if end == 0 {
            frames.bytes = mark.file_header().to_vec();
            frames.push_frame(PLACE, place.as_bytes(), &[]);
        }
        frames
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The length of the file with one more entry. None if the answer is too long for a frame.
    pub(super) fn end_with(&self, spilled: &Spilled) -> Option<u64> {
        let body = ENTRY_LEN as u64 + spilled.complete.answer.len() as u64;
        let fits = u32::try_from(body).is_ok();
        fits.then_some(self.end() + (HEADER_LEN + CHECK_LEN) as u64 + body)
    }

    pub(super) fn push_entry(&mut self, spilled: &Spilled) -> EntryLocation {
        let complete = &spilled.complete;
        let mut fields = Vec::with_capacity(ENTRY_LEN);
        fields.extend_from_slice(spilled.rk.as_bytes());
        fields.extend_from_slice(&complete.claim.owner.0);
        fields.extend_from_slice(&complete.claim.token.0.to_be_bytes());
        fields.push(complete.fingerprint.rule().0);
        fields.extend_from_slice(complete.fingerprint.as_bytes());
        fields.extend_from_slice(&complete.retention.0.to_be_bytes());
        fields.extend_from_slice(&spilled.unknown_retention.0.to_be_bytes());
        fields.extend_from_slice(&complete.ended.0.to_be_bytes());
        let age = u64::try_from(complete.age.as_micros()).unwrap_or(u64::MAX);
        fields.extend_from_slice(&age.to_be_bytes());
        let position = self.end();
        self.push_frame(ENTRY, &fields, &complete.answer);
        EntryLocation { position, len: self.end() - position, ended: complete.ended }
    }

    pub(super) fn push_done(&mut self, entry: &EntryLocation) {
        self.push_frame(DONE, &entry.position.to_be_bytes(), &[]);
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn push_frame(&mut self, kind: u8, fields: &[u8], answer: &[u8]) {
        let position = self.end();
        let len = u32::try_from(fields.len() + answer.len()).expect("end_with refuses longer answers");
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&self.mark.0);
        self.bytes.extend_from_slice(&[VERSION, kind, 0, 0]);
        self.bytes.extend_from_slice(&len.to_be_bytes());
        // A check of its own: the length can be trusted even if the body is cut short.
        let header_check = check(position, &self.bytes[start..]);
        self.bytes.extend_from_slice(&header_check);
        self.bytes.extend_from_slice(fields);
        self.bytes.extend_from_slice(answer);
        let frame_check = check(position, &self.bytes[start..]);
        self.bytes.extend_from_slice(&frame_check);
    }
}

/// The content of a file.
#[derive(Debug)]
pub(super) struct FileScan {
    /// None if neither the header nor the first frame can be read.
    pub(super) mark: Option<FileMark>,
    /// None if it cannot be read.
    pub(super) place: Option<StorePlace>,
    /// The entries that are not done, by position.
    pub(super) undone: BTreeMap<u64, EntryLocation>,
    /// Where the next frame goes. Bytes after it are the start of an interrupted append.
    pub(super) end: u64,
    /// The position of the first damage.
    pub(super) damage: Option<u64>,
    /// Whether a later release wrote a frame that this one cannot read.
    pub(super) has_unknown_frame: bool,
}

/// Reads a whole file. After a damaged part it goes on with the next frame.
pub(super) fn scan(file: &[u8]) -> FileScan {
    let mut scan =
        FileScan { mark: None, place: None, undone: BTreeMap::new(), end: 0, damage: None, has_unknown_frame: false };
    if file.len() < HEADER_LEN || is_zero(file) {
        // A crash interrupted the first append, so no entry was confirmed.
        return scan;
    }
    scan.mark = mark_of_header(file);
    if scan.mark.is_none() {
        scan.damage = Some(0);
        scan.mark = mark_of_first_frame(file);
    }
    let Some(mark) = scan.mark else {
        // Without the mark no frame can be found. The end is that of the file, so that nothing is truncated.
        scan.end = file.len() as u64;
        return scan;
    };
    let mut at = HEADER_LEN;
    while at < file.len() {
        at = match read_frame(&file[at..], at as u64, mark) {
            Some((frame, len)) => {
                scan.add(frame, at, len);
                at + len
            }
            None => match find_mark(file, at, mark) {
                Some(next) => {
                    scan.damage.get_or_insert(at as u64);
                    next
                }
                None if is_torn(&file[at..], at as u64, mark) => break,
                // No mark follows. The rest stays in the file for an operator.
                None => {
                    scan.damage.get_or_insert(at as u64);
                    file.len()
                }
            },
        };
    }
    scan.end = at as u64;
    scan
}

impl FileScan {
    fn add(&mut self, frame: Frame<'_>, at: usize, len: usize) {
        let position = at as u64;
        match frame {
            Frame::Entry(fields, _) => {
                let location = EntryLocation {
                    position,
                    len: len as u64,
                    ended: Timestamp(u64::from_be_bytes(array(fields, 61))),
                };
                self.undone.insert(position, location);
            }
            Frame::Done(entry) => drop(self.undone.remove(&entry)),
            Frame::Place(place) => self.place = Some(StorePlace::new(place)),
            Frame::Unknown => self.has_unknown_frame = true,
        }
    }
}

/// Reads one entry. None if it is damaged.
pub(super) fn read_entry(frame: &Bytes, position: u64, mark: FileMark) -> Option<Spilled> {
    let (Frame::Entry(fields, answer), _) = read_frame(frame, position, mark)? else {
        return None;
    };
    let claim = Claim { owner: Owner(array(fields, 16)), token: Token(u64::from_be_bytes(array(fields, 32))) };
    let complete = Complete {
        claim,
        fingerprint: Fingerprint::from_parts(Rule(fields[40]), array(fields, 41)),
        answer: frame.slice_ref(answer),
        retention: Seconds(u32::from_be_bytes(array(fields, 53))),
        ended: Timestamp(u64::from_be_bytes(array(fields, 61))),
        age: Duration::from_micros(u64::from_be_bytes(array(fields, 69))),
    };
    Some(Spilled {
        rk: RecordKey::from_bytes(array(fields, 0)),
        complete,
        unknown_retention: Seconds(u32::from_be_bytes(array(fields, 57))),
    })
}

enum Frame<'a> {
    /// The fields, and the answer.
    Entry(&'a [u8], &'a [u8]),
    /// The position of the entry that is done.
    Done(u64),
    /// The place of the store.
    Place(&'a str),
    Unknown,
}

/// Reads the frame at the start of `rest`, and returns its length, too. None if it is incomplete or damaged.
fn read_frame(rest: &[u8], position: u64, mark: FileMark) -> Option<(Frame<'_>, usize)> {
    let header = FrameHeader::read(rest, position, mark)?;
    let end = HEADER_LEN.checked_add(header.len)?;
    let body = rest.get(HEADER_LEN..end)?;
    let stored = rest.get(end..end.checked_add(CHECK_LEN)?)?;
    if check(position, &rest[..end]) != stored {
        return None;
    }
    let frame = match (header.version, header.kind) {
        (VERSION, ENTRY) => {
            let (fields, answer) = body.split_at_checked(ENTRY_LEN)?;
            Frame::Entry(fields, answer)
        }
        (VERSION, DONE) => Frame::Done(u64::from_be_bytes(body.try_into().ok()?)),
        (VERSION, PLACE) => Frame::Place(std::str::from_utf8(body).ok()?),
        _ => Frame::Unknown,
    };
    Some((frame, end + CHECK_LEN))
}

struct FrameHeader {
    version: u8,
    kind: u8,
    len: usize,
}

impl FrameHeader {
    fn read(rest: &[u8], position: u64, mark: FileMark) -> Option<Self> {
        let (header, stored) = rest.get(..HEADER_LEN)?.split_at(HEADER_LEN - CHECK_LEN);
        if header[..16] != mark.0 || check(position, header) != stored {
            return None;
        }
        Some(Self {
            version: header[16],
            kind: header[17],
            len: usize::try_from(u32::from_be_bytes(array(header, 20))).ok()?,
        })
    }
}

fn mark_of_header(file: &[u8]) -> Option<FileMark> {
    let mark = FileMark(array(file, 8));
    file.starts_with(&mark.file_header()).then_some(mark)
}

/// For a file whose header is damaged. The position of the first frame is fixed, so an answer cannot be there.
fn mark_of_first_frame(file: &[u8]) -> Option<FileMark> {
    let rest = &file[HEADER_LEN..];
    let mark = FileMark(*rest.first_chunk()?);
    FrameHeader::read(rest, HEADER_LEN as u64, mark).map(|_| mark)
}

/// Finds where the next frame may begin after a damaged one.
fn find_mark(file: &[u8], at: usize, mark: FileMark) -> Option<usize> {
    // The damaged frame may begin with the mark itself, so the search starts behind its first byte.
    let start = at + 1;
    let offset = file[start..].windows(mark.0.len()).position(|window| window == mark.0)?;
    Some(start + offset)
}

/// Whether a crash interrupted the append here: only the start of a frame is there, or zeros. A complete frame that
/// cannot be read counts as damaged instead, because its append may have been confirmed.
fn is_torn(rest: &[u8], position: u64, mark: FileMark) -> bool {
    let is_cut_short = |header: FrameHeader| rest.len() - HEADER_LEN < header.len + CHECK_LEN;
    rest.len() < HEADER_LEN || is_zero(rest) || FrameHeader::read(rest, position, mark).is_some_and(is_cut_short)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn check(position: u64, bytes: &[u8]) -> [u8; CHECK_LEN] {
    let mut hash = Sha256::new();
    hash.update(position.to_be_bytes());
    hash.update(bytes);
    array(&hash.finalize(), 0)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the range has N bytes")
}
