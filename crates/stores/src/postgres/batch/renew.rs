//! Renewals of grants.

use hapax_core::RecordKey;
use hapax_core::machine::Claim;
use tokio_postgres::types::Type;

use super::columns::Column;
use super::{BatchCall, CallStatements, Statements};
use crate::postgres::clock::ServerClock;
use crate::postgres::row;
use crate::postgres::timeline::WrittenRecord;

/// A renewal of the grant with this claim.
#[derive(Clone)]
pub(in crate::postgres) struct RenewCall {
    pub(in crate::postgres) rk: RecordKey,
    pub(in crate::postgres) claim: Claim,
}

impl BatchCall for RenewCall {
    const SHARES_ROWS: bool = false;

    fn statements(statements: &Statements) -> &CallStatements {
        &statements.renew
    }

    fn key(&self) -> &RecordKey {
        &self.rk
    }

    fn bytes(&self) -> usize {
        0
    }

    fn prepare(&mut self, _: &ServerClock) {}

    fn written(&self) -> Option<WrittenRecord> {
        None
    }

    fn columns<'a>(calls: &[&'a Self]) -> Vec<Column<'a>> {
        let each = || calls.iter();
        vec![
            Column::new(Type::BYTEA_ARRAY, each().map(|call| &call.rk.as_bytes()[..])),
            Column::new(Type::INT8_ARRAY, each().map(|call| row::stored_token(call.claim.token))),
            Column::new(Type::BYTEA_ARRAY, each().map(|call| &call.claim.owner.0[..])),
        ]
    }
}
