//! Statements and values as the API writes them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hapax_core::{Error, ErrorKind, Result, Timestamp};

use super::messages::{SqlKind, SqlList, SqlParams, SqlType, SqlValue};

/// The numbers of types.
pub(super) const BOOL: i32 = 1;
pub(super) const INT64: i32 = 2;
pub(super) const FLOAT64: i32 = 3;
pub(super) const TIMESTAMP: i32 = 4;
pub(super) const STRING: i32 = 6;
pub(super) const BYTES: i32 = 7;
pub(super) const ARRAY: i32 = 8;

/// A statement with its parameters.
#[derive(Clone, Debug)]
pub(super) struct SqlStatement {
    pub(super) sql: Cow<'static, str>,
    pub(super) params: SqlParams,
    pub(super) types: BTreeMap<String, SqlType>,
}

impl SqlStatement {
    pub(super) fn new(sql: impl Into<Cow<'static, str>>) -> Self {
        Self { sql: sql.into(), params: SqlParams::default(), types: BTreeMap::new() }
    }

    pub(super) fn bytes(self, name: &str, value: &[u8]) -> Self {
        self.with(name, SqlValue::bytes(value), plain(BYTES))
    }

    pub(super) fn integer(self, name: &str, value: i64) -> Self {
        self.with(name, SqlValue::integer(value), plain(INT64))
    }

    pub(super) fn text(self, name: &str, value: &str) -> Self {
        self.with(name, SqlValue::text(value.to_owned()), plain(STRING))
    }

    pub(super) fn all_bytes(self, name: &str, values: &[Bytes]) -> Self {
        let values = values.iter().map(|value| SqlValue::bytes(value)).collect();
        self.with(name, SqlValue::list(values), SqlType { code: ARRAY, element: Some(Box::new(plain(BYTES))) })
    }

    pub(super) fn all_integers(self, name: &str, values: &[i64]) -> Self {
        let values = values.iter().map(|value| SqlValue::integer(*value)).collect();
        self.with(name, SqlValue::list(values), SqlType { code: ARRAY, element: Some(Box::new(plain(INT64))) })
    }

    pub(super) fn all_texts(self, name: &str, values: Vec<String>) -> Self {
        let values = values.into_iter().map(SqlValue::text).collect();
        self.with(name, SqlValue::list(values), SqlType { code: ARRAY, element: Some(Box::new(plain(STRING))) })
    }

    /// Gives a parameter a value of the type with this number.
    pub(super) fn typed(self, name: &str, value: SqlValue, code: i32) -> Self {
        self.with(name, value, plain(code))
    }

    /// Gives a parameter a value of the type that the statement expects.
    pub(super) fn untyped(mut self, name: &str, value: SqlValue) -> Self {
        self.params.fields.insert(name.to_owned(), value);
        self
    }

    /// Gives a parameter a list of values of the type with this number, or of the type that the statement expects.
    pub(super) fn list_of(self, name: &str, value: SqlValue, element: Option<i32>) -> Self {
        match element {
            Some(code) => self.with(name, value, SqlType { code: ARRAY, element: Some(Box::new(plain(code))) }),
            None => self.untyped(name, value),
        }
    }

    fn with(mut self, name: &str, value: SqlValue, sql_type: SqlType) -> Self {
        self.params.fields.insert(name.to_owned(), value);
        self.types.insert(name.to_owned(), sql_type);
        self
    }
}

fn plain(code: i32) -> SqlType {
    SqlType { code, element: None }
}

impl SqlValue {
    pub(super) fn bytes(value: &[u8]) -> Self {
        Self::text(BASE64_STANDARD.encode(value))
    }

    pub(super) fn integer(value: i64) -> Self {
        Self::text(value.to_string())
    }

    /// A time, to the microsecond.
    pub(super) fn time(Timestamp(micros): Timestamp) -> Self {
        let time = UNIX_EPOCH + Duration::from_micros(micros);
        Self::text(humantime::format_rfc3339_micros(time).to_string())
    }

    pub(super) fn list(values: Vec<Self>) -> Self {
        Self { kind: Some(SqlKind::List(SqlList { values })) }
    }

    pub(super) fn text(text: String) -> Self {
        Self { kind: Some(SqlKind::Text(text)) }
    }

    pub(super) fn flag(value: bool) -> Self {
        Self { kind: Some(SqlKind::Bool(value)) }
    }

    pub(super) fn null() -> Self {
        Self { kind: Some(SqlKind::Null(0)) }
    }

    /// The time of the commit.
    pub(super) fn commit_time() -> Self {
        Self::text("spanner.commit_timestamp()".to_owned())
    }

