use bytes::Bytes;
use hapax_core::store::StoredRecord;
use hapax_core::{
    Completion, Error, ErrorKind, Fingerprint, Holding, Millis, Owner, Phase, Record, RecordKey, Rule, Seconds, State,
    Timestamp, Token,
};
use rusqlite::types::FromSql;
use rusqlite::{Row, Statement, params};

/// Runs `insert.sql` or `write.sql` with a record and returns how many rows the statement wrote.
pub(super) fn execute(statement: &mut Statement<'_>, rk: &RecordKey, stored: &StoredRecord) -> rusqlite::Result<usize> {
    let record = &stored.record;
    let holding = record.state.holding();
    let completion = match &record.state {
        State::Completed(completion) => Some(completion),
        State::Open(..) => None,
    };
    statement.execute(params![
        rk.as_bytes(),
        record.state.stored_number(),
        holding.is_some_and(|holding| holding.takeover),
        record.fingerprint.rule().0,
        record.fingerprint.as_bytes(),
        stored_token(record.token),
        holding.map(|holding| holding.owner.0),
        holding.map(|holding| holding.attempt),
        holding.map(|holding| holding.lease.0),
        holding.map(|holding| holding.lifetime.0),
        completion.map(|completion| &completion.answer[..]),
        completion.map(|completion| completion.expiry),
        stored_time(stored.armed_at),
        stored_time(stored.expires_at),
        record.check(rk),
    ])
}

/// Reads the record of this key in a row of `read.sql`, and verifies its check; `None` if the row has no record.
pub(super) fn stored_record(row: &Row<'_>, rk: &RecordKey) -> Result<Option<StoredRecord>, Error> {
    let Some(number) = column::<Option<u8>>(row, "state")? else {
        return Ok(None);
    };
    let state = match Phase::from_stored(number)? {
        None => State::Completed(Completion {
            answer: Bytes::from(column::<Vec<u8>>(row, "answer")?),
            form: State::stored_form(number),
            expiry: column(row, "expiry_s")?,
        }),
        Some(phase) => State::Open(phase, holding(row)?),
    };
    let record = Record {
        token: Token(column::<i64>(row, "token")?.cast_unsigned()),
        fingerprint: Fingerprint::from_parts(Rule(column(row, "rule")?), column(row, "fingerprint")?),
        state,
    };
    if column::<[u8; 8]>(row, "record_check")? != record.check(rk) {
        return Err(damaged("a record was altered, or belongs to another key"));
    }
    Ok(Some(StoredRecord { record, armed_at: time(row, "since")?, expires_at: time(row, "expires_at")? }))
}

fn holding(row: &Row<'_>) -> Result<Holding, Error> {
    Ok(Holding {
        owner: Owner(column(row, "owner")?),
        attempt: column(row, "attempt")?,
        takeover: column(row, "takeover")?,
        lease: Millis(column(row, "lease_ms")?),
        lifetime: Seconds(column(row, "lifetime_s")?),
    })
}

fn time(row: &Row<'_>, name: &'static str) -> Result<Timestamp, Error> {
    let micros = column::<i64>(row, name)?;
    u64::try_from(micros).map(Timestamp).map_err(|_| damaged("a record has a timestamp before 1970"))
}

/// Reads a column. A value of the wrong type or length is damage, never absence.
fn column<T: FromSql>(row: &Row<'_>, name: &'static str) -> Result<T, Error> {
    row.get(name).map_err(|error| damaged("a record's columns do not fit its state").caused_by(error))
}

/// Reads the token in the first column.
pub(super) fn token(row: &Row<'_>) -> rusqlite::Result<Token> {
    row.get::<_, i64>(0).map(|stored| Token(stored.cast_unsigned()))
}

/// A token as SQLite's signed integer: all 64 bits are kept, but the order only up to 2^63.
pub(super) fn stored_token(token: Token) -> i64 {
    token.0.cast_signed()
}

pub(super) fn stored_time(time: Timestamp) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

pub(super) fn damaged(message: &'static str) -> Error {
    Error::new(ErrorKind::Damaged, message)
}
