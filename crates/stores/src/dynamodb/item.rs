//! Records as items: one attribute for each field, and none twice.
//!
//! | attribute | type | |
//! |---|---|---|
//! | `k` | B | the record key, 16 bytes. A longer key is that of a part of an answer |
//! | `tok` `st` `chk` | N N B | the token, the state and the check of the record |
//! | `fp` | B | the rule of the fingerprint, and the fingerprint |
//! | `own` `att` `tko` | B N N | unless completed: the owner, the attempt, and 1 for a takeover |
//! | `les` `lif` `lifs` | N N N | unless completed: the lease in ms, the lifetime in µs and in s |
//! | `expy` `a` | N B | completed: the expiry that is shown, and the answer |
//! | `parts` | N | completed, instead of `a`: the number of parts in which the answer lies |
//! | `arm` `exp` | N N | when it was written or renewed, and when it expires, in µs |
//! | `ttl` | N | when DynamoDB may remove it, in s |

use std::fmt::Display;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hapax_core::machine::{Change, Observed};
use hapax_core::store::{StoredRecord, observe};
use hapax_core::{
    Completion, Error, ErrorKind, Fingerprint, Holding, Millis, Owner, Phase, Record, RecordKey, Result, Rule, Seconds,
    State, Timestamp, Token,
};
use serde_json::{Value, json};

use super::answers::Attributes;
use super::clock::ClockRange;

/// How long after the end of a record DynamoDB may remove its item, in seconds.
pub(super) const TTL_MARGIN: u64 = 60;

/// How far the instant of a write may be ahead of the earliest reading of the clock: as far as two processes may know
/// the clock differently. More than that, and the clock has stepped back.
pub(super) const AHEAD: Duration = Duration::from_secs(3);

/// The most parts of an answer. More are not ours.
const MOST_PARTS: u16 = 16;

const MICROS: u64 = 1_000_000;

/// An answer that does not fit into its item: how many parts it has, and the check of the record, which is a part of
/// their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartsOfAnswer {
    pub(super) token: Token,
    pub(super) check: [u8; 8],
    pub(super) count: u16,
}

/// An item as it was read. The answer of a record in parts is still missing.
#[derive(Clone, Debug)]
pub(super) struct ReadItem {
    pub(super) stored: StoredRecord,
    check: [u8; 8],
    pub(super) parts: Option<PartsOfAnswer>,
}

pub(super) fn binary(bytes: &[u8]) -> Value {
    json!({ "B": STANDARD.encode(bytes) })
}

pub(super) fn number(number: impl Display) -> Value {
    json!({ "N": number.to_string() })
}

/// The attributes of a record that a write compares with what was read: all but its key and its instants.
pub(super) fn columns(record: &Record, rk: &RecordKey, parts: Option<u16>) -> Attributes {
    let mut item = Attributes::new();
    let mut put = |name: &str, value: Value| drop(item.insert(name.to_owned(), value));
    put("tok", number(record.token.0));
    put("st", number(record.state.stored_number()));
    put("fp", binary(&fingerprint_bytes(record.fingerprint)));
    put("chk", binary(&record.check(rk)));
    match &record.state {
        State::Completed(completion) => {
            put("expy", number(completion.expiry));
            match parts {
                Some(count) => put("parts", number(count)),
                None => put("a", binary(&completion.answer)),
            }
        }
        State::Open(_, holding) => {
            put("own", binary(&holding.owner.0));
            put("att", number(holding.attempt));
            put("tko", number(u8::from(holding.takeover)));
            put("les", number(holding.lease.0));
            put("lif", number(u64::from(holding.lifetime.0) * MICROS));
            put("lifs", number(holding.lifetime.0));
        }
    }
    item
}

/// The item of a change that is written at this instant.
pub(super) fn written(change: &Change, rk: &RecordKey, (at, parts): (Timestamp, Option<u16>)) -> Attributes {
    let mut item = columns(&change.record, rk, parts);
    let expires = at.plus(change.lifetime.into());
    let fields = [
        ("k", binary(rk.as_bytes())),
        ("arm", number(at.0)),
        ("exp", number(expires.0)),
        ("ttl", number(expires.0 / MICROS + TTL_MARGIN)),
    ];
    item.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    item
}

/// A fingerprint with its rule.
pub(super) fn fingerprint_bytes(fingerprint: Fingerprint) -> [u8; 13] {
    let mut bytes = [fingerprint.rule().0; 13];
    bytes[1..].copy_from_slice(fingerprint.as_bytes());
    bytes
}

