use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::broker::{DeadLetter, DeadLetterId, DeadLetters, DeadReason};
use crate::error::{Error, ErrorKind, Result};
use crate::key::OperationId;
use crate::record::Timestamp;
use crate::store::Finding;

/// Dead letters that are kept: operators list them and mark them for a redrive, and the worker of their source takes
/// the marked ones.
#[diagnostic::on_unimplemented(
    message = "`{Self}` keeps no dead letters",
    label = "does not implement `DeadLetterStore`",
    note = "pass the dead letters of a store of `hapax::stores`, or implement `DeadLetterStore`"
)]
#[async_trait]
pub trait DeadLetterStore: DeadLetters {
    /// Looks for causes that keep letters from being written although the store replies. Call it at the start, and once
    /// a minute.
    ///
    /// # Errors
    /// As a read of the store.
    ///
    /// # Cancel safety
    /// It changes nothing.
    async fn check(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    /// Returns at most `limit` letters behind the cursor, without their payloads, also those that cannot be decoded.
    /// Fewer than `limit` are the last ones. The letter that was written last is the last one. A letter that is
    /// written again while a caller pages may appear twice.
    ///
    /// # Errors
    /// - `Invalid` if another kind of store has returned the cursor.
    /// - As a read of the store.
    async fn list(&self, after: Option<&DeadCursor>, limit: usize) -> Result<Vec<ListedLetter>>;

    /// Returns one letter as a whole.
    ///
    /// # Errors
    /// As a read of the store. `Damaged` if the letter cannot be decoded.
    async fn find(&self, id: DeadLetterId) -> Result<Option<KeptLetter>>;

    /// Marks a letter for a redrive, with the word of an operator about its outcome or without one. Where the tables of
    /// a ledger lie beside the letters, the operation is no longer closed, and its attempts count from 0 again. The
    /// letter keeps its id and its place in the list. Nothing changes if the letter is marked already and has that
    /// word.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`: marking it again is safe.
    async fn mark(&self, id: DeadLetterId, seen: &SeenLetter, word: Option<LetterWord>) -> Result<LetterChange>;

    /// Uses up the word of an operator: a letter with this mark and the reason [`DeadReason::NotDone`] gets the reason
    /// [`DeadReason::OutcomeUnknown`], and a new mark. Returns the new mark. None if there is no such letter any more.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`: the word may be used up.
    async fn use_up_word(&self, id: DeadLetterId, marked_at: Timestamp) -> Result<Option<Timestamp>>;

    /// Removes a letter for good, because its message is not to be processed again.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`: removing it again is safe.
    async fn remove(&self, id: DeadLetterId, seen: &SeenLetter) -> Result<LetterChange>;

    /// Whether [`keys_with_letters`](Self::keys_with_letters) can tell. A worker parks keys only if it can.
    fn tells_ordering_keys(&self) -> bool;

    /// Returns those of the ordering keys that have a letter of this source. A worker that parks keys asks it.
    ///
    /// # Errors
    /// - `Invalid` if the store cannot tell.
    /// - As a read of the store.
    async fn keys_with_letters(&self, source: &str, keys: Vec<Bytes>) -> Result<Vec<Bytes>>;

    /// Takes at most `limit` marked letters of this source, the ones that were marked first. For the length of the
    /// lease, no other call takes them. Their marks stay: only [`finish`](Self::finish) and
    /// [`put`](DeadLetters::put) end a redrive. A letter that cannot be decoded is logged and left out. It is taken as
    /// well, so it is logged again only after the lease.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`: letters that were taken and not returned are free again after the lease.
    async fn take_marked(&self, source: &str, limit: usize, lease: Duration) -> Result<Vec<MarkedLetter>>;

    /// Extends the lease of taken letters. Does nothing with letters that are gone, not marked or given
    /// back.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`: repeating it is safe.
    async fn extend(&self, ids: &[DeadLetterId], lease: Duration) -> Result<()>;

    /// Gives letters back that were taken: nobody processes them, and they are free after this time. Does nothing with
    /// letters that are gone or not marked.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`: repeating it is safe.
    async fn postpone(&self, ids: &[DeadLetterId], by: Duration) -> Result<()>;

    /// Removes letters whose messages were processed: the id of each, and when it was marked. Does nothing with a
    /// letter that was written again since that mark, because its message is dead again.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`: repeating it is safe.
    async fn finish(&self, redriven: &[(DeadLetterId, Timestamp)]) -> Result<()>;
}

/// What an operator has seen of a letter, as [`ListedLetter`] and [`KeptLetter`] have it. A write that names it changes
/// nothing if the letter was written, marked or delivered with a word since: the operator decided about an earlier
/// attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenLetter {
    /// Names the write of the letter. Its text has a meaning for the store only, and has no dot.
    pub written: String,
    /// The mark of the letter.
    pub marked_at: Option<Timestamp>,
}

