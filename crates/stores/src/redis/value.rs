//! Between the machine's words and the server's: how a record is named, and what a reply shows of it.

use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::machine::{Change, Observed};
use hapax_core::{Error, ErrorKind, Holding, Phase, Record, RecordKey, Result, Seconds, State, Timestamp, Token};
use redis::Value;

use super::script::Reply;

/// The Redis key of a record: `hx:` and the record key.
pub(super) struct RecordName([u8; 19]);

impl RecordName {
    pub(super) fn of(rk: &RecordKey) -> Self {
        let mut name = *b"hx:0123456789abcdef";
        name[3..].copy_from_slice(rk.as_bytes());
        Self(name)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A lifetime as the server takes it, in milliseconds. It knows no life of zero.
pub(super) fn lifetime(change: &Change) -> Vec<u8> {
    millis(Seconds(change.lifetime.0.max(1)).into())
}

/// A span as the server takes it.
fn millis(span: Duration) -> Vec<u8> {
    span.as_millis().to_string().into()
}

/// When what was seen expires, as the server's `PEXPIRETIME` tells it: every write and every renewal changes that.
pub(super) fn expires(seen: &Observed) -> Vec<u8> {
    if seen.life_left >= FOREVER {
        return NEVER.to_string().into();
    }
    millis(seen.now.plus(seen.life_left).since(Timestamp(0)))
}

/// What the server says of the expiry of a key that somebody has made persistent.
const NEVER: i64 = -1;

/// The life of such a key: longer than any.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64 + 1);

/// What one look at a record shows: its value, its expiry in milliseconds and the server's clock.
pub(super) fn observed(rk: &RecordKey, look: &Reply) -> Result<Observed> {
    let [expires, seconds, micros] = look.rest.as_slice() else { return Err(not_understood()) };
    let now = instant(seconds, micros)?;
    match &look.word[..] {
        b"ABSENT" => Ok(nothing(now)),
        b"FOUND" => Ok(seen(look.record(rk)?, life_left(number(expires)?, now), now)),
        _ => Err(not_understood()),
    }
}

/// What is there has some life left.
fn life_left(expires: i64, now: Timestamp) -> Duration {
    if expires == NEVER {
        return FOREVER;
    }
    let expires = Duration::from_millis(u64::try_from(expires).unwrap_or(0));
    Timestamp::default().plus(expires).since(now).max(Duration::from_micros(1))
}

/// No mark is kept beside the records: what is known of tokens is what the record says.
fn seen(record: Record, life_left: Duration, now: Timestamp) -> Observed {
    let lease_left = match &record.state {
        State::Open(Phase::InProgress, holding) => lease_left(holding, life_left),
        State::Completed(_) | State::Open(Phase::Released | Phase::Indeterminate | Phase::Dead, _) => Duration::ZERO,
    };
    Observed { token_high_water: record.token, record: Some(record), lease_left, life_left, now }
}

/// The lease is the age of the time to live under the record's own lifetime. A clock that stepped back leaves more than a lease.
fn lease_left(holding: &Holding, life_left: Duration) -> Duration {
    let lifetime = Duration::from(Seconds(holding.lifetime.0.max(1)));
    (Duration::from(holding.lease) + life_left).saturating_sub(lifetime)
}

/// A record that is there for good, as the reply to a begin shows it: of its life only that it lasts.
pub(super) fn answered(record: Record, now: Timestamp) -> Observed {
    seen(record, Duration::from_secs(1), now)
}

/// That there is no record.
pub(super) fn nothing(now: Timestamp) -> Observed {
    Observed { record: None, lease_left: Duration::ZERO, life_left: Duration::ZERO, now, token_high_water: Token(0) }
}

/// The server's clock, as its `TIME` tells it.
pub(super) fn time(reply: Value) -> Result<Timestamp> {
    let Value::Array(parts) = reply else { return Err(not_understood()) };
    match parts.into_iter().map(text).collect::<Result<Vec<_>>>()?.as_slice() {
        [Some(seconds), Some(micros)] => instant(seconds, micros),
        [..] => Err(not_understood()),
    }
}

fn instant(seconds: &[u8], micros: &[u8]) -> Result<Timestamp> {
    let seconds = Timestamp::default().plus(Duration::from_secs(number(seconds)?));
    Ok(seconds.plus(Duration::from_micros(number(micros)?)))
}

fn number<N: FromStr>(digits: &[u8]) -> Result<N> {
    str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or_else(not_understood)
}

/// The bytes of a reply, or nothing.
pub(super) fn text(reply: Value) -> Result<Option<Bytes>> {
    if let Value::BulkString(bytes) = reply {
        return Ok(Some(bytes.into()));
    }
    if let Value::VerbatimString { text, .. } = reply {
        return Ok(Some(text.into()));
    }
    if reply == Value::Nil { Ok(None) } else { Err(not_understood()) }
}

pub(super) fn not_understood() -> Error {
    Error::new(ErrorKind::Unknown, "the server's reply is of another form than asked for")
}
