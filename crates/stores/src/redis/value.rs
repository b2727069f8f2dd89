//! Translates between the protocol and the server: key names, arguments and replies.

use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::machine::{Change, Observed};
use hapax_core::{Error, ErrorKind, Holding, Phase, Record, RecordKey, Result, Seconds, State, Timestamp, Token};
use redis::Value;

use super::call_error::{self, RedisCallError};

/// The Redis key of a record: `hx:` and the record key.
pub(super) struct RedisKey([u8; 19]);

impl RedisKey {
    /// Matches the keys of records, and hardly any other key.
    pub(super) const PATTERN: &str = "hx:????????????????";

    /// The record whose key this is; `None` for another key.
    pub(super) fn record_key(name: &[u8]) -> Option<RecordKey> {
        Some(RecordKey::from_bytes(name.strip_prefix(b"hx:")?.try_into().ok()?))
    }

    pub(super) fn of(rk: &RecordKey) -> Self {
        let mut name = *b"hx:0123456789abcdef";
        name[3..].copy_from_slice(rk.as_bytes());
        Self(name)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The `PX` argument of a change. The server refuses a lifetime of zero.
pub(super) fn lifetime_argument(change: &Change) -> Vec<u8> {
    millis(Seconds(change.lifetime.0.max(1)).into())
}

fn millis(span: Duration) -> Vec<u8> {
    span.as_millis().to_string().into()
}

/// The observed record's `PEXPIRETIME`. Every write and every renewal changes it, so `swap.lua` detects changes by it.
pub(super) fn expiry_argument(seen: &Observed) -> Vec<u8> {
    if seen.life_left >= FOREVER {
        return NEVER.to_string().into();
    }
    millis(seen.now.plus(seen.life_left).since(Timestamp(0)))
}

/// `PEXPIRETIME` of a key without expiry, which only an operator's `PERSIST` leads to.
const NEVER: i64 = -1;

/// The remaining lifetime reported for a key without expiry: longer than any that a record can have.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64 + 1);

/// The reply of a script.
pub(super) struct ScriptReply {
    /// The outcome, such as `DONE`; each script lists its own.
    pub(super) outcome: Bytes,
    /// The stored record; empty if there is no record.
    pub(super) stored: Bytes,
    /// The remaining parts. Only `read.lua` returns any.
    pub(super) rest: Vec<Bytes>,
}

impl ScriptReply {
    /// Decodes the stored record.
    pub(super) fn record(&self, rk: &RecordKey) -> Result<Record> {
        Record::decode(rk, &self.stored)
    }
}

/// Reads the reply of `read.lua`: the record, its expiry in milliseconds and the server's clock.
pub(super) fn parse_read(rk: &RecordKey, reply: &ScriptReply) -> Result<Observed> {
    let [expires, seconds, micros] = reply.rest.as_slice() else { return Err(unexpected_reply()) };
    let now = parse_instant(seconds, micros)?;
    match &reply.outcome[..] {
        b"ABSENT" => Ok(observe_absent(now)),
        b"FOUND" => Ok(observe(reply.record(rk)?, life_left(parse_number(expires)?, now), now)),
        _ => Err(unexpected_reply()),
    }
}

/// The remaining lifetime, never zero: the server returned the record, so it had not expired.
fn life_left(expires: i64, now: Timestamp) -> Duration {
    if expires == NEVER {
        return FOREVER;
    }
    let expires = Duration::from_millis(u64::try_from(expires).unwrap_or(0));
    Timestamp::default().plus(expires).since(now).max(Duration::from_micros(1))
}

/// An observation of a record. Redis keeps no mark across keys, so the record's own token stands in for it.
fn observe(record: Record, life_left: Duration, now: Timestamp) -> Observed {
    let lease_left = match &record.state {
        State::Open(Phase::InProgress, holding) => lease_left(holding, life_left),
        State::Completed(_) | State::Open(Phase::Released | Phase::Indeterminate | Phase::Dead, _) => Duration::ZERO,
    };
    Observed { token_high_water: record.token, record: Some(record), lease_left, life_left, now }
}

/// The time to live shrinks with the lease: `lease - (lifetime - life left)`. After the server's clock stepped back the
/// result is longer than the lease.
fn lease_left(holding: &Holding, life_left: Duration) -> Duration {
    let lifetime = Duration::from(Seconds(holding.lifetime.0.max(1)));
    (Duration::from(holding.lease) + life_left).saturating_sub(lifetime)
}

/// An observation of a record in a reply that does not contain the remaining lifetime, so one second stands in for it:
/// the record was live, and neither a replay nor a completion depends on how long it still lives.
pub(super) fn observe_completed(record: Record, now: Timestamp) -> Observed {
    observe(record, Duration::from_secs(1), now)
}

/// An observation that there is no record.
pub(super) fn observe_absent(now: Timestamp) -> Observed {
    Observed { record: None, lease_left: Duration::ZERO, life_left: Duration::ZERO, now, token_high_water: Token(0) }
}

/// Reads the reply of `TIME`.
pub(super) fn parse_time(reply: Value) -> Result<Timestamp> {
    let Value::Array(parts) = reply else { return Err(unexpected_reply()) };
    match parts.into_iter().map(reply_bytes).collect::<Result<Vec<_>>>()?.as_slice() {
        [Some(seconds), Some(micros)] => parse_instant(seconds, micros),
        [..] => Err(unexpected_reply()),
    }
}

fn parse_instant(seconds: &[u8], micros: &[u8]) -> Result<Timestamp> {
    let seconds = Timestamp::default().plus(Duration::from_secs(parse_number(seconds)?));
    Ok(seconds.plus(Duration::from_micros(parse_number(micros)?)))
}

fn parse_number<N: FromStr>(digits: &[u8]) -> Result<N> {
    str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or_else(unexpected_reply)
}

/// The bytes of a string reply; `None` for nil.
pub(super) fn reply_bytes(reply: Value) -> Result<Option<Bytes>> {
    if let Value::BulkString(bytes) = reply {
        return Ok(Some(bytes.into()));
    }
    if let Value::VerbatimString { text, .. } = reply {
        return Ok(Some(text.into()));
    }
    if reply == Value::Nil { Ok(None) } else { Err(unexpected_reply()) }
}

/// Reads the replies to `SET … NX GET` and to `GETRANGE` of the header that it may have written: `None` if the record
/// was written, or the record that was there.
///
/// Nil alone proves nothing, because a reply to another call may be nil too. A header names its owner and is bound to
/// its key, so the server shows it only after it has written this record.
pub(super) fn parse_insert(replies: [Value; 2], header: &[u8]) -> Result<Option<Bytes>, RedisCallError> {
    match replies {
        [Value::Nil, Value::BulkString(shown)] if shown == header => Ok(None),
        [Value::BulkString(found), Value::BulkString(_)] => Ok(Some(found.into())),
        // Nil in the second place is the reply to a `SET` that was carried out: then the error before it is not ours.
        [Value::ServerError(refusal), Value::BulkString(_) | Value::ServerError(_)] => {
            Err(RedisCallError::Sent(refusal.into()))
        }
        [_, Value::ServerError(refusal)] if ["MOVED", "ASK"].contains(&refusal.code()) => {
            Err(RedisCallError::Split(refusal.into()))
        }
        [_, Value::ServerError(refusal)] => Err(RedisCallError::Judged(call_error::not_shown(refusal.into()))),
        [_, _] => Err(RedisCallError::Judged(foreign_reply())),
    }
}

pub(super) fn foreign_reply() -> Error {
    Error::new(ErrorKind::Unknown, "the server's reply belongs to another call")
}

pub(super) fn unexpected_reply() -> Error {
    Error::new(ErrorKind::Unknown, "the server's reply has another form than expected")
}
