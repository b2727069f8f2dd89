//! The binary form of records in stores that keep one value per key.
//!
//! ```text
//! byte 0  version = 1            every integer is big-endian
//!      1  state
//!      2  codec (low 4 bits): 1 if the answer is a pointer; takeover (high bit)
//!      3  fingerprint rule
//!      4  token, 8
//!     12  fingerprint, 12
//!
//!         unless Completed                     Completed
//!     24  owner, 16                        24  expiry in unix seconds, 4
//!     40  lease in ms, 4                   28  check, 8
//!     44  lifetime in s, 4                 36  the answer
//!     48  attempt, 2
//!     50  check, 8
//! ```
//!
//! `check` is the first 8 bytes of SHA-256 over the record key, the header before it and the answer. Stores that keep a
//! record in columns keep the same 8 bytes in a column: [`Record::check`]. A damaged record, or a record of another
//! key, is an error and never treated as absent. `tests/vectors/records.txt` contains golden records.

use bytes::{BufMut, Bytes, BytesMut};
use sha2::{Digest, Sha256};

use super::{Completion, Holding, Millis, Owner, Phase, Record, Seconds, State, StoredAnswer, Token};
use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind};
use crate::key::{Fingerprint, RecordKey, Rule};

const VERSION: u8 = 1;
const TAKEOVER: u8 = 0x80;
const POINTER: u8 = 1;
const HELD_LEN: usize = 58;
const COMPLETED_LEN: usize = 36;
const CHECK_LEN: usize = 8;

impl Record {
    /// Encodes the record as one value, bound to its record key.
    pub fn encode(&self, rk: &RecordKey) -> Bytes {
        let answer = self.answer();
        let mut value = BytesMut::with_capacity(HELD_LEN.max(COMPLETED_LEN + answer.len()));
        self.put_header(&mut value);
        let check = check(rk, &value, answer);
        value.put_slice(&check);
        value.put_slice(answer);
        value.freeze()
    }

    /// The check of the record under this key, for stores that keep a record in columns. It covers the record key and
    /// every field of the record, the answer included. It covers no instant, so a renewal does not change it.
    ///
    /// ```
    /// use hapax::{Completion, Fingerprint, Record, RecordKey, State, Token};
    ///
    /// let rk = RecordKey::from_bytes([7; 16]);
    /// let completed = |answer: &'static str| Record {
    ///     token: Token(1),
    ///     fingerprint: Fingerprint::NONE,
    ///     state: State::Completed(Completion::whole(answer, 1_800_000_000)),
    /// };
    /// // Store this column with the others, and compare it whenever the row is read.
    /// let column = completed("charged 5").check(&rk);
    /// assert_eq!(completed("charged 5").check(&rk), column);
    /// assert_ne!(completed("charged 9").check(&rk), column, "the row was altered");
    /// ```
    pub fn check(&self, rk: &RecordKey) -> [u8; CHECK_LEN] {
        let mut header = [0; HELD_LEN];
        let mut rest = &mut header[..];
        self.put_header(&mut rest);
        let unused = rest.len();
        check(rk, &header[..HELD_LEN - unused], self.answer())
    }

    /// Writes the header up to its check.
    fn put_header(&self, header: &mut impl BufMut) {
        let takeover = self.state.holding().is_some_and(|holding| holding.takeover);
        header.put_u8(VERSION);
        header.put_u8(self.state.header_number());
        header.put_u8(match self.state.form() {
            StoredAnswer::Pointer => POINTER,
            StoredAnswer::Whole => u8::from(takeover) * TAKEOVER,
        });
        header.put_u8(self.fingerprint.rule().0);
        header.put_u64(self.token.0);
        header.put_slice(self.fingerprint.as_bytes());
        match &self.state {
            State::Completed(completion) => header.put_u32(completion.expiry),
            State::Open(_, holding) => {
                header.put_slice(&holding.owner.0);
                header.put_u32(holding.lease.0);
                header.put_u32(holding.lifetime.0);
                header.put_u16(holding.attempt);
            }
        }
    }

    /// The recorded answer; empty while there is none.
    fn answer(&self) -> &[u8] {
        match &self.state {
            State::Completed(completion) => &completion.answer,
            State::Open(..) => &[],
        }
    }

    /// Decodes a value that [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// `Damaged` for a value that is truncated, altered, of an unknown version, or stored under another key.
    pub fn decode(rk: &RecordKey, value: &Bytes) -> Result<Self, Error> {
        check_version(value)?;
        let number = *value.get(1).ok_or_else(|| damaged("a record is truncated"))?;
        if number == State::POINTED {
            return Err(damaged("a record has an unknown state"));
        }
        let phase = Phase::from_stored(number)?;
        let completed = phase.is_none();
        let header_len = if completed { COMPLETED_LEN } else { HELD_LEN };
        // Only a completed record has an answer behind its header.
        if value.len() < header_len || (!completed && value.len() > HELD_LEN) {
            return Err(damaged("a record has the wrong length for its state"));
        }
        let (header, stored_check) = value[..header_len].split_at(header_len - CHECK_LEN);
        // Before the flags and fields: an altered header must not be reported as written by a later release.
        if check(rk, header, &value[header_len..]) != stored_check {
            return Err(damaged("a record was altered, or belongs to another key"));
        }
        let flags = header[2];
        let form = if flags == POINTER { StoredAnswer::Pointer } else { StoredAnswer::Whole };
        if flags & !(if completed { POINTER } else { TAKEOVER }) != 0 {
            return Err(damaged("a record has a codec or flag that this release does not know"));
        }
        let state = match phase {
            None => State::Completed(Completion {
                form,
                expiry: u32::from_be_bytes(array(header, 24)),
                answer: value.slice(header_len..),
            }),
            Some(phase) => State::Open(
                phase,
                Holding {
                    owner: Owner(array(header, 24)),
                    lease: Millis(u32::from_be_bytes(array(header, 40))),
                    lifetime: Seconds(u32::from_be_bytes(array(header, 44))),
                    attempt: u16::from_be_bytes(array(header, 48)),
                    takeover: flags & TAKEOVER != 0,
                },
            ),
        };
        Ok(Self {
            token: Token(u64::from_be_bytes(array(header, 4))),
            fingerprint: Fingerprint::from_parts(Rule(header[3]), array(header, 12)),
            state,
        })
    }
}

fn check(rk: &RecordKey, header: &[u8], answer: &[u8]) -> [u8; CHECK_LEN] {
    let mut hash = Sha256::new();
    hash.update(rk.as_bytes());
    hash.update(header);
    if !Mutant::AnswerUnchecked.is_on() {
        hash.update(answer);
    }
    array(&hash.finalize(), 0)
}

pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the range has N bytes")
}

fn check_version(value: &[u8]) -> Result<(), Error> {
    match value.first() {
        None | Some(&VERSION) => Ok(()),
        // Records of later releases begin with one of these. Any other byte is no version.
        Some(2..=15) => Err(damaged(
            "a record has a version that this release does not know; read it with the release that wrote it",
        )),
        Some(_) => Err(damaged("a record begins with no version: it was altered, or another program wrote it")),
    }
}

pub(super) fn damaged(message: &'static str) -> Error {
    Error::new(ErrorKind::Damaged, message)
}
