//! The rows of a finish as the parameters of its statements.

use hapax_core::ledger::{Finished, OutboxRow};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::statements::uuid;
use crate::ledger_row::{ascending, headers, verdict_number};
use crate::postgres::pool::Parameter;

/// The columns of rows to finish, in ascending order of the operations.
pub(super) struct FinishedColumns<'r> {
    operations: Vec<Uuid>,
    verdicts: Vec<i16>,
    rules: Vec<i16>,
    fingerprints: Vec<Vec<u8>>,
    answers: Vec<&'r [u8]>,
}

impl<'r> FinishedColumns<'r> {
    pub(super) fn of(rows: &'r [Finished]) -> Self {
        let rows = ascending(rows);
        Self {
            operations: rows.iter().map(|row| uuid(row.operation)).collect(),
            verdicts: rows.iter().map(|row| verdict_number(row.verdict)).collect(),
            rules: rows.iter().map(|row| row.fingerprint.rule().0.into()).collect(),
            fingerprints: rows.iter().map(|row| row.fingerprint.as_bytes().to_vec()).collect(),
            answers: rows.iter().map(|row| &row.answer[..]).collect(),
        }
    }

    pub(super) fn parameters(&self) -> [Parameter<'_>; 5] {
        [
            (&self.operations, Type::UUID_ARRAY),
            (&self.verdicts, Type::INT2_ARRAY),
            (&self.rules, Type::INT2_ARRAY),
            (&self.fingerprints, Type::BYTEA_ARRAY),
            (&self.answers, Type::BYTEA_ARRAY),
        ]
    }

    /// The columns of the row, if it is the only one.
    pub(super) fn one(&self) -> Option<[Parameter<'_>; 5]> {
        let [operation] = &self.operations[..] else { return None };
        Some([
            (operation, Type::UUID),
            (&self.verdicts[0], Type::INT2),
            (&self.rules[0], Type::INT2),
            (&self.fingerprints[0], Type::BYTEA),
            (&self.answers[0], Type::BYTEA),
        ])
    }
}

/// The columns of the rows of the outbox.
pub(super) struct EventColumns<'r> {
    ids: Vec<Uuid>,
    operations: Vec<Uuid>,
    numbers: Vec<i32>,
    ordering_keys: Vec<Option<&'r [u8]>>,
    topics: Vec<&'r str>,
    kinds: Vec<Option<&'r str>>,
    sources: Vec<Option<&'r str>>,
    content_types: Vec<Option<&'r str>>,
    headers: Vec<String>,
    payloads: Vec<&'r [u8]>,
}

impl<'r> EventColumns<'r> {
    pub(super) fn of(rows: &'r [OutboxRow]) -> Self {
        Self {
            ids: rows.iter().map(|row| Uuid::from_bytes(*row.id.as_bytes())).collect(),
            operations: rows.iter().map(|row| uuid(row.operation)).collect(),
            numbers: rows.iter().map(|row| row.number.cast_signed()).collect(),
            ordering_keys: rows.iter().map(|row| row.ordering_key.as_deref()).collect(),
            topics: rows.iter().map(|row| &*row.topic).collect(),
            kinds: rows.iter().map(|row| row.kind.as_deref()).collect(),
            sources: rows.iter().map(|row| row.source.as_deref()).collect(),
            content_types: rows.iter().map(|row| row.content_type.as_deref()).collect(),
            headers: rows.iter().map(headers).collect(),
            payloads: rows.iter().map(|row| &row.payload[..]).collect(),
        }
    }

    pub(super) fn parameters(&self) -> [Parameter<'_>; 10] {
        [
            (&self.ids, Type::UUID_ARRAY),
            (&self.operations, Type::UUID_ARRAY),
            (&self.numbers, Type::INT4_ARRAY),
            (&self.ordering_keys, Type::BYTEA_ARRAY),
            (&self.topics, Type::TEXT_ARRAY),
            (&self.kinds, Type::TEXT_ARRAY),
            (&self.sources, Type::TEXT_ARRAY),
            (&self.content_types, Type::TEXT_ARRAY),
            (&self.headers, Type::TEXT_ARRAY),
            (&self.payloads, Type::BYTEA_ARRAY),
        ]
    }
}
