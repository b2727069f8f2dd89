use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use uuid::Uuid;

use crate::broker::Message;
use crate::error::{Error, ErrorKind, Result};
use crate::key::{Fingerprint, OperationId};
use crate::record::Timestamp;

/// Where messages go that nobody can process. A delivery is acknowledged only after its dead letter is confirmed.
///
/// Letters that an operator marks for a redrive come back as a [`Source`](crate::broker::Source) of their own, with a
/// worker of their own. Its acknowledgement removes the letter, unless the letter was written again since its delivery.
#[diagnostic::on_unimplemented(
    message = "`{Self}` takes no dead letters",
    label = "does not implement `DeadLetters`",
    note = "pass the dead letters of a store of `hapax::stores`, or implement `DeadLetters`"
)]
#[async_trait]
pub trait DeadLetters: fmt::Debug + Send + Sync + 'static {
    /// Writes dead letters durably. Returns one result for each, in their order. A letter with the id of an earlier one
    /// replaces it, and is no longer marked for a redrive.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`: writing the same letter again is safe.
    ///
    /// # Cancel safety
    /// If dropped, each letter may be written or not.
    async fn put(&self, letters: Vec<DeadLetter>) -> Vec<Result<()>>;
}

/// A message that nobody can process, and why.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Derived, so that a repeated letter replaces the first one.
    pub id: DeadLetterId,
    /// Why.
    pub reason: DeadReason,
    /// How many attempts failed; 0 if none was made.
    pub attempts: u32,
    /// The last error. None if nothing more is known than the reason.
    pub cause: Option<DeadCause>,
    /// The namespace of the worker.
    pub namespace: Arc<str>,
    /// The name of the source and its group.
    pub source: Arc<str>,
    /// The operation. None if the message has no usable key.
    pub operation: Option<OperationId>,
    /// The fingerprint of the payload.
    pub fingerprint: Fingerprint,
    /// The message.
    pub message: Arc<Message>,
    /// When the worker gave up, by its own clock.
    pub at: Timestamp,
}

/// The id of a dead letter, a version 8 UUID that is derived from what it is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeadLetterId(pub(crate) Uuid);

impl DeadLetterId {
    /// The id with these bytes, which were derived before.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The 16 bytes of the UUID.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

/// Reads a UUID, as `Display` prints it.
impl FromStr for DeadLetterId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = |error| Error::new(ErrorKind::Invalid, "the id of a dead letter is a UUID").caused_by(error);
        Uuid::try_parse(text).map(Self).map_err(invalid)
    }
}

impl fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The last error of a message that nobody can process, as a text for people. It has at most [`DeadCause::MAX_LEN`]
/// bytes and no control character.
///
/// It is logged, and stored with the letter: it must have neither a key nor a part of a payload.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeadCause(Arc<str>);

impl DeadCause {
    /// The longest text, in bytes. The rest of a longer one is cut off.
    pub const MAX_LEN: usize = 1024;

    /// A cause with this text. A control character becomes a space. None without a text.
    ///
    /// ```
    /// use hapax::broker::DeadCause;
    ///
    /// let cause = DeadCause::new("the target answered 503\nService Unavailable");
    /// assert_eq!(cause.unwrap().as_str(), "the target answered 503 Service Unavailable");
    /// assert_eq!(DeadCause::new(" "), None);
    /// ```
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = &text[..text.floor_char_boundary(Self::MAX_LEN)];
        let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        // A control character has at most two bytes, and the space in its place has one.
        (!plain.is_empty()).then(|| Self(plain.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeadCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why nobody can process a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeadReason {
    /// The message has no key under any of the rules.
    KeyMissing,
    /// The message has a key that cannot be used, or two of them.
    KeyMalformed,
    /// The tenant cannot be told from the message.
    CallerUnknown,
    /// Its key was used for another payload.
    KeyReused,
    /// The handler gave a final answer: it had no effect and never will.
    Rejected,
    /// Too many attempts failed.
    AttemptsExhausted,
    /// Whether it had its effect is unknown. An operator finds out.
    OutcomeUnknown,
    /// Its outcome was unknown, and an operator has found out that it had no effect. Its redrive may run it again.
    NotDone,
    /// An operator has found out that it was processed. Its redrive records that where the worker keeps records, and
    /// removes the letter.
    Done,
    /// Its record cannot be read.
    RecordDamaged,
    /// The message cannot be read: its [`damage`](Message::damage) tells why.
    Unreadable,
    /// The broker has delivered the message so often that it would soon drop it.
    DeliveriesExhausted,
}

impl DeadReason {
    /// Every reason.
    pub const ALL: [Self; 12] = [
        Self::KeyMissing,
        Self::KeyMalformed,
        Self::CallerUnknown,
        Self::KeyReused,
        Self::Rejected,
        Self::AttemptsExhausted,
        Self::OutcomeUnknown,
        Self::NotDone,
        Self::Done,
        Self::RecordDamaged,
        Self::Unreadable,
        Self::DeliveriesExhausted,
    ];

    /// The name that operators and metrics see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KeyMissing => "key-missing",
            Self::KeyMalformed => "key-malformed",
            Self::CallerUnknown => "caller-unknown",
            Self::KeyReused => "key-reused",
            Self::Rejected => "rejected",
            Self::AttemptsExhausted => "attempts-exhausted",
            Self::OutcomeUnknown => "outcome-unknown",
            Self::NotDone => "not-done",
            Self::Done => "done",
            Self::RecordDamaged => "record-damaged",
            Self::Unreadable => "unreadable",
            Self::DeliveriesExhausted => "deliveries-exhausted",
        }
    }

    /// Whether the message may have had its effect, so that it must not run again before somebody finds out.
    pub const fn is_unknown(self) -> bool {
        matches!(self, Self::OutcomeUnknown | Self::RecordDamaged)
    }

    /// The reason with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }
}
