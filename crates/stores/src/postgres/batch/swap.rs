//! Swaps of records.

use hapax_core::RecordKey;
use hapax_core::machine::{Change, Observed};
use tokio_postgres::types::Type;

use super::columns::{Column, answer_bytes, record_columns};
use super::{BatchCall, CallStatements, Statements};
use crate::postgres::clock::ServerClock;
use crate::postgres::row::{self, RecordColumns};
use crate::postgres::timeline::WrittenRecord;

/// A change of the record that was seen.
#[derive(Clone)]
pub(in crate::postgres) struct SwapCall {
    pub(in crate::postgres) rk: RecordKey,
    pub(in crate::postgres) seen: Observed,
    pub(in crate::postgres) next: Change,
}

impl BatchCall for SwapCall {
    const SHARES_ROWS: bool = false;

    fn statements(statements: &Statements) -> &CallStatements {
        &statements.swap
    }

    fn key(&self) -> &RecordKey {
        &self.rk
    }

    fn bytes(&self) -> usize {
        answer_bytes(&self.next.record) + self.seen.record.as_ref().map_or(0, answer_bytes)
    }

    fn prepare(&mut self, _: &ServerClock) {}

    fn written(&self) -> Option<WrittenRecord> {
        let (token, is_completed) = (self.next.record.token, self.next.record.state.holding().is_none());
        Some(WrittenRecord { rk: self.rk, token, is_completed })
    }

    fn columns<'a>(calls: &[&'a Self]) -> Vec<Column<'a>> {
        let next: Vec<_> = calls.iter().map(|call| RecordColumns::of(Some(&call.next.record), &call.rk)).collect();
        let seen: Vec<_> = calls.iter().map(|call| RecordColumns::of(call.seen.record.as_ref(), &call.rk)).collect();
        let seen_end =
            |call: &&Self| call.seen.live().map(|_| row::stored_time(call.seen.now.plus(call.seen.life_left)));
        let mut columns = vec![Column::new(Type::BYTEA_ARRAY, calls.iter().map(|call| &call.rk.as_bytes()[..]))];
        columns.extend(record_columns(&next));
        columns.push(Column::new(Type::INT8_ARRAY, calls.iter().map(|call| i64::from(call.next.lifetime.0))));
        columns.push(Column::new(Type::TIMESTAMPTZ_ARRAY, calls.iter().map(seen_end)));
        columns.extend(record_columns(&seen));
        columns
    }
}
