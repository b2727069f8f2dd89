//! What a store keeps for a record key, and its form in stores that keep one value per key.
//!
//! ```text
//! byte 0  version = 1            every integer is big-endian
//!      1  state
//!      2  codec (low 4 bits), takeover (high bit)
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
//! `check` is the start of SHA-256 over the record key and all of the header before it: a record that was damaged, or that
//! belongs to another key, is an error and never taken for absent. `tests/vectors/records.txt` holds golden records.

use std::fmt;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind};
use crate::key::{Fingerprint, RecordKey, Rule};

/// A fencing token: grows with every grant of a record key. Zero is no token.
///
/// ```
/// use hapax_core::Token;
///
/// /// Writes only for the newest attempt: what an earlier one sends late changes nothing.
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

/// 16 random bytes that name one attempt, the same for each repetition of its calls.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use hapax_core::Owner;
/// use hapax_core::runtime::{Runtime, Tokio};
///
/// let mut bytes = [0; 16];
/// Tokio::current().fill_random(&mut bytes);
/// // Drawn once for an attempt: it is what tells a repeated begin from somebody else's.
/// let owner = Owner(bytes);
/// # assert_ne!(owner, Owner([0; 16]));
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(pub [u8; 16]);

/// Tells owners apart in a trace without printing all of them.
impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// An instant on a store's clock, in microseconds since the unix epoch.
///
/// ```
/// use std::time::Duration;
/// use hapax_core::Timestamp;
///
/// let begun = Timestamp(1_800_000_000_000_000);
/// let ended = begun.plus(Duration::from_millis(1500));
/// assert_eq!(ended.since(begun), Duration::from_millis(1500));
/// assert_eq!(ended.seconds(), 1_800_000_001);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// This much later.
    #[must_use]
    pub fn plus(self, later: Duration) -> Self {
        Self(self.0.saturating_add(micros(later)))
    }

    /// The time since `earlier`, zero if that is in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Whole unix seconds, as a header shows them.
    pub fn seconds(self) -> u32 {
        u32::try_from(self.0 / 1_000_000).unwrap_or(u32::MAX)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A lease as a record carries it, in milliseconds.
///
/// ```
/// use std::time::Duration;
/// use hapax_core::Millis;
///
/// assert_eq!(Duration::from(Millis(30_000)), Duration::from_secs(30));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u32);

/// A lifetime as a record carries it, in seconds.
///
/// ```
/// use hapax_core::{Millis, Seconds};
///
/// // What was released must outlive requests that are still under way.
/// let lifetime = Seconds(1).max(Seconds::covering(Millis(1_500)));
/// assert_eq!(lifetime, Seconds(2));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(pub u32);

impl Seconds {
    /// At least as long as this lease.
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

/// What is known of one record key. It outlives its lease, so a lapse never erases that an attempt existed.
///
/// ```
/// use hapax_core::{Completion, Fingerprint, Record, RecordKey, State, Token};
///
/// let rk = RecordKey::from_bytes([7; 16]);
/// let state = State::Completed(Completion { answer: "charged".into(), expiry: 1_800_000_000 });
/// let record = Record { token: Token(1), fingerprint: Fingerprint::NONE, state };
///
/// let value = record.encode(&rk);
/// assert_eq!(Record::decode(&rk, &value)?, record);
/// assert!(Record::decode(&RecordKey::from_bytes([8; 16]), &value).is_err(), "it belongs to another key");
/// # Ok::<(), hapax_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The token of the grant that brought the record to this state.
    pub token: Token,
    /// The payload the record was made for.
    pub fingerprint: Fingerprint,
    /// Where the operation stands.
    pub state: State,
}

/// Where an operation stands.
///
/// ```
/// use hapax_core::{Phase, State};
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
    /// The effect happened and this is the answer.
    Completed(Completion),
    /// No answer is recorded. The phase says what is known; the holding names the latest attempt.
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

/// Who holds a record, or held it last.
///
/// ```
/// use hapax_core::{Holding, Millis, Owner, Seconds};
///
/// let holding =
///     Holding { owner: Owner([1; 16]), attempt: 1, takeover: false, lease: Millis(30_000), lifetime: Seconds(3600) };
/// assert!(!holding.abandoned());
/// // An attempt that fails without knowing what it did leaves this behind.
/// assert!(Holding { lease: Millis(0), ..holding }.abandoned());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The attempt that was granted.
    pub owner: Owner,
    /// How many grants there have been, from 1; stays at the largest number when it gets there.
    pub attempt: u16,
    /// Whether the grant came after a lapse: the attempt before it may have had an effect.
    pub takeover: bool,
    /// How long the grant is believed without renewal; 0 once it was abandoned.
    pub lease: Millis,
    /// How long the record lives after it was last written or renewed.
    pub lifetime: Seconds,
}

