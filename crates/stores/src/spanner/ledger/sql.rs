//! Statements of a service, with parameters and rows.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use hapax_core::{Error, ErrorKind, Result, Timestamp};

use crate::spanner::messages::{RowField, SqlKind, SqlList, SqlValue};
use crate::spanner::values::{self, SqlStatement};

/// A statement of a service for a [`SpannerTransaction`](crate::SpannerTransaction), in the SQL of Google, with
/// parameters.
///
/// ```
/// use hapax::stores::SpannerStatement;
///
/// let statement = SpannerStatement::new("UPDATE account SET cents = cents - @cents WHERE id = @id")
///     .bind("cents", 500)
///     .bind("id", "acme");
/// # let _ = statement;
/// ```
#[derive(Clone)]
pub struct SpannerStatement(pub(super) SqlStatement);

/// A value of a parameter or of a column. A value of another type is a text, as the service writes it.
#[derive(Clone, Debug, PartialEq)]
pub enum SpannerValue {
    /// NULL. As a parameter, it has the type that the statement expects.
    Null,
    /// BOOL.
    Bool(bool),
    /// INT64.
    Int64(i64),
    /// FLOAT64.
    Float64(f64),
    /// STRING, and types that are written as text: NUMERIC, DATE, JSON.
    String(String),
    /// BYTES.
    Bytes(Bytes),
    /// TIMESTAMP, to the microsecond.
    Timestamp(Timestamp),
    /// ARRAY.
    Array(Vec<Self>),
}

/// A row of a query.
#[derive(Clone, Debug, PartialEq)]
pub struct SpannerRow {
    values: BTreeMap<String, SpannerValue>,
}

impl SpannerStatement {
    /// A statement without parameters.
    pub fn new(sql: impl Into<String>) -> Self {
        Self(SqlStatement::new(sql.into()))
    }

    /// Gives the parameter `@name` a value.
    #[must_use]
    pub fn bind(self, name: &str, value: impl Into<SpannerValue>) -> Self {
        let value = value.into();
        let (written, type_code) = (value.written(), value.type_code());
        Self(match (type_code, value) {
            (_, SpannerValue::Array(elements)) => {
                let element = elements.iter().find_map(SpannerValue::type_code);
                self.0.list_of(name, written, element)
            }
            (Some(code), _) => self.0.typed(name, written, code),
            (None, _) => self.0.untyped(name, written),
        })
    }
}

impl From<&str> for SpannerStatement {
    fn from(sql: &str) -> Self {
        Self::new(sql)
    }
}

impl From<&String> for SpannerStatement {
    fn from(sql: &String) -> Self {
        Self::new(sql.as_str())
    }
}

/// Without the values, which may be secret.
impl fmt::Debug for SpannerStatement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SpannerStatement").field(&self.0.sql).finish()
    }
}

impl SpannerValue {
    /// The number of the type. None where the statement says it.
    fn type_code(&self) -> Option<i32> {
        match self {
            Self::Null | Self::Array(_) => None,
            Self::Bool(_) => Some(values::BOOL),
            Self::Int64(_) => Some(values::INT64),
            Self::Float64(_) => Some(values::FLOAT64),
            Self::String(_) => Some(values::STRING),
            Self::Bytes(_) => Some(values::BYTES),
            Self::Timestamp(_) => Some(values::TIMESTAMP),
        }
    }

    fn written(&self) -> SqlValue {
        match self {
            Self::Null => SqlValue::null(),
            Self::Bool(value) => SqlValue::flag(*value),
            Self::Int64(value) => SqlValue::integer(*value),
            Self::Float64(value) if value.is_finite() => SqlValue { kind: Some(SqlKind::Number(*value)) },
            Self::Float64(value) if value.is_nan() => SqlValue::text("NaN".to_owned()),
            Self::Float64(value) => SqlValue::text(if *value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()),
            Self::String(value) => SqlValue::text(value.clone()),
            Self::Bytes(value) => SqlValue::bytes(value),
            Self::Timestamp(value) => SqlValue::time(*value),
            Self::Array(elements) => SqlValue::list(elements.iter().map(Self::written).collect()),
        }
    }

    /// The value of a column of this type.
    fn read(value: &SqlValue, code: i32, element: Option<i32>) -> Result<Self> {
        let is_null = matches!(value.kind, Some(SqlKind::Null(_)));
        Ok(match code {
            _ if is_null => Self::Null,
            values::BOOL => Self::Bool(value.as_flag()?),
            values::INT64 => Self::Int64(value.as_integer()?),
            values::FLOAT64 => Self::Float64(float(value)?),
            values::BYTES => Self::Bytes(value.as_bytes()?),
            values::TIMESTAMP => Self::Timestamp(value.as_written_time()?),
            values::ARRAY => {
                let elements = value.as_list()?.iter();
                Self::Array(
                    elements
                        .map(|value| Self::read(value, element.unwrap_or(values::STRING), None))
                        .collect::<Result<_>>()?,
                )
            }
            _ => Self::String(value.as_text()?.unwrap_or_default().to_owned()),
        })
    }
}