    /// The text. None for a null.
    pub(super) fn as_text(&self) -> Result<Option<&str>> {
        match &self.kind {
            Some(SqlKind::Text(text)) => Ok(Some(text)),
            Some(SqlKind::Null(_)) => Ok(None),
            Some(SqlKind::Number(_) | SqlKind::Bool(_) | SqlKind::List(_)) | None => Err(unexpected()),
        }
    }

    pub(super) fn as_bytes(&self) -> Result<Bytes> {
        let text = self.as_text()?.ok_or_else(unexpected)?;
        BASE64_STANDARD.decode(text).map(Bytes::from).map_err(|error| unexpected().caused_by(error))
    }

    /// The 16 bytes of an id.
    pub(super) fn as_id(&self) -> Result<[u8; 16]> {
        self.as_bytes()?[..].try_into().map_err(|error| unexpected().caused_by(error))
    }

    pub(super) fn as_flag(&self) -> Result<bool> {
        match self.kind {
            Some(SqlKind::Bool(value)) => Ok(value),
            Some(SqlKind::Text(_) | SqlKind::Number(_) | SqlKind::Null(_) | SqlKind::List(_)) | None => {
                Err(unexpected())
            }
        }
    }

    /// The values of an array or of a struct.
    pub(super) fn as_list(&self) -> Result<&[Self]> {
        match &self.kind {
            Some(SqlKind::List(list)) => Ok(&list.values),
            Some(SqlKind::Text(_) | SqlKind::Number(_) | SqlKind::Null(_) | SqlKind::Bool(_)) | None => {
                Err(unexpected())
            }
        }
    }

    pub(super) fn as_integer(&self) -> Result<i64> {
        let text = self.as_text()?.ok_or_else(unexpected)?;
        text.parse().map_err(|error| unexpected().caused_by(error))
    }

    /// A time as the service writes it.
    pub(super) fn as_written_time(&self) -> Result<Timestamp> {
        let text = self.as_text()?.ok_or_else(unexpected)?;
        let time = humantime::parse_rfc3339(text).map_err(|error| unexpected().caused_by(error))?;
        let since = time.duration_since(UNIX_EPOCH).map_err(|error| unexpected().caused_by(error))?;
        Ok(Timestamp(0).plus(since))
    }

    /// A time that the statement has converted by `UNIX_MICROS`.
    pub(super) fn as_time(&self) -> Result<Timestamp> {
        u64::try_from(self.as_integer()?).map(Timestamp).map_err(|error| unexpected().caused_by(error))
    }
}

/// The columns of a row.
pub(super) fn columns<const N: usize>(values: &[SqlValue]) -> Result<&[SqlValue; N]> {
    values.try_into().map_err(|error| unexpected().caused_by(error))
}

pub(super) fn unexpected() -> Error {
    Error::new(ErrorKind::Damaged, "Spanner has answered with a value that does not fit the tables")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_text() {
        let text = |value: SqlValue| value.as_text().unwrap().unwrap().to_owned();
        assert_eq!(text(SqlValue::bytes(&[0xff, 0, 1, 2])), "/wABAg==");
        assert_eq!(text(SqlValue::integer(-(1 << 60))), "-1152921504606846976");
        assert_eq!(text(SqlValue::time(Timestamp(1_800_000_000_000_007))), "2027-01-15T08:00:00.000007Z");
        let far = Timestamp(1_800_000_000_000_000 + u64::from(u32::MAX) * 1_000_000);
        assert_eq!(text(SqlValue::time(far)), "2163-02-21T14:28:15.000000Z");
    }

    #[test]
    fn values_are_read_as_they_are_written() {
        assert_eq!(SqlValue::bytes(b"answer").as_bytes().unwrap(), "answer");
        assert_eq!(SqlValue::integer(i64::MIN).as_integer().unwrap(), i64::MIN);
        assert_eq!(SqlValue::integer(7).as_time().unwrap(), Timestamp(7));
        let list = SqlValue::list(vec![SqlValue::integer(7)]);
        assert_eq!(columns::<1>(&[SqlValue::integer(7)]).unwrap()[0].as_integer().unwrap(), 7);
        let null = SqlValue { kind: Some(SqlKind::Null(0)) };
        assert_eq!(null.as_text().unwrap(), None);
        for wrong in [null, SqlValue::integer(-1), SqlValue::bytes(b"x"), list, SqlValue::default()] {
            let read = wrong.as_time();
            assert_eq!(read.map_err(|error| error.kind()), Err(ErrorKind::Damaged));
        }
    }
}
