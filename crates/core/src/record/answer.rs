//! Recorded answers, and pointers to answers that lie outside of the store.
//!
//! ```text
//! byte 0  version = 1            the integer is big-endian
//!      1  length of the answer, 8
//!      9  SHA-256 of the answer, 32
//!     41  the path of the answer
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use sha2::{Digest, Sha256};

use super::encoding::{array, damaged};
use crate::error::Error;

/// A recorded answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The encoded answer, the same bytes in every store; or a pointer to it.
    pub answer: Bytes,
    /// Whether the answer is in the record.
    pub form: StoredAnswer,
    /// When the record will expire, in unix seconds by the clock of the attempt. It is for display, and each copy is
    /// given the same; the store's clock decides.
    pub expiry: u32,
}

/// Where a recorded answer is. Nothing in the bytes of an answer says it, so one that looks like a pointer is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StoredAnswer {
    /// In the record.
    #[default]
    Whole,
    /// Outside of the store. The record has an [`AnswerPointer`].
    Pointer,
}

impl Completion {
    /// An answer that is in the record.
    pub fn whole(answer: impl Into<Bytes>, expiry: u32) -> Self {
        Self { answer: answer.into(), form: StoredAnswer::Whole, expiry }
    }

    /// Whether this is the recorded answer, also if the record has only a pointer to it.
    pub fn holds(&self, answer: &[u8]) -> bool {
        match self.form {
            StoredAnswer::Whole => self.answer == answer,
            StoredAnswer::Pointer => AnswerPointer::decode(&self.answer).is_ok_and(|pointer| pointer.is_to(answer)),
        }
    }

    /// The length of the answer in bytes, wherever it is.
    ///
    /// # Errors
    /// `Damaged` if the pointer to it cannot be read.
    pub fn answer_len(&self) -> Result<u64, Error> {
        match self.form {
            StoredAnswer::Whole => Ok(self.answer.len() as u64),
            StoredAnswer::Pointer => AnswerPointer::decode(&self.answer).map(|pointer| pointer.length),
        }
    }
}

/// Says where an answer is that lies outside of the store, and which bytes it has.
///
/// ```
/// use hapax::AnswerPointer;
///
/// let pointer = AnswerPointer::new(b"charged", "answers/7");
/// assert_eq!(AnswerPointer::decode(&pointer.encode())?, pointer);
/// assert!(pointer.is_to(b"charged") && !pointer.is_to(b"refused"));
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerPointer {
    /// The length of the answer in bytes.
    pub length: u64,
    /// The SHA-256 of the answer.
    pub hash: [u8; 32],
    /// The path of the answer, as the store that keeps it names it.
    pub path: String,
}

const VERSION: u8 = 1;
const HASH_AT: usize = 9;
const PATH_AT: usize = 41;

impl AnswerPointer {
    /// A pointer to this answer at this path.
    pub fn new(answer: &[u8], path: impl Into<String>) -> Self {
        Self { length: answer.len() as u64, hash: Sha256::digest(answer).into(), path: path.into() }
    }

    /// Whether it points to this answer. The path does not count.
    pub fn is_to(&self, answer: &[u8]) -> bool {
        self.length == answer.len() as u64 && self.hash[..] == Sha256::digest(answer)[..]
    }

    /// The pointer as a record has it.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(PATH_AT + self.path.len());
        bytes.put_u8(VERSION);
        bytes.put_u64(self.length);
        bytes.put_slice(&self.hash);
        bytes.put_slice(self.path.as_bytes());
        bytes.freeze()
    }

    /// Reads a pointer in a record.
    ///
    /// # Errors
    /// `Damaged` if it is none, or of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let (Some((&VERSION, _)), Some((head, path))) = (bytes.split_first(), bytes.split_at_checked(PATH_AT)) else {
            return Err(damaged("a record has a pointer to an answer that this release cannot read"));
        };
        let path = std::str::from_utf8(path).map_err(|_| damaged("the path of an answer is no text"))?;
        Ok(Self { length: u64::from_be_bytes(array(head, 1)), hash: array(head, HASH_AT), path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(form: StoredAnswer, answer: Bytes) -> Completion {
        Completion { answer, form, expiry: 0 }
    }

    #[test]
    fn a_record_holds_an_answer_also_behind_a_pointer() {
        let pointer = AnswerPointer::new(b"charged 5", "p/7").encode();
        let far = completion(StoredAnswer::Pointer, pointer.clone());
        assert!(far.holds(b"charged 5") && !far.holds(b"charged 6") && !far.holds(&pointer));
        assert_eq!(far.answer_len().unwrap(), 9);
        // An answer that looks like a pointer is the answer.
        let near = completion(StoredAnswer::Whole, pointer.clone());
        assert!(near.holds(&pointer) && !near.holds(b"charged 5"));
        assert_eq!(near.answer_len().unwrap(), pointer.len() as u64);
    }

    #[test]
    fn what_is_no_pointer_is_damaged() {
        let pointer = AnswerPointer::new(b"charged 5", "p/7").encode();
        let mut later = pointer.to_vec();
        later[0] = 2;
        let mut binary = pointer.to_vec();
        binary.push(0xff);
        for bytes in [&pointer[..40], &[], &later, &binary] {
            assert!(AnswerPointer::decode(bytes).is_err(), "{bytes:?}");
            assert!(!completion(StoredAnswer::Pointer, Bytes::copy_from_slice(bytes)).holds(b"charged 5"));
        }
        assert_eq!(AnswerPointer::decode(&pointer[..41]).unwrap().path, "");
    }
}
