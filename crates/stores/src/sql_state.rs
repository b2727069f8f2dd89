//! What can be done about an error code of PostgreSQL, whatever the driver.

use hapax_core::ledger::FaultKind;

use crate::chaos::Mutant;

/// What can be done about an error of a statement, with its code and the name of the server's function that raised it.
pub(crate) fn fault_kind(code: &str, routine: Option<&str>) -> FaultKind {
    match code {
        code if CONFLICTS.contains(&code) => FaultKind::Conflict,
        UNIQUE_VIOLATION if Mutant::PostgresAnyViolationIsOurs.is_on() => FaultKind::Conflict,
        // The table of locks is full, or the server is out of memory: a smaller transaction may fit.
        OUT_OF_MEMORY => FaultKind::TooLarge,
        code if MISSING.contains(&code) || is_right_missing(code, routine) => FaultKind::Unusable,
        READ_ONLY if Mutant::PostgresReadOnlyIsAFailure.is_on() => FaultKind::Failed,
        // 58 is an error of the system, for instance a disk that cannot be read.
        code if ["08", "53", "57P", "58", READ_ONLY].iter().any(|class| code.starts_with(class)) => {
            FaultKind::Unavailable
        }
        _ => FaultKind::Failed,
    }
}

/// A serialization failure, a deadlock, a lock that was not free in time.
const CONFLICTS: [&str; 3] = ["40001", "40P01", "55P03"];

/// Another row has the same key.
pub(crate) const UNIQUE_VIOLATION: &str = "23505";

const OUT_OF_MEMORY: &str = "53200";

/// The server takes no writes.
const READ_ONLY: &str = "25006";

/// A table, a column, a schema, a function.
const MISSING: [&str; 4] = ["42P01", "42703", "3F000", "42883"];

/// Whether the role has no right to an object. A policy that forbids one row has the same code, and so has an error
/// that a function of the user raises: those are about one message. The names are those of the server's own functions,
/// which no language changes.
fn is_right_missing(code: &str, routine: Option<&str>) -> bool {
    code == "42501" && routine.is_some_and(|name| name.starts_with("aclcheck"))
}
