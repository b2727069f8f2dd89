//! Records, and what is in them.
//!
//! ```text
//! answer.rs    recorded answers, and pointers to those that lie outside of the store
//! encoding.rs  the binary form, byte by byte
//! ```

mod answer;
mod encoding;

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::key::Fingerprint;

use encoding::damaged;

pub use answer::{AnswerPointer, Completion, StoredAnswer};

/// A fencing token: it grows with every grant of a record key. Zero is not a token.
///
/// ```
/// use hapax::Token;
///
/// /// Writes only for the newest attempt; a late write of an earlier attempt is refused.
/// fn write(balance: &mut i64, newest: &mut Token, token: Token, amount: i64) -> bool {
///     if token < *newest {
///         return false;
///     }
///     (*balance, *newest) = (amount, token);
///     true
/// }
///
/// let (mut balance, mut newest) = (0, Token(0));
/// assert!(write(&mut balance, &mut newest, Token(8), 5));
/// assert!(!write(&mut balance, &mut newest, Token(7), 6));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// 16 random bytes that identify one attempt. Every repetition of the attempt's calls uses the same owner, so a store
/// can tell a repeated begin from the begin of another attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(pub [u8; 16]);

/// Prints the first 8 hexadecimal digits.
impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A time on a store's clock, in microseconds since the unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time this much later.
    #[must_use]
    pub fn plus(self, later: Duration) -> Self {
        Self(self.0.saturating_add(micros(later)))
    }

    /// The duration since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Whole unix seconds, for headers.
    pub fn seconds(self) -> u32 {
        u32::try_from(self.0 / 1_000_000).unwrap_or(u32::MAX)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A lease in a record, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u32);

/// A lifetime in a record, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(pub u32);

impl Seconds {
    /// The smallest lifetime that is at least as long as this lease.
    pub const fn covering(Millis(ms): Millis) -> Self {
        Self(ms.div_ceil(1000))
    }
}

impl From<Millis> for Duration {
    fn from(Millis(ms): Millis) -> Self {
        Self::from_millis(ms.into())
    }
}

impl From<Seconds> for Duration {
    fn from(Seconds(s): Seconds) -> Self {
        Self::from_secs(s.into())
    }
}

/// What a store knows of one operation. A record outlives its lease, so a lapse never erases that an attempt existed.
///
/// ```
/// use hapax::{Completion, Fingerprint, Record, RecordKey, State, Token};
///
/// let rk = RecordKey::from_bytes([7; 16]);
/// let state = State::Completed(Completion::whole("charged", 1_800_000_000));
/// let record = Record { token: Token(1), fingerprint: Fingerprint::NONE, state };
///
/// let value = record.encode(&rk);
/// assert_eq!(Record::decode(&rk, &value)?, record);
/// assert!(Record::decode(&RecordKey::from_bytes([8; 16]), &value).is_err(), "a record of another key");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The token of the grant that led to this state.
    pub token: Token,
    /// The fingerprint of the operation's payload.
    pub fingerprint: Fingerprint,
    /// The state of the operation.
    pub state: State,
}

/// The state of an operation.
///
/// ```
/// use hapax::{Phase, State};
///
/// fn describe(state: &State) -> String {
///     match state {
///         State::Completed(completion) => format!("completed with an answer of {} bytes", completion.answer.len()),
///         State::Open(Phase::InProgress, holding) => format!("attempt {} is running or crashed", holding.attempt),
///         State::Open(Phase::Released, _) => "did not happen; the next begin is granted".into(),
///         State::Open(Phase::Indeterminate, _) => "outcome unknown; an operator has to resolve it".into(),
///         State::Open(Phase::Dead, holding) => format!("closed after {} attempts", holding.attempt),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The effect happened, and this is the answer.
    Completed(Completion),
    /// Open: no answer is recorded, also if the record is dead. The phase says what is known; the holding names the
    /// latest attempt.
    Open(Phase, Holding),
}

/// What is known about an operation that has no recorded answer. The discriminants are the numbers in stored forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Phase {
    /// An attempt was granted. It is running, or its lease expired before it reported an outcome.
    InProgress = 1,
    /// Known not applied: the next begin is granted.
    Released = 3,
    /// Outcome unknown: the effect may or may not have happened.
    Indeterminate = 4,
    /// Closed after too many attempts.
    Dead = 5,
}

/// The latest attempt of a record, its lease and the record's lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The attempt.
    pub owner: Owner,
    /// The number of grants so far, from 1. At 65,535 it stops growing.
    pub attempt: u16,
    /// Whether the grant followed a lapse: the attempt before it may have had an effect.
    pub takeover: bool,
    /// The lease: how long the grant is valid without a renewal. Zero once the grant is abandoned.
    pub lease: Millis,
    /// How long the record exists after it was last written or renewed.
    pub lifetime: Seconds,
}

impl Holding {
    /// Whether the attempt abandoned its grant: the lease has lapsed for good, and a late renewal fails.
    pub fn is_abandoned(&self) -> bool {
        self.lease == Millis(0)
    }
}

impl Phase {
    /// The phase with this number in stored forms; `None` for the number of a completed record.
    ///
    /// # Errors
    /// `Damaged` for a number that no state has.
    pub fn from_stored(number: u8) -> Result<Option<Self>, Error> {
        match number {
            1 => Ok(Some(Self::InProgress)),
            State::COMPLETED | State::POINTED => Ok(None),
            3 => Ok(Some(Self::Released)),
            4 => Ok(Some(Self::Indeterminate)),
            5 => Ok(Some(Self::Dead)),
            _ => Err(damaged("a record has an unknown state")),
        }
    }
}

impl State {
    /// The number of a completed record in stored forms. Other records are stored with the number of their [`Phase`].
    const COMPLETED: u8 = 2;

    /// The number of a completed record with a pointer, where the record is stored in columns.
    const POINTED: u8 = 6;

    /// The number of this state in a column.
    pub fn stored_number(&self) -> u8 {
        match (self, self.form()) {
            (Self::Completed(_), StoredAnswer::Pointer) => Self::POINTED,
            (Self::Completed(_), StoredAnswer::Whole) | (Self::Open(..), _) => self.header_number(),
        }
    }

    /// The form of the answer of a completed record, from the number of its state in a column.
    pub fn stored_form(number: u8) -> StoredAnswer {
        if number == Self::POINTED { StoredAnswer::Pointer } else { StoredAnswer::Whole }
    }

    /// The number of this state in the header.
    fn header_number(&self) -> u8 {
        self.phase().map_or(Self::COMPLETED, |phase| phase as u8)
    }

    fn form(&self) -> StoredAnswer {
        match self {
            Self::Completed(completion) => completion.form,
            Self::Open(..) => StoredAnswer::Whole,
        }
    }

    /// The phase; `None` once an answer is recorded.
    pub fn phase(&self) -> Option<Phase> {
        match self {
            Self::Completed(_) => None,
            Self::Open(phase, _) => Some(*phase),
        }
    }

    /// The latest attempt; `None` once an answer is recorded.
    pub fn holding(&self) -> Option<&Holding> {
        match self {
            Self::Completed(_) => None,
            Self::Open(_, holding) => Some(holding),
        }
    }
}