impl fmt::Display for SeenLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.marked_at {
            Some(marked_at) => write!(f, "{}.{}", self.written, marked_at.0),
            None => f.write_str(&self.written),
        }
    }
}

/// Reads what `Display` prints.
impl FromStr for SeenLetter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::new(ErrorKind::Invalid, "this is not what a list or a letter shows as `seen`");
        let (written, mark) = text.split_once('.').map_or((text, None), |(written, mark)| (written, Some(mark)));
        let marked_at = mark.map(|mark| mark.parse().map(Timestamp).map_err(|_| wrong())).transpose()?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if written.is_empty() || !written.chars().all(is_plain) {
            return Err(wrong());
        }
        Ok(Self { written: written.to_owned(), marked_at })
    }
}

/// The word of an operator who has found out whether a message had its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterWord {
    /// No attempt had an effect, or will have one. The message may run once more.
    NotDone,
    /// The message was processed. Its redrive does not run it, and removes the letter. A worker with records records
    /// that the message was processed where no record says so.
    Done,
}

impl LetterWord {
    /// The reason of a letter with this word.
    pub const fn reason(self) -> DeadReason {
        match self {
            Self::NotDone => DeadReason::NotDone,
            Self::Done => DeadReason::Done,
        }
    }

    /// The reasons that the word replaces. A letter with another reason keeps it: without an effect, it needs no word
    /// to run again.
    pub const fn replaces(self) -> &'static [DeadReason] {
        match self {
            Self::NotDone => &[DeadReason::OutcomeUnknown, DeadReason::RecordDamaged, DeadReason::Done],
            // Nothing can be recorded about a message that cannot be read.
            Self::Done => &[
                DeadReason::KeyMissing,
                DeadReason::KeyMalformed,
                DeadReason::CallerUnknown,
                DeadReason::KeyReused,
                DeadReason::Rejected,
                DeadReason::AttemptsExhausted,
                DeadReason::OutcomeUnknown,
                DeadReason::NotDone,
                DeadReason::RecordDamaged,
                DeadReason::Done,
            ],
        }
    }
}

/// The result of a write to a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterChange {
    /// The letter is as it was asked.
    Yes,
    /// There is no such letter.
    Missing,
    /// The letter has changed since it was seen. Nothing was written.
    Stale,
    /// A worker processes the message of the letter. Nothing was written. The letter is free after this time, unless
    /// the worker goes on or removes it.
    Taken(Timestamp),
}

/// A dead letter in a list: without its message. What cannot be read of a damaged letter is empty or 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedLetter {
    /// The id.
    pub id: DeadLetterId,
    /// Why the message is dead.
    pub reason: ListedReason,
    /// How many attempts failed.
    pub attempts: u32,
    /// The namespace of the worker.
    pub namespace: String,
    /// The name of the source and its group.
    pub source: String,
    /// The operation, if the message has a usable key.
    pub operation: Option<OperationId>,
    /// When the worker gave up.
    pub at: Timestamp,
    /// When an operator marked the letter for a redrive.
    pub marked_at: Option<Timestamp>,
    /// The length of the payload in bytes.
    pub size: u64,
    /// The state that a write to this letter must name.
    pub seen: SeenLetter,
    /// Where the list continues.
    pub cursor: DeadCursor,
}

/// The reason of a dead letter in a list, which also shows letters that this release cannot process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListedReason {
    /// A reason of this release.
    Known(DeadReason),
    /// Another release has written a reason with this name. Use that release.
    Unknown(String),
    /// The letter cannot be decoded.
    Damaged,
}

impl ListedReason {
    /// The reason with this name.
    pub fn from_name(name: String) -> Self {
        DeadReason::from_name(&name).map_or(Self::Unknown(name), Self::Known)
    }

    /// The name that operators see.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(reason) => reason.as_str(),
            Self::Unknown(name) => name,
            Self::Damaged => "damaged",
        }
    }
}

/// Whether it is this reason.
impl PartialEq<DeadReason> for ListedReason {
    fn eq(&self, reason: &DeadReason) -> bool {
        matches!(self, Self::Known(known) if known == reason)
    }
}

/// A dead letter as it is kept.
#[derive(Clone, Debug)]
pub struct KeptLetter {
    /// The letter.
    pub letter: DeadLetter,
    /// When an operator marked it for a redrive.
    pub marked_at: Option<Timestamp>,
    /// The state that a write to this letter must name.
    pub seen: SeenLetter,
}

/// A dead letter whose message is to be processed again.
#[derive(Clone, Debug)]
pub struct MarkedLetter {
    /// The letter.
    pub letter: DeadLetter,
    /// When an operator marked it.
    pub marked_at: Timestamp,
}

/// A place in the list of a [`DeadLetterStore`]. Its text has a meaning for that store only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadCursor(String);

impl DeadCursor {
    /// The cursor with this text, which a store has returned before.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeadCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
