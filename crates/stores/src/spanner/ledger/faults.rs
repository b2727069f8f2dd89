//! The fault that a failure of Spanner counts as.

use std::error::Error as StdError;
use std::fmt;

use hapax_core::ledger::{Fault, FaultKind};
use hapax_core::{Error, ErrorKind};

use crate::spanner::answers::SpannerFailure;

/// A failure before the commit: nothing was written.
pub(super) fn before_commit(failure: SpannerFailure) -> Fault {
    let kind = match &failure {
        SpannerFailure::Aborted(_) => FaultKind::Conflict,
        SpannerFailure::LostSession(_) | SpannerFailure::Unclear(_) => FaultKind::Unavailable,
        SpannerFailure::RowExists(_) => FaultKind::Failed,
        SpannerFailure::Refused(cause) if is_missing(&cause.to_string()) => FaultKind::Unusable,
        SpannerFailure::Refused(cause) if is_too_large(&cause.to_string()) => FaultKind::TooLarge,
        SpannerFailure::Refused(_) => FaultKind::Failed,
        SpannerFailure::Failed(error) => kind_of(error.kind()),
    };
    Fault::new(kind, message(failure))
}

/// A failure of a commit. `is_unclear`: an earlier one of this transaction may have happened.
pub(super) fn at_commit(failure: SpannerFailure, is_unclear: bool) -> Fault {
    let fault = match &failure {
        SpannerFailure::Unclear(_) => FaultKind::CommitUnknown,
        SpannerFailure::Aborted(_) => FaultKind::Conflict,
        // The claim has found no row, and its lock lasts until now: somebody else wrote it without a lock.
        SpannerFailure::RowExists(cause) if cause.to_string().contains("hapax_ledger") => FaultKind::RowExists,
        SpannerFailure::LostSession(_)
        | SpannerFailure::RowExists(_)
        | SpannerFailure::Refused(_)
        | SpannerFailure::Failed(_) => return after(before_commit(failure), is_unclear),
    };
    after(Fault::new(fault, message(failure)), is_unclear)
}

/// An abort says that nothing was written, also if an earlier commit got no answer. Nothing else does.
fn after(fault: Fault, is_unclear: bool) -> Fault {
    match is_unclear && fault.kind != FaultKind::Conflict {
        true => Fault { kind: FaultKind::CommitUnknown, ..fault },
        false => fault,
    }
}

/// The kind of fault of an error of the store.
pub(super) fn kind_of(kind: ErrorKind) -> FaultKind {
    match kind {
        ErrorKind::Unusable => FaultKind::Unusable,
        ErrorKind::Unknown => FaultKind::CommitUnknown,
        ErrorKind::Invalid | ErrorKind::NotApplied | ErrorKind::Full | ErrorKind::Damaged | _ => FaultKind::Unavailable,
    }
}

/// The error of a failure, for a caller or behind a fault.
pub(super) fn message(failure: SpannerFailure) -> Error {
    match failure {
        SpannerFailure::Refused(cause) => {
            Error::new(ErrorKind::NotApplied, "Spanner refuses a statement or a change").caused_by(cause)
        }
        other @ (SpannerFailure::Aborted(_)
        | SpannerFailure::LostSession(_)
        | SpannerFailure::RowExists(_)
        | SpannerFailure::Unclear(_)
        | SpannerFailure::Failed(_)) => other.into_error(),
    }
}

/// Whether Spanner says that a table or a column is not there.
fn is_missing(text: &str) -> bool {
    ["Table not found", "Column not found", "Unrecognized name"].iter().any(|words| text.contains(words))
}

/// Whether Spanner says that a transaction has more changes, or more bytes, than it takes.
fn is_too_large(text: &str) -> bool {
    ["too many mutations", "mutation limit", "mutations in a transaction", "transaction size", "commit size"]
        .iter()
        .any(|words| text.contains(words))
}

/// Why a statement in a transaction of Spanner has failed.
#[derive(Debug)]
pub struct SpannerStatementError(Fault);

impl SpannerStatementError {
    pub(super) fn fault_kind(&self) -> FaultKind {
        self.0.kind
    }
}

impl From<Fault> for SpannerStatementError {
    fn from(fault: Fault) -> Self {
        Self(fault)
    }
}

impl fmt::Display for SpannerStatementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.kind.fmt(f)
    }
}

impl StdError for SpannerStatementError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> SpannerFailure {
        SpannerFailure::Refused(text.to_owned().into())
    }

    #[test]
    fn a_failure_before_the_commit_has_left_nothing() {
        let kinds = [
            (SpannerFailure::Aborted("".into()), FaultKind::Conflict),
            (SpannerFailure::LostSession("".into()), FaultKind::Unavailable),
            (SpannerFailure::Unclear("".into()), FaultKind::Unavailable),
            (SpannerFailure::RowExists("".into()), FaultKind::Failed),
            (refused("Table not found: hapax_ledger"), FaultKind::Unusable),
            (refused("The transaction contains too many mutations."), FaultKind::TooLarge),
            (refused("Syntax error"), FaultKind::Failed),
            (SpannerFailure::Failed(Error::new(ErrorKind::Unusable, "")), FaultKind::Unusable),
            (SpannerFailure::Failed(Error::new(ErrorKind::NotApplied, "")), FaultKind::Unavailable),
        ];
        for (failure, kind) in kinds {
            let shown = format!("{failure:?}");
            assert_eq!(before_commit(failure).kind, kind, "{shown}");
        }
    }

    #[test]
    fn after_a_commit_without_an_answer_only_an_abort_says_that_nothing_was_written() {
        let exists = || SpannerFailure::RowExists("Row [..] in table hapax_ledger already exists".into());
        assert_eq!(at_commit(exists(), false).kind, FaultKind::RowExists);
        assert_eq!(at_commit(SpannerFailure::RowExists("in table effect".into()), false).kind, FaultKind::Failed);
        assert_eq!(at_commit(refused("Foreign key"), false).kind, FaultKind::Failed);
        assert_eq!(at_commit(SpannerFailure::Unclear("".into()), false).kind, FaultKind::CommitUnknown);
        assert_eq!(at_commit(SpannerFailure::Aborted("".into()), true).kind, FaultKind::Conflict);
        let others = [exists(), refused("Foreign key"), SpannerFailure::LostSession("".into())];
        for failure in others {
            assert_eq!(at_commit(failure, true).kind, FaultKind::CommitUnknown);
        }
    }
}
