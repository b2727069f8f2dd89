//! Errors of sqlx as faults of the ledger.

use hapax_core::ledger::{Fault, FaultKind};
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::sql_state::{UNIQUE_VIOLATION, fault_kind};

pub(super) fn fault(error: sqlx::Error) -> Fault {
    Fault::new(kind(&error), error)
}

/// The fault of a call that got no connection. The role is not let in, the database is not there, or the options are
/// wrong: nothing of that changes by itself.
pub(super) fn connect_fault(error: sqlx::Error) -> Fault {
    let is_unusable = if let sqlx::Error::Database(error) = &error {
        let code = error.downcast_ref::<PgDatabaseError>().code();
        code.starts_with("28") || code == "3D000"
    } else {
        matches!(error, sqlx::Error::Configuration(_))
    };
    let kind = if is_unusable { FaultKind::Unusable } else { FaultKind::Unavailable };
    Fault::new(kind, error)
}

/// The fault of a failed COMMIT. Unless the server says so, nobody knows whether it was carried out.
pub(super) fn commit_fault(error: sqlx::Error) -> Fault {
    let kind = if is_rolled_back(&error) { kind(&error) } else { FaultKind::CommitUnknown };
    Fault::new(kind, error)
}

/// Whether the transaction was certainly rolled back. After a fatal error it may have committed.
fn is_rolled_back(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    let error = error.downcast_ref::<PgDatabaseError>();
    // 40003 says that the completion is unknown, and 08 is about the connection.
    matches!(error.severity(), PgSeverity::Error) && error.code() != "40003" && !error.code().starts_with("08")
}

/// Whether the error says that the ledger in this schema has a row with the same key. Other tables have keys, too.
pub(super) fn is_of_key(error: &sqlx::Error, schema: &str) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    let error = error.downcast_ref::<PgDatabaseError>();
    error.code() == UNIQUE_VIOLATION
        && error.schema() == Some(schema)
        && error.table() == Some("hapax_ledger")
        && error.constraint() == Some("hapax_ledger_pkey")
}

/// What can be done about an error that came before COMMIT was sent.
pub(super) fn kind(error: &sqlx::Error) -> FaultKind {
    if let sqlx::Error::Database(error) = error {
        let error = error.downcast_ref::<PgDatabaseError>();
        return fault_kind(error.code(), error.routine());
    }
    // Without a reply: the connection broke, unless the driver could not read or write a value.
    let is_broken = matches!(error, sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::WorkerCrashed);
    if is_broken { FaultKind::Unavailable } else { FaultKind::Failed }
}
