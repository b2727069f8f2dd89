//! The parameters of statements.

use hapax_core::{Record, State};
use tokio_postgres::types::{Kind, ToSql, Type};

use crate::postgres::pool::Parameter;
use crate::postgres::row::RecordColumns;

/// A parameter with one value for each call.
pub(in crate::postgres) struct Column<'a> {
    values: Box<dyn ColumnValues + 'a>,
    array: Type,
}

trait ColumnValues: Sync + Send {
    fn all(&self) -> &(dyn ToSql + Sync);

    fn first(&self) -> &(dyn ToSql + Sync);
}

impl<T: ToSql + Sync + Send> ColumnValues for Vec<T> {
    fn all(&self) -> &(dyn ToSql + Sync) {
        self
    }

    fn first(&self) -> &(dyn ToSql + Sync) {
        &self[0]
    }
}

impl<'a> Column<'a> {
    pub(super) fn new<T: ToSql + Sync + Send + 'a>(array: Type, values: impl Iterator<Item = T>) -> Self {
        Self { values: Box::new(values.collect::<Vec<T>>()), array }
    }

    /// The parameter of a statement for several calls.
    pub(super) fn as_array(&self) -> Parameter<'_> {
        (self.values.all(), self.array.clone())
    }

    /// The parameter of a statement for one call.
    pub(super) fn as_value(&self) -> Parameter<'_> {
        let Kind::Array(element) = self.array.kind() else { return self.as_array() };
        (self.values.first(), element.clone())
    }
}

/// The size of the record's answer.
pub(super) fn answer_bytes(record: &Record) -> usize {
    match &record.state {
        State::Completed(completion) => completion.answer.len(),
        State::Open(..) => 0,
    }
}

/// The columns of these records, in the order of the statements.
pub(super) fn record_columns<'a>(records: &[RecordColumns<'a>]) -> Vec<Column<'a>> {
    let each = || records.iter();
    vec![
        Column::new(Type::INT2_ARRAY, each().map(|record| record.state)),
        Column::new(Type::BOOL_ARRAY, each().map(|record| record.takeover)),
        Column::new(Type::INT2_ARRAY, each().map(|record| record.rule)),
        Column::new(Type::BYTEA_ARRAY, each().map(|record| record.fingerprint)),
        Column::new(Type::INT8_ARRAY, each().map(|record| record.token)),
        Column::new(Type::BYTEA_ARRAY, each().map(|record| record.owner)),
        Column::new(Type::INT4_ARRAY, each().map(|record| record.attempt)),
        Column::new(Type::INT8_ARRAY, each().map(|record| record.lease_ms)),
        Column::new(Type::INT8_ARRAY, each().map(|record| record.lifetime_s)),
        Column::new(Type::BYTEA_ARRAY, each().map(|record| record.record_check.map(Vec::from))),
        Column::new(Type::INT8_ARRAY, each().map(|record| record.expiry_s)),
        Column::new(Type::BYTEA_ARRAY, each().map(|record| record.answer)),
    ]
}