impl ReadItem {
    /// Reads an item.
    ///
    /// # Errors
    /// `Damaged` for an item that is no record of this key, or was altered.
    pub(super) fn of(item: &Attributes, rk: &RecordKey) -> Result<Self> {
        if bytes::<16>(item, "k")? != *rk.as_bytes() {
            return Err(unfit());
        }
        let check = bytes(item, "chk")?;
        let token = Token(integer(item, "tok")?);
        let mut parts = None;
        let number = integer(item, "st")?;
        let state = match Phase::from_stored(number)? {
            None => {
                let answer = if item.contains_key("a") {
                    raw(item, "a")?
                } else {
                    let count = integer(item, "parts")?;
                    if count > MOST_PARTS {
                        return Err(unfit());
                    }
                    parts = Some(PartsOfAnswer { token, check, count });
                    Bytes::new()
                };
                let (form, expiry) = (State::stored_form(number), integer(item, "expy")?);
                State::Completed(Completion { answer, form, expiry })
            }
            Some(phase) => State::Open(phase, holding(item)?),
        };
        let [rule, fingerprint @ ..] = bytes::<13>(item, "fp")?;
        let record = Record { token, fingerprint: Fingerprint::from_parts(Rule(rule), fingerprint), state };
        let (armed_at, expires_at) = (Timestamp(integer(item, "arm")?), Timestamp(integer(item, "exp")?));
        let read = Self { stored: StoredRecord { record, armed_at, expires_at }, check, parts };
        if parts.is_none() { read.checked(rk) } else { Ok(read) }
    }

    /// The item with the answer of its parts.
    ///
    /// # Errors
    /// `Damaged` if the record is not what its check says.
    pub(super) fn with_answer(mut self, rk: &RecordKey, answer: Bytes) -> Result<Self> {
        if let State::Completed(completion) = &mut self.stored.record.state {
            completion.answer = answer;
        }
        self.checked(rk)
    }

    fn checked(self, rk: &RecordKey) -> Result<Self> {
        if self.check != self.stored.record.check(rk) {
            return Err(damaged("a record was altered, or belongs to another key"));
        }
        Ok(self)
    }

    /// The attributes that a write compares.
    pub(super) fn columns(&self, rk: &RecordKey) -> Attributes {
        let mut columns = columns(&self.stored.record, rk, self.parts.map(|parts| parts.count));
        // As it is stored: the answer may be missing.
        columns.insert("chk".to_owned(), binary(&self.check));
        columns
    }

    /// Whether the record has expired, whatever the clock shows exactly.
    pub(super) fn is_expired(&self, range: ClockRange) -> bool {
        self.stored.is_expired(self.now(range))
    }

    /// The clock as this record is judged by: its earliest reading, so that nothing lapses early. A record that was
    /// just written may seem to be of the future; it is of now.
    pub(super) fn now(&self, range: ClockRange) -> Timestamp {
        let ahead = self.stored.armed_at.since(range.earliest);
        if ahead < AHEAD { range.earliest.max(self.stored.armed_at) } else { range.earliest }
    }

    pub(super) fn observed(&self, range: ClockRange) -> Observed {
        observe(Some(&self.stored), self.now(range), self.stored.record.token)
    }
}

/// The observation of a key without an item.
pub(super) fn absent(range: ClockRange) -> Observed {
    observe(None, range.earliest, Token(0))
}

/// The reading of the clock by which a swap judges whether an expired record is still expired: that of the read, unless
/// the clock has stepped back since.
pub(super) fn low_mark(range: ClockRange, seen: &Observed) -> Timestamp {
    if seen.now.since(range.earliest) < AHEAD { range.earliest.max(seen.now) } else { range.earliest }
}

fn holding(item: &Attributes) -> Result<Holding> {
    let (lifetime, micros) = (integer::<u32>(item, "lifs")?, integer::<u64>(item, "lif")?);
    // No check covers it, and a renewal counts with it.
    if micros != u64::from(lifetime) * MICROS {
        return Err(unfit());
    }
    Ok(Holding {
        owner: Owner(bytes(item, "own")?),
        attempt: integer(item, "att")?,
        takeover: integer::<u8>(item, "tko")? != 0,
        lease: Millis(integer(item, "les")?),
        lifetime: Seconds(lifetime),
    })
}

