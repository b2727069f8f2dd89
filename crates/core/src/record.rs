//! Records, and their binary form in stores that keep one value per key.
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
//! `check` is the first 8 bytes of SHA-256 over the record key, the header before it and the answer. Stores that keep a
//! record in columns keep the same 8 bytes in a column: [`Record::check`]. A damaged record, or a record of another
//! key, is an error and never treated as absent. `tests/vectors/records.txt` contains golden records.

use std::fmt;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use sha2::{Digest, Sha256};

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind};
use crate::key::{Fingerprint, RecordKey, Rule};

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
/// let state = State::Completed(Completion { answer: "charged".into(), expiry: 1_800_000_000 });
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

/// A recorded answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The encoded answer, the same bytes in every store.
    pub answer: Bytes,
    /// When the record will expire, in unix seconds by the clock of the attempt. It is for display, and each copy is
    /// given the same; the store's clock decides.
    pub expiry: u32,
}

impl Phase {
    /// The phase with this number in stored forms; `None` for the number of a completed record.
    ///
    /// # Errors
    /// `Damaged` for a number that no state has.
    pub fn from_stored(number: u8) -> Result<Option<Self>, Error> {
        match number {
            1 => Ok(Some(Self::InProgress)),
            State::COMPLETED => Ok(None),
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
    ///     state: State::Completed(Completion { answer: answer.into(), expiry: 1_800_000_000 }),
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
        header.put_u8(self.state.stored_number());
        header.put_u8(if takeover { TAKEOVER } else { 0 });
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
        let phase = Phase::from_stored(*value.get(1).ok_or_else(|| damaged("a record is truncated"))?)?;
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

fn check(rk: &RecordKey, header: &[u8], answer: &[u8]) -> [u8; CHECK_LEN] {
    let mut hash = Sha256::new();
    hash.update(rk.as_bytes());
    hash.update(header);
    if !Mutant::AnswerUnchecked.is_on() {
        hash.update(answer);
    }
    array(&hash.finalize(), 0)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
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

fn damaged(message: &'static str) -> Error {
    Error::new(ErrorKind::Damaged, message)
}
