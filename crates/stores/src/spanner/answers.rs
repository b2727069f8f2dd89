//! The meaning of an answer of Spanner. Pure; answers.md has the numbered rows.

use hapax_core::{BoxError, Error, ErrorKind};
use hapax_net::google::{GoogleCode, GoogleFailure, GoogleStatus};

use crate::errors::{not_applied, unknown, unusable};

/// The result of a call.
pub(super) type SpannerResult<T> = Result<T, SpannerFailure>;

/// Why a call has no result.
#[derive(Debug)]
pub(super) enum SpannerFailure {
    /// Another transaction is in the way.
    Aborted(BoxError),
    /// The session has ended.
    LostSession(BoxError),
    /// A row with the key of an insert exists.
    RowExists(BoxError),
    /// A commit may have happened. Any other call leaves nothing behind.
    Unclear(BoxError),
    /// The statement or the change is wrong, or breaks a constraint. Nothing was written.
    Refused(BoxError),
    /// Any other reason. Nothing was written.
    Failed(Error),
}

impl SpannerFailure {
    pub(super) fn of(failure: GoogleFailure) -> Self {
        match failure {
            GoogleFailure::Answered(status) => Self::of_status(status),
            GoogleFailure::NotSent(error) => Self::Failed(error), // S8
            GoogleFailure::Unknown(_) => Self::Unclear(failure.into()), // S9
        }
    }

    fn of_status(status: GoogleStatus) -> Self {
        let is_session = status.message.contains("Session not found");
        let code = status.code;
        let cause = GoogleFailure::Answered(status);
        match code {
            GoogleCode::Aborted => Self::Aborted(cause.into()), // S1
            GoogleCode::NotFound if is_session => Self::LostSession(cause.into()), // S2
            GoogleCode::AlreadyExists => Self::RowExists(cause.into()), // S3
            GoogleCode::NotFound => Self::Failed(
                unusable(
                    "Spanner has no such database or table: `hapax migrate` makes the table; or the URL names another \
                     database",
                )
                .caused_by(cause),
            ), // S4
            GoogleCode::PermissionDenied | GoogleCode::Unauthenticated => {
                Self::Failed(
                    unusable("the credentials for Google Cloud have no right to use the database").caused_by(cause),
                ) // S5
            }
            GoogleCode::InvalidArgument
            | GoogleCode::FailedPrecondition
            | GoogleCode::OutOfRange
            | GoogleCode::Unimplemented => Self::Refused(cause.into()), // S6
            GoogleCode::Ok
            | GoogleCode::Cancelled
            | GoogleCode::Unknown
            | GoogleCode::DeadlineExceeded
            | GoogleCode::ResourceExhausted
            | GoogleCode::Internal
            | GoogleCode::Unavailable
            | GoogleCode::DataLoss => Self::Unclear(cause.into()), // S7
        }
    }

    /// Whether the whole transaction may run again.
    pub(super) fn may_repeat(&self) -> bool {
        match self {
            Self::Aborted(_) | Self::LostSession(_) => true,
            Self::RowExists(_) | Self::Unclear(_) | Self::Refused(_) | Self::Failed(_) => false,
        }
    }

    /// The error of a call that leaves nothing behind.
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Aborted(cause) => not_applied("other transactions of Spanner are in the way").caused_by(cause),
            Self::LostSession(cause) => not_applied("a session of Spanner has ended").caused_by(cause),
            Self::RowExists(cause) => not_applied("Spanner has such a thing already").caused_by(cause),
            Self::Refused(cause) => {
                unusable("the tables in Spanner are missing or do not fit: `hapax migrate` makes them").caused_by(cause)
            }
            Self::Unclear(cause) => not_applied("Spanner did not answer a call").caused_by(cause),
            Self::Failed(error) => error,
        }
    }

    /// The error of a transaction one of whose commits may have happened.
    pub(super) fn into_error_after_commit(self) -> Error {
        let error = self.into_error();
        // A record that cannot be read is damaged, whatever has happened to it.
        if error.kind() == ErrorKind::Damaged {
            return error;
        }
        unknown("Spanner did not confirm a commit").caused_by(error)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn answered(code: GoogleCode, message: &str) -> SpannerFailure {
        let (message, details) = (message.to_owned(), BTreeMap::new());
        SpannerFailure::of(GoogleFailure::Answered(GoogleStatus { code, message, details }))
    }

    fn kinds(failure: impl Fn() -> SpannerFailure) -> (ErrorKind, ErrorKind) {
        (failure().into_error().kind(), failure().into_error_after_commit().kind())
    }

    #[test]
    fn a_transaction_that_was_aborted_or_has_lost_its_session_runs_again() {
        assert!(answered(GoogleCode::Aborted, "").may_repeat(), "S1");
        let session = "Session not found: projects/p/instances/i/databases/d/sessions/0";
        assert!(answered(GoogleCode::NotFound, session).may_repeat(), "S2");
        assert!(!answered(GoogleCode::NotFound, "Database not found: projects/p").may_repeat(), "S4");
        assert!(matches!(answered(GoogleCode::AlreadyExists, "Row"), SpannerFailure::RowExists(_)), "S3");
    }

    #[test]
    fn a_call_before_the_commit_leaves_nothing_behind_and_one_at_the_commit_may() {
        use ErrorKind::{NotApplied, Unknown, Unusable};
        for code in [GoogleCode::Unavailable, GoogleCode::DeadlineExceeded, GoogleCode::Unknown, GoogleCode::Internal] {
            assert_eq!(kinds(|| answered(code, "")), (NotApplied, Unknown), "S7: {code:?}");
        }
        assert_eq!(kinds(|| SpannerFailure::of(GoogleFailure::Unknown("cut".into()))), (NotApplied, Unknown), "S9");
        let not_sent = || SpannerFailure::of(GoogleFailure::NotSent(not_applied("no connection")));
        assert_eq!(kinds(not_sent), (NotApplied, Unknown), "S8");
        for code in [GoogleCode::NotFound, GoogleCode::PermissionDenied, GoogleCode::InvalidArgument] {
            assert_eq!(kinds(|| answered(code, "")), (Unusable, Unknown), "S4 to S6: {code:?}");
        }
    }
}
