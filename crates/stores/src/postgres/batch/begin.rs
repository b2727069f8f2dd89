//! The begins of new operations.

use hapax_core::RecordKey;
use hapax_core::machine::{self, Begin, Change, Grant};
use tokio_postgres::types::Type;

use super::columns::{Column, record_columns};
use super::{BatchCall, CallStatements, Statements};
use crate::postgres::clock::ServerClock;
use crate::postgres::row::RecordColumns;
use crate::postgres::timeline::WrittenRecord;

/// A begin with the grant that it asks for.
pub(in crate::postgres) struct BeginCall {
    ask: Begin,
    rk: RecordKey,
    change: Change,
    grant: Grant,
}

impl BeginCall {
    pub(in crate::postgres) fn new(ask: &Begin, clock: &ServerClock) -> Self {
        let (change, grant) = machine::first_grant(ask, &clock.observe_absent());
        Self { ask: *ask, rk: ask.call.record_key(), change, grant }
    }

    pub(in crate::postgres) fn into_grant(self) -> Grant {
        self.grant
    }
}

impl BatchCall for BeginCall {
    const SHARES_ROWS: bool = true;

    fn statements(statements: &Statements) -> &CallStatements {
        &statements.begin
    }

    fn key(&self) -> &RecordKey {
        &self.rk
    }

    fn bytes(&self) -> usize {
        0
    }

    /// Draws the token: it would be too small after a long wait for a connection.
    fn prepare(&mut self, clock: &ServerClock) {
        *self = Self::new(&self.ask, clock);
    }

    fn written(&self) -> Option<WrittenRecord> {
        Some(WrittenRecord { rk: self.rk, token: self.grant.token, is_completed: false })
    }

    fn columns<'a>(calls: &[&'a Self]) -> Vec<Column<'a>> {
        let records: Vec<_> = calls.iter().map(|call| RecordColumns::of(Some(&call.change.record), &call.rk)).collect();
        let mut columns = vec![Column::new(Type::BYTEA_ARRAY, calls.iter().map(|call| &call.rk.as_bytes()[..]))];
        // Without `expiry_s` and `answer`: a record in progress has none.
        columns.extend(record_columns(&records).into_iter().take(10));
        let lifetimes = calls.iter().map(|call| i64::from(call.change.lifetime.0));
        columns.push(Column::new(Type::INT8_ARRAY, lifetimes));
        columns
    }
}
