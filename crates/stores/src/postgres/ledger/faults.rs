//! Errors of the driver as faults of the ledger.

use std::error::Error as StdError;

use hapax_core::ledger::{Fault, FaultKind};
use hapax_core::{Error, ErrorKind};
use tokio_postgres::error::{DbError, SqlState};

use crate::postgres::call_error::{PostgresCallError, PostgresDriverError, is_rolled_back};
use crate::sql_state::fault_kind;

/// The fault of a call that needed a connection of the pool.
pub(super) fn connect_fault(error: PostgresCallError) -> Fault {
    tables_fault(error.into())
}

/// The fault of a statement in a transaction of its own. Without a reply, it may have been carried out.
pub(super) fn call_fault(error: PostgresCallError) -> Fault {
    match error {
        PostgresCallError::Sent(error) => fault(error),
        PostgresCallError::Judged(_) | PostgresCallError::NotConnected(_) => connect_fault(error),
    }
}

pub(super) fn tables_fault(error: Error) -> Fault {
    let is_unusable = error.kind() == ErrorKind::Unusable;
    let kind = if is_unusable { FaultKind::Unusable } else { FaultKind::Unavailable };
    Fault::new(kind, error)
}

pub(super) fn fault(error: tokio_postgres::Error) -> Fault {
    Fault::new(kind(&error), PostgresDriverError(error))
}

/// The fault of a failed COMMIT. Unless the server says so, nobody knows whether it was carried out.
pub(super) fn commit_fault(error: tokio_postgres::Error) -> Fault {
    let is_definite = error.as_db_error().is_some_and(is_rolled_back);
    let kind = if is_definite { kind(&error) } else { FaultKind::CommitUnknown };
    Fault::new(kind, PostgresDriverError(error))
}

/// Whether a finish has found no claim: it was rolled back, or the transaction has ended since.
pub(super) fn is_unclaimed(fault: &Fault) -> bool {
    let error = fault.source.downcast_ref::<PostgresDriverError>();
    error.and_then(|error| error.0.code()) == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE)
}

/// Whether the error says that the ledger in this schema has a row with the same key. Other tables have keys, too.
pub(super) fn is_of_key(error: &tokio_postgres::Error, schema: &str) -> bool {
    error.as_db_error().is_some_and(|error| {
        *error.code() == SqlState::UNIQUE_VIOLATION
            && error.schema() == Some(schema)
            && error.table() == Some("hapax_ledger")
            && error.constraint() == Some("hapax_ledger_pkey")
    })
}

/// What can be done about an error that came before COMMIT was sent.
pub(super) fn kind(error: &tokio_postgres::Error) -> FaultKind {
    let Some(code) = error.code() else {
        // Without a reply: the connection broke, unless the driver could not read or write a value.
        return if error.is_closed() || error.source().is_some_and(<dyn StdError>::is::<std::io::Error>) {
            FaultKind::Unavailable
        } else {
            FaultKind::Failed
        };
    };
    fault_kind(code.code(), error.as_db_error().and_then(DbError::routine))
}
