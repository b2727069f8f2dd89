//! The meaning of an answer of Pub/Sub. Pure; answers.md has the numbered rows.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use hapax_core::outbox::Published;
use hapax_core::{Error, ErrorKind, Result};
use hapax_net::google::{GoogleCode, GoogleFailure};

use crate::errors::{chain, not_applied, unknown, unusable};

/// How long to wait before an event is sent again that only an operator can help.
const OPERATOR_PAUSE: Duration = Duration::from_secs(1);

/// Why a call, or a part of it, failed.
#[derive(Clone, Debug)]
pub(super) struct PubSubFailure {
    meaning: StatusMeaning,
    code: Option<GoogleCode>,
    what: String,
    /// The service's reasons for single ack ids.
    named: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatusMeaning {
    NotOurs,
    WrongArgument,
    Throttled,
    NeedsOperator,
    NotSent,
    Unclear,
    NotDone,
}

impl PubSubFailure {
    pub(super) fn of(failure: GoogleFailure) -> Self {
        let what = chain(&failure);
        let (meaning, code, named) = match failure {
            GoogleFailure::Answered(status) => (meaning_of(status.code), Some(status.code), status.details),
            GoogleFailure::NotSent(error) if error.kind() == ErrorKind::Unusable => {
                (StatusMeaning::NeedsOperator, None, BTreeMap::new()) // A5
            }
            GoogleFailure::NotSent(_) => (StatusMeaning::NotSent, None, BTreeMap::new()), // A7
            GoogleFailure::Unknown(_) => (StatusMeaning::Unclear, None, BTreeMap::new()), // A8
        };
        Self { meaning, code, what, named }
    }

    /// The outcome of a part of a request that has another number of results than of parts, or none in time.
    pub(super) fn without_result() -> Self {
        let what = "Pub/Sub gives no result for it".to_owned();
        Self { meaning: StatusMeaning::Unclear, code: None, what, named: BTreeMap::new() } // A10
    }

    /// The outcome of each of the ack ids of a request. None if the failure names none of them.
    pub(super) fn by_ack_id(&self, ack_ids: &[String]) -> Option<Vec<Result<(), Self>>> {
        if !ack_ids.iter().any(|id| self.named.contains_key(id)) {
            return None;
        }
        let outcome = |id: &String| match self.named.get(id) {
            None => Ok(()),
            Some(reason) => Err(Self::of_reason(reason)),
        };
        Some(ack_ids.iter().map(outcome).collect())
    }

    fn of_reason(reason: &str) -> Self {
        let meaning = match reason {
            _ if reason.starts_with("PERMANENT_FAILURE") => StatusMeaning::NotOurs, // A2
            _ => StatusMeaning::NotDone,                                            // A6
        };
        let what = format!("Pub/Sub refuses an ack id: {reason}");
        Self { meaning, code: None, what, named: BTreeMap::new() }
    }

    /// Whether a delivery belongs to nobody here.
    pub(super) fn is_not_ours(&self) -> bool {
        [StatusMeaning::NotOurs, StatusMeaning::WrongArgument].contains(&self.meaning)
    }

    /// Whether it is about what was sent. About a request of several messages it says nothing of a single one.
    pub(super) fn is_about_content(&self) -> bool {
        self.meaning == StatusMeaning::WrongArgument
    }

    /// Whether the credentials hold, and have no right to do this.
    pub(super) fn is_denied(&self) -> bool {
        self.code == Some(GoogleCode::PermissionDenied)
    }

    /// Whether there is no such topic or subscription.
    pub(super) fn is_missing(&self) -> bool {
        self.code == Some(GoogleCode::NotFound)
    }

    /// Whether there is one like it already.
    pub(super) fn is_there(&self) -> bool {
        self.code == Some(GoogleCode::AlreadyExists)
    }

    /// Whether only an operator can help.
    pub(super) fn needs_operator(&self) -> bool {
        self.meaning == StatusMeaning::NeedsOperator
    }

    /// The end of a settlement.
    pub(super) fn settled(self) -> Result<()> {
        match self.meaning {
            StatusMeaning::NotOurs | StatusMeaning::WrongArgument => Ok(()),
            StatusMeaning::Unclear => Err(unknown("Pub/Sub did not confirm a settlement").caused_by(self)),
            StatusMeaning::Throttled
            | StatusMeaning::NeedsOperator
            | StatusMeaning::NotSent
            | StatusMeaning::NotDone => Err(not_applied("Pub/Sub does not take a settlement now").caused_by(self)),
        }
    }

    /// The end of a publication.
    pub(super) fn published(self, topic: &str) -> Published {
        let after = match self.meaning {
            StatusMeaning::Unclear => {
                return Published::Unknown(
                    unknown(format!("Pub/Sub did not confirm an event for the topic `{topic}`")).caused_by(self),
                );
            }
            StatusMeaning::WrongArgument => {
                return Published::Refused(format!("the topic `{topic}` never takes the event: {self}"));
            }
            StatusMeaning::Throttled | StatusMeaning::NotSent => Duration::ZERO,
            StatusMeaning::NotOurs | StatusMeaning::NeedsOperator | StatusMeaning::NotDone => OPERATOR_PAUSE,
        };
        let cause = not_applied(format!("the topic `{topic}` does not take an event now")).caused_by(self);
        Published::NotPublished { after, cause }
    }

