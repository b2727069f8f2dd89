//! Completions of grants.

use hapax_core::RecordKey;
use hapax_core::machine::{Change, Complete};
use tokio_postgres::types::Type;

use super::columns::{Column, answer_bytes, record_columns};
use super::{BatchCall, CallStatements, Statements};
use crate::postgres::clock::ServerClock;
use crate::postgres::row::{self, RecordColumns};
use crate::postgres::timeline::WrittenRecord;

/// A completion of a grant.
#[derive(Clone)]
pub(in crate::postgres) struct CompleteCall {
    pub(in crate::postgres) rk: RecordKey,
    pub(in crate::postgres) ask: Complete,
    /// The completed record.
    pub(in crate::postgres) change: Change,
    /// Whether the record may be inserted if there is none.
    pub(in crate::postgres) may_recreate: bool,
}

impl BatchCall for CompleteCall {
    const SHARES_ROWS: bool = false;

    fn statements(statements: &Statements) -> &CallStatements {
        &statements.complete
    }

    fn key(&self) -> &RecordKey {
        &self.rk
    }

    fn bytes(&self) -> usize {
        answer_bytes(&self.change.record)
    }

    fn prepare(&mut self, _: &ServerClock) {}

    fn written(&self) -> Option<WrittenRecord> {
        Some(WrittenRecord { rk: self.rk, token: self.ask.claim.token, is_completed: true })
    }

    fn columns<'a>(calls: &[&'a Self]) -> Vec<Column<'a>> {
        let records: Vec<_> = calls.iter().map(|call| RecordColumns::of(Some(&call.change.record), &call.rk)).collect();
        let each = || calls.iter();
        let mut columns = vec![
            Column::new(Type::BYTEA_ARRAY, each().map(|call| &call.rk.as_bytes()[..])),
            Column::new(Type::INT8_ARRAY, each().map(|call| row::stored_token(call.ask.claim.token))),
            Column::new(Type::BYTEA_ARRAY, each().map(|call| &call.ask.claim.owner.0[..])),
            Column::new(Type::INT2_ARRAY, each().map(|call| i16::from(call.ask.fingerprint.rule().0))),
            Column::new(Type::BYTEA_ARRAY, each().map(|call| &call.ask.fingerprint.as_bytes()[..])),
        ];
        // `record_check`, `expiry_s` and `answer`; the statement knows the others.
        columns.extend(record_columns(&records).into_iter().skip(9));
        columns.push(Column::new(Type::INT8_ARRAY, each().map(|call| i64::from(call.change.lifetime.0))));
        columns.push(Column::new(Type::BOOL_ARRAY, each().map(|call| call.may_recreate)));
        columns
    }
}