impl Holding {
    /// Whether the grant was given up for good: lapsed, and no late renewal revives it.
    pub fn abandoned(&self) -> bool {
        self.lease == Millis(0)
    }
}

/// A recorded answer.
///
/// ```
/// use hapax_core::Completion;
///
/// /// The answer, and until when it is given, for a header.
/// fn shown(completion: &Completion) -> (&[u8], String) {
///     (&completion.answer, format!("until {} s after the epoch", completion.expiry))
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The answer as the gate was given it; the same bytes in every store.
    pub answer: Bytes,
    /// When the record will expire, in unix seconds by the writer's clock. Shown, never decided on.
    pub expiry: u32,
}

impl Phase {
    /// The phase with this number in stored forms; `None` for the number of a completed record.
    ///
    /// # Errors
    /// `Damaged` for a number that stands for no state.
    pub fn from_stored(number: u8) -> Result<Option<Self>, Error> {
        match number {
            1 => Ok(Some(Self::InProgress)),
            State::COMPLETED => Ok(None),
            3 => Ok(Some(Self::Released)),
            4 => Ok(Some(Self::Indeterminate)),
            5 => Ok(Some(Self::Dead)),
            _ => Err(damaged("a record is in no known state")),
        }
    }
}

impl State {
    /// The number of a completed record in stored forms. Other records are stored with the number of their [`Phase`].
    const COMPLETED: u8 = 2;

    /// The number of this state in stored forms.
    pub fn stored_number(&self) -> u8 {
        self.phase().map_or(Self::COMPLETED, |phase| phase as u8)
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

const VERSION: u8 = 1;
const TAKEOVER: u8 = 0x80;
const HELD_LEN: usize = 58;
const COMPLETED_LEN: usize = 36;
const CHECK_LEN: usize = 8;

impl Record {
    /// The record as one value, bound to its key.
    pub fn encode(&self, rk: &RecordKey) -> Bytes {
        let answer: &[u8] = match &self.state {
            State::Completed(completion) => &completion.answer,
            State::Open(..) => &[],
        };
        let takeover = self.state.holding().is_some_and(|holding| holding.takeover);
        let mut value = BytesMut::with_capacity(HELD_LEN.max(COMPLETED_LEN + answer.len()));
        value.put_u8(VERSION);
        value.put_u8(self.state.stored_number());
        value.put_u8(if takeover { TAKEOVER } else { 0 });
        value.put_u8(self.fingerprint.rule().0);
        value.put_u64(self.token.0);
        value.put_slice(self.fingerprint.as_bytes());
        match &self.state {
            State::Completed(completion) => value.put_u32(completion.expiry),
            State::Open(_, holding) => {
                value.put_slice(&holding.owner.0);
                value.put_u32(holding.lease.0);
                value.put_u32(holding.lifetime.0);
                value.put_u16(holding.attempt);
            }
        }
        let check = check(rk, &value);
        value.put_slice(&check);
        value.put_slice(answer);
        value.freeze()
    }

    /// Reads a record back.
    ///
    /// # Errors
    /// `Damaged` for a value that is cut short, altered, of an unknown version, or stored under another key.
    pub fn decode(rk: &RecordKey, value: &Bytes) -> Result<Self, Error> {
        if value.first().is_some_and(|version| *version != VERSION) {
            return Err(damaged(
                "a record has a version that this release does not know; read it with the release that wrote it",
            ));
        }
        let phase = Phase::from_stored(*value.get(1).ok_or_else(|| damaged("a record is cut short"))?)?;
        let completed = phase.is_none();
        let header_len = if completed { COMPLETED_LEN } else { HELD_LEN };
        if value.len() < header_len || (!completed && value.len() > HELD_LEN) {
            return Err(damaged("a record has the wrong length for its state"));
        }
        let (header, stored_check) = value[..header_len].split_at(header_len - CHECK_LEN);
        if check(rk, header) != stored_check {
            return Err(damaged("a record was altered, or belongs to another key"));
        }
        let flags = header[2];
        if flags & !TAKEOVER != 0 || (completed && flags != 0) {
            return Err(damaged("a record has a codec or flag that this release does not know"));
        }
        let state = match phase {
            None => State::Completed(Completion {
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

fn check(rk: &RecordKey, header: &[u8]) -> [u8; CHECK_LEN] {
    let mut hash = Sha256::new();
    hash.update(rk.as_bytes());
    hash.update(header);
    array(&hash.finalize(), 0)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the range has N bytes")
}

fn damaged(message: &'static str) -> Error {
    Error::new(ErrorKind::Damaged, message)
}