    /// The end of a stream, or of a question about a topic or a subscription.
    pub(super) fn asked(self, what: &str) -> Error {
        match self.meaning {
            StatusMeaning::NeedsOperator => unusable(format!("{what} cannot be used")).caused_by(self),
            StatusMeaning::NotOurs
            | StatusMeaning::WrongArgument
            | StatusMeaning::Throttled
            | StatusMeaning::NotSent
            | StatusMeaning::Unclear
            | StatusMeaning::NotDone => not_applied(format!("{what} cannot be asked now")).caused_by(self),
        }
    }
}

fn meaning_of(code: GoogleCode) -> StatusMeaning {
    match code {
        GoogleCode::InvalidArgument => StatusMeaning::WrongArgument, // A3
        GoogleCode::ResourceExhausted => StatusMeaning::Throttled,   // A4
        GoogleCode::NotFound
        | GoogleCode::PermissionDenied
        | GoogleCode::Unauthenticated
        | GoogleCode::FailedPrecondition => StatusMeaning::NeedsOperator, // A5
        // A status of an answer that says nothing else is `Ok`, which no failure has.
        GoogleCode::Ok
        | GoogleCode::Unavailable
        | GoogleCode::DeadlineExceeded
        | GoogleCode::Internal
        | GoogleCode::Aborted
        | GoogleCode::Cancelled
        | GoogleCode::Unknown
        | GoogleCode::DataLoss => StatusMeaning::Unclear, // A8
        GoogleCode::AlreadyExists | GoogleCode::OutOfRange | GoogleCode::Unimplemented => StatusMeaning::NotDone, // A9
    }
}

impl fmt::Display for PubSubFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl StdError for PubSubFailure {}

#[cfg(test)]
mod tests {
    use hapax_net::google::GoogleStatus;

    use super::*;

    fn answered(code: GoogleCode, details: &[(&str, &str)]) -> PubSubFailure {
        let details = details.iter().map(|(id, reason)| ((*id).to_owned(), (*reason).to_owned())).collect();
        PubSubFailure::of(GoogleFailure::Answered(GoogleStatus { code, message: "words".into(), details }))
    }

    /// The ends of a settlement, a publication and a stream.
    fn ends(failure: &PubSubFailure) -> [&'static str; 3] {
        let names = [
            (ErrorKind::NotApplied, "not applied"),
            (ErrorKind::Unknown, "unknown"),
            (ErrorKind::Unusable, "unusable"),
        ];
        let kind = |kind| names.into_iter().find(|(other, _)| *other == kind).map_or("another kind", |(_, name)| name);
        let settled = failure.clone().settled().map_or_else(|error| kind(error.kind()), |()| "done");
        let published = match failure.clone().published("t") {
            Published::Yes { .. } => "published",
            Published::NotPublished { after, .. } if after.is_zero() => "not published",
            Published::NotPublished { .. } => "later",
            Published::Unknown(_) => "unknown",
            Published::Refused(_) => "refused",
        };
        [settled, published, kind(failure.clone().asked("the topic `t`").kind())]
    }

    #[test]
    fn every_answer_has_its_row() {
        let unclear = ["unknown", "unknown", "not applied"];
        let operator = ["not applied", "later", "unusable"];
        for (row, code, expected) in [
            ("A3", GoogleCode::InvalidArgument, ["done", "refused", "not applied"]),
            ("A4", GoogleCode::ResourceExhausted, ["not applied", "not published", "not applied"]),
            ("A5", GoogleCode::NotFound, operator),
            ("A5", GoogleCode::PermissionDenied, operator),
            ("A5", GoogleCode::Unauthenticated, operator),
            ("A5", GoogleCode::FailedPrecondition, operator),
            ("A8", GoogleCode::Unavailable, unclear),
            ("A8", GoogleCode::DeadlineExceeded, unclear),
            ("A8", GoogleCode::Internal, unclear),
            ("A8", GoogleCode::Aborted, unclear),
            ("A8", GoogleCode::Cancelled, unclear),
            ("A8", GoogleCode::Unknown, unclear),
            ("A8", GoogleCode::DataLoss, unclear),
            ("A9", GoogleCode::AlreadyExists, ["not applied", "later", "not applied"]),
            ("A9", GoogleCode::Unimplemented, ["not applied", "later", "not applied"]),
        ] {
            let failure = answered(code, &[]);
            assert_eq!(ends(&failure), expected, "{row} {code:?}");
            assert!(failure.to_string().contains("words"), "{failure}");
        }
        let unsent = |kind| PubSubFailure::of(GoogleFailure::NotSent(Error::new(kind, "x")));
        assert_eq!(ends(&unsent(ErrorKind::NotApplied)), ["not applied", "not published", "not applied"], "A7");
        assert_eq!(ends(&unsent(ErrorKind::Unusable)), operator, "A5");
        assert_eq!(ends(&PubSubFailure::of(GoogleFailure::Unknown("cut".into()))), unclear, "A8");
        assert_eq!(ends(&PubSubFailure::without_result()), unclear, "A10");
    }

    #[test]
    fn a_failure_that_names_ack_ids_leaves_the_others_done() {
        let ids = ["a", "b", "c"].map(str::to_owned);
        let reasons =
            [("a", "PERMANENT_FAILURE_INVALID_ACK_ID"), ("c", "TRANSIENT_FAILURE_UNORDERED_ACK_ID"), ("x", "y")];
        let failure = answered(GoogleCode::FailedPrecondition, &reasons);
        let outcomes = failure.by_ack_id(&ids).unwrap();
        let settled = |outcome: &Result<(), PubSubFailure>| outcome.clone().map_or_else(PubSubFailure::settled, Ok);
        assert!(outcomes[0].as_ref().is_err_and(PubSubFailure::is_not_ours) && settled(&outcomes[0]).is_ok(), "A2");
        assert!(outcomes[1].is_ok(), "it is not named");
        assert_eq!(settled(&outcomes[2]).unwrap_err().kind(), ErrorKind::NotApplied, "A6");
        assert!(answered(GoogleCode::FailedPrecondition, &[]).by_ack_id(&ids).is_none());
    }
}