pub(super) fn raw(item: &Attributes, name: &str) -> Result<Bytes> {
    let text = item.get(name).and_then(|value| value.get("B")?.as_str()).ok_or_else(unfit)?;
    STANDARD.decode(text).map(Bytes::from).map_err(|error| unfit().caused_by(error))
}

pub(super) fn bytes<const N: usize>(item: &Attributes, name: &str) -> Result<[u8; N]> {
    <[u8; N]>::try_from(&raw(item, name)?[..]).map_err(|_| unfit())
}

pub(super) fn integer<T: std::str::FromStr>(item: &Attributes, name: &str) -> Result<T> {
    let text = item.get(name).and_then(|value| value.get("N")?.as_str()).ok_or_else(unfit)?;
    text.parse().map_err(|_| unfit())
}

fn unfit() -> Error {
    damaged("the attributes of a record do not fit its state")
}

pub(super) fn damaged(message: &'static str) -> Error {
    Error::new(ErrorKind::Damaged, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RK: [u8; 16] = [7; 16];

    const AT: Timestamp = Timestamp(1_800_000_000_000_000);

    fn rk() -> RecordKey {
        RecordKey::from_bytes(RK)
    }

    fn change() -> Change {
        let holding = Holding {
            owner: Owner([1; 16]),
            attempt: 3,
            takeover: true,
            lease: Millis(30_000),
            lifetime: Seconds(u32::MAX),
        };
        let fingerprint = Fingerprint::from_parts(Rule(2), [5; 12]);
        let record = Record { token: Token(u64::MAX - 1), fingerprint, state: State::Open(Phase::InProgress, holding) };
        Change { record, lifetime: holding.lifetime }
    }

    fn completed(answer: &'static [u8]) -> Change {
        let state = State::Completed(Completion::whole(answer, 1_800_000_000));
        Change { record: Record { state, ..change().record }, lifetime: Seconds(60) }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for change in [change(), completed(b""), completed(b"\0\xffanswer")] {
            let read = ReadItem::of(&written(&change, &rk(), (AT, None)), &rk()).unwrap();
            assert_eq!(read.stored, StoredRecord::at(AT, &change));
            assert_eq!(read.columns(&rk()), columns(&change.record, &rk(), None));
        }
        let item = written(&completed(b"answer"), &rk(), (AT, Some(2)));
        let read = ReadItem::of(&item, &rk()).unwrap();
        let parts = PartsOfAnswer { token: Token(u64::MAX - 1), check: read.check, count: 2 };
        assert_eq!((read.parts, item.contains_key("a")), (Some(parts), false));
        assert_eq!(
            read.clone().with_answer(&rk(), "answer".into()).unwrap().stored.record,
            completed(b"answer").record
        );
        assert_eq!(read.with_answer(&rk(), "other!".into()).unwrap_err().kind(), ErrorKind::Damaged);
    }

    #[test]
    fn an_altered_or_missing_attribute_is_damage() {
        for change in [change(), completed(b"answer")] {
            let item = written(&change, &rk(), (AT, None));
            for name in item.keys().filter(|name| *name != "ttl") {
                let mut without = item.clone();
                without.remove(name);
                let error = ReadItem::of(&without, &rk()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Damaged, "without {name}");
                let mut altered = item.clone();
                altered[name] = if item[name].get("N").is_some() { number(1) } else { binary(&[9; 16]) };
                let is_instant = name == "arm" || name == "exp";
                let is_same = altered[name] == item[name];
                assert!(is_instant || is_same || ReadItem::of(&altered, &rk()).is_err(), "another {name}");
            }
        }
        let item = written(&change(), &rk(), (AT, None));
        assert!(ReadItem::of(&item, &RecordKey::from_bytes([8; 16])).is_err(), "a record of another key");
    }

    #[test]
    fn a_record_that_was_just_written_is_of_now_and_a_later_one_shows_a_step_back() {
        let read = ReadItem::of(&written(&change(), &rk(), (AT, None)), &rk()).unwrap();
        let lease = Duration::from_secs(30);
        let at = |earliest: u64| read.observed(ClockRange { earliest: Timestamp(earliest), latest: AT });
        assert_eq!(at(AT.0 - 2_999_999).lease_left, lease, "and not longer than it is");
        assert_eq!(at(AT.0 - 2_999_999).life_left, Duration::from_secs(u32::MAX.into()));
        assert_eq!(at(AT.0 + 1_000_000).lease_left, Duration::from_secs(29));
        assert_eq!(at(AT.0 - 3_000_000).lease_left, lease + Duration::from_secs(3));
    }
}