fn float(value: &SqlValue) -> Result<f64> {
    match &value.kind {
        Some(SqlKind::Number(value)) => Ok(*value),
        Some(SqlKind::Text(text)) if text == "NaN" => Ok(f64::NAN),
        Some(SqlKind::Text(text)) if text == "Infinity" => Ok(f64::INFINITY),
        Some(SqlKind::Text(text)) if text == "-Infinity" => Ok(f64::NEG_INFINITY),
        Some(SqlKind::Text(_) | SqlKind::Bool(_) | SqlKind::Null(_) | SqlKind::List(_)) | None => {
            Err(values::unexpected())
        }
    }
}

impl SpannerRow {
    pub(super) fn read(fields: &[RowField], row: &SqlList) -> Result<Self> {
        let values = fields.iter().zip(&row.values).map(|(field, value)| {
            let (code, element) = field.types();
            Ok((field.name.clone(), SpannerValue::read(value, code, element)?))
        });
        Ok(Self { values: values.collect::<Result<_>>()? })
    }

    /// The value of a column.
    ///
    /// # Errors
    /// `Invalid` if the query has no column of this name.
    pub fn value(&self, column: &str) -> Result<&SpannerValue> {
        self.values.get(column).ok_or_else(|| wrong(format!("the query has no column `{column}`")))
    }

    /// The value of a column of INT64.
    ///
    /// # Errors
    /// `Invalid` if the query has no column of this name, it has another type, or it is NULL.
    pub fn int64(&self, column: &str) -> Result<i64> {
        let value = self.value(column)?;
        let SpannerValue::Int64(number) = value else {
            return Err(wrong(format!("the column `{column}` is no INT64 but {}", value.type_name())));
        };
        Ok(*number)
    }

    /// The value of a column of STRING, or of another type that is written as text.
    ///
    /// # Errors
    /// `Invalid` if the query has no column of this name, it has another type, or it is NULL.
    pub fn string(&self, column: &str) -> Result<&str> {
        let value = self.value(column)?;
        let SpannerValue::String(text) = value else {
            return Err(wrong(format!("the column `{column}` is no STRING but {}", value.type_name())));
        };
        Ok(text)
    }
}

impl SpannerValue {
    fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "NULL",
            Self::Bool(_) => "BOOL",
            Self::Int64(_) => "INT64",
            Self::Float64(_) => "FLOAT64",
            Self::String(_) => "STRING",
            Self::Bytes(_) => "BYTES",
            Self::Timestamp(_) => "TIMESTAMP",
            Self::Array(_) => "ARRAY",
        }
    }
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

macro_rules! from {
    ($($type:ty => $variant:ident),+) => {$(
        impl From<$type> for SpannerValue {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        }
    )+};
}

from! {
    bool => Bool,
    i32 => Int64,
    u32 => Int64,
    i64 => Int64,
    f64 => Float64,
    &str => String,
    String => String,
    Bytes => Bytes,
    Vec<u8> => Bytes,
    Timestamp => Timestamp
}

impl<T: Into<Self>> From<Option<T>> for SpannerValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl<T: Into<Self>> FromIterator<T> for SpannerValue {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self::Array(values.into_iter().map(Into::into).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spanner::messages::SqlType;

    fn field(name: &str, code: i32) -> RowField {
        RowField { name: name.to_owned(), column_type: Some(SqlType { code, element: None }) }
    }

    #[test]
    fn values_are_read_as_they_are_written() {
        let time = Timestamp(1_800_000_000_000_007);
        let all: [(SpannerValue, i32); 8] = [
            (true.into(), values::BOOL),
            (i64::MIN.into(), values::INT64),
            (0.5.into(), values::FLOAT64),
            (f64::NEG_INFINITY.into(), values::FLOAT64),
            ("text".into(), values::STRING),
            (vec![0_u8, 0xff].into(), values::BYTES),
            (time.into(), values::TIMESTAMP),
            (SpannerValue::Null, values::INT64),
        ];
        for (value, code) in all {
            let row = SqlList { values: vec![value.written()] };
            let read = SpannerRow::read(&[field("a", code)], &row).unwrap();
            assert_eq!(*read.value("a").unwrap(), value);
        }
        let numeric = SpannerRow::read(&[field("a", 10)], &SqlList { values: vec![SqlValue::text("1.5".into())] });
        assert_eq!(numeric.unwrap().string("a").unwrap(), "1.5");
    }

    #[test]
    fn a_column_that_is_not_there_or_has_another_type_is_named() {
        let row = SpannerRow::read(&[field("a", values::INT64)], &SqlList { values: vec![SqlValue::integer(7)] });
        let row = row.unwrap();
        assert_eq!(row.int64("a").unwrap(), 7);
        for (error, words) in [(row.string("a").unwrap_err(), "INT64"), (row.int64("b").unwrap_err(), "`b`")] {
            assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn a_statement_shows_no_value() {
        let statement = SpannerStatement::new("@a").bind("a", "secret").bind("b", None::<i64>);
        assert!(!format!("{statement:?}").contains("secret"));
        let list = statement.bind("c", [1_i64, 2].into_iter().collect::<SpannerValue>());
        assert_eq!(list.0.params.fields.len(), 3);
    }
}
