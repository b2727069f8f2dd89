//! Records as columns.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hapax_core::machine::Observed;
use hapax_core::store::{StoredRecord, observe};
use hapax_core::{
    Completion, Error, ErrorKind, Fingerprint, Holding, Millis, Owner, Phase, Record, RecordKey, Rule, Seconds, State,
    Timestamp, Token,
};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

/// The columns of a record, but for its key and its instants.
#[derive(Debug, Default)]
pub(super) struct RecordColumns<'a> {
    pub(super) state: Option<i16>,
    pub(super) takeover: Option<bool>,
    pub(super) rule: Option<i16>,
    pub(super) fingerprint: Option<&'a [u8]>,
    pub(super) token: Option<i64>,
    pub(super) owner: Option<&'a [u8]>,
    pub(super) attempt: Option<i32>,
    pub(super) lease_ms: Option<i64>,
    pub(super) lifetime_s: Option<i64>,
    pub(super) record_check: Option<[u8; 8]>,
    pub(super) expiry_s: Option<i64>,
    pub(super) answer: Option<&'a [u8]>,
}

impl<'a> RecordColumns<'a> {
    /// The columns of this record under this key; all null for no record.
    pub(super) fn of(record: Option<&'a Record>, rk: &RecordKey) -> Self {
        let Some(record) = record else { return Self::default() };
        let holding = record.state.holding();
        let completion = match &record.state {
            State::Completed(completion) => Some(completion),
            State::Open(..) => None,
        };
        Self {
            state: Some(record.state.stored_number().into()),
            takeover: Some(holding.is_some_and(|holding| holding.takeover)),
            rule: Some(record.fingerprint.rule().0.into()),
            fingerprint: Some(record.fingerprint.as_bytes()),
            token: Some(stored_token(record.token)),
            owner: holding.map(|holding| &holding.owner.0[..]),
            attempt: holding.map(|holding| holding.attempt.into()),
            lease_ms: holding.map(|holding| holding.lease.0.into()),
            lifetime_s: holding.map(|holding| holding.lifetime.0.into()),
            record_check: Some(record.check(rk)),
            expiry_s: completion.map(|completion| completion.expiry.into()),
            answer: completion.map(|completion| &completion.answer[..]),
        }
    }
}

/// The reply to a statement about one record.
#[derive(Debug)]
pub(super) struct RecordReply {
    /// Whether the statement wrote the record.
    pub(super) is_written: bool,
    /// What was stored when the statement began.
    pub(super) seen: Observed,
}

/// Reads the reply to a statement about the record of this key, and verifies the check of the record.
///
/// # Errors
/// `Damaged` for a record that was altered, and for a missing row in `hapax_store`.
pub(super) fn reply(row: Option<&Row>, rk: &RecordKey, is_written: bool) -> Result<RecordReply, Error> {
    let row = row.ok_or_else(|| damaged("the row in hapax_store is missing"))?;
    let stored = stored_record(row, rk)?;
    let mark = token(row, "mark")?;
    let newest: Option<i64> = column(row, "newest_token")?;
    let token_high_water = mark.max(newest.map_or(Token(0), |stored| Token(stored.cast_unsigned())));
    Ok(RecordReply { is_written, seen: observe(stored.as_ref(), time(row, "now")?, token_high_water) })
}

/// Whether the statement wrote the record.
pub(super) fn is_written(row: &Row) -> Result<bool, Error> {
    column(row, "is_written")
}

pub(super) fn stored_record(row: &Row, rk: &RecordKey) -> Result<Option<StoredRecord>, Error> {
    let Some(state) = column::<Option<i16>>(row, "state")? else { return Ok(None) };
    let stored = u8::try_from(state).unwrap_or_default();
    let state = match Phase::from_stored(stored)? {
        None => State::Completed(Completion {
            answer: Bytes::copy_from_slice(column(row, "answer")?),
            form: State::stored_form(stored),
            expiry: number::<i64, _>(row, "expiry_s")?,
        }),
        Some(phase) => State::Open(phase, holding(row)?),
    };
    let rule = Rule(number::<i16, _>(row, "rule")?);
    let record = Record {
        token: token(row, "token")?,
        fingerprint: Fingerprint::from_parts(rule, bytes(row, "fingerprint")?),
        state,
    };
    if column::<&[u8]>(row, "record_check")? != record.check(rk) {
        return Err(damaged("a record was altered, or belongs to another key"));
    }
    Ok(Some(StoredRecord { record, armed_at: time(row, "since")?, expires_at: time(row, "expires_at")? }))
}

fn holding(row: &Row) -> Result<Holding, Error> {
    Ok(Holding {
        owner: Owner(bytes(row, "owner")?),
        attempt: number::<i32, _>(row, "attempt")?,
        takeover: column(row, "takeover")?,
        lease: Millis(number::<i64, _>(row, "lease_ms")?),
        lifetime: Seconds(number::<i64, _>(row, "lifetime_s")?),
    })
}

fn token(row: &Row, name: &'static str) -> Result<Token, Error> {
    Ok(Token(column::<i64>(row, name)?.cast_unsigned()))
}

/// Reads a number of a signed column into the unsigned type of its field.
fn number<'a, S: FromSql<'a>, T: TryFrom<S>>(row: &'a Row, name: &'static str) -> Result<T, Error> {
    T::try_from(column(row, name)?).map_err(|_| damaged("a record's columns do not fit its state"))
}

pub(super) fn bytes<const N: usize>(row: &Row, name: &'static str) -> Result<[u8; N], Error> {
    column::<&[u8]>(row, name)?.try_into().map_err(|_| damaged("a record's columns do not fit its state"))
}

pub(super) fn time(row: &Row, name: &'static str) -> Result<Timestamp, Error> {
    let stored: SystemTime = column(row, name)?;
    let since = stored.duration_since(SystemTime::UNIX_EPOCH);
    since.map(|since| Timestamp(0).plus(since)).map_err(|_| damaged("a record has a timestamp before 1970"))
}

/// Reads a column. A value of the wrong type or length is damage, never absence.
fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &'static str) -> Result<T, Error> {
    row.try_get(name).map_err(|error| damaged("a record's columns do not fit its state").caused_by(error))
}

/// A token as PostgreSQL's signed integer: all 64 bits are kept.
pub(super) fn stored_token(token: Token) -> i64 {
    token.0.cast_signed()
}

/// The instant as PostgreSQL stores it.
pub(super) fn stored_time(time: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(time.0)
}

pub(super) fn damaged(message: &'static str) -> Error {
    Error::new(ErrorKind::Damaged, message)
}
