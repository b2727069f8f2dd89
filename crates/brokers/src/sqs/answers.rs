//! The meaning of an answer of SQS. Pure; answers.md has the numbered rows.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use hapax_core::outbox::Published;
use hapax_core::{Error, ErrorKind, Result};
use hapax_net::aws::{AwsFailure, AwsRefusal};

use crate::errors::{chain, not_applied, unknown, unusable};

/// How long to wait before an event is sent again that only an operator can help.
const OPERATOR_PAUSE: Duration = Duration::from_secs(1);

/// Why a call, or an entry of a batch, failed.
#[derive(Clone, Debug)]
pub(super) struct CallFailure {
    meaning: FailureMeaning,
    /// Empty where the service refused nothing.
    code: String,
    what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureMeaning {
    NotOurs,
    WrongParameter,
    NeverTaken,
    Throttled,
    NeedsOperator,
    NotSent,
    Unclear,
    NotDone,
}

impl CallFailure {
    pub(super) fn of(failure: AwsFailure) -> Self {
        let what = chain(&failure);
        let (meaning, code) = match failure {
            AwsFailure::Refused(refusal) => {
                let code = plain(&refusal.code);
                (meaning_of(code), code.to_owned())
            }
            AwsFailure::NotSent(error) if error.kind() == ErrorKind::Unusable => {
                (FailureMeaning::NeedsOperator, String::new()) // A5
            }
            AwsFailure::NotSent(_) => (FailureMeaning::NotSent, String::new()), // A7
            AwsFailure::Unknown(_) => (FailureMeaning::Unclear, String::new()), // A8
        };
        Self { meaning, code, what }
    }

    /// The outcome of an entry with this code.
    pub(super) fn of_code(code: &str, message: &str) -> Self {
        let code = plain(AwsRefusal::short_code(code));
        let what = format!("SQS refused it: {code}: {message}");
        Self { meaning: meaning_of(code), code: code.to_owned(), what }
    }

    /// The outcome of an entry that the answer leaves out.
    pub(super) fn without_result() -> Self {
        let what = "the answer of SQS leaves it out".to_owned();
        Self { meaning: FailureMeaning::Unclear, code: String::new(), what } // A10
    }

    /// Whether the service may have done it.
    pub(super) fn is_unclear(&self) -> bool {
        self.meaning == FailureMeaning::Unclear
    }

    /// Whether a delivery belongs to nobody here.
    pub(super) fn is_not_ours(&self) -> bool {
        [FailureMeaning::NotOurs, FailureMeaning::WrongParameter].contains(&self.meaning)
    }

    /// Whether the credentials hold, and have no right to do this.
    pub(super) fn is_denied(&self) -> bool {
        self.code.starts_with("AccessDenied")
    }

    /// Whether it is about what was sent. About a batch it says nothing of a single message.
    pub(super) fn is_about_content(&self) -> bool {
        [FailureMeaning::NeverTaken, FailureMeaning::WrongParameter].contains(&self.meaning)
    }

    /// Whether there is no such queue.
    pub(super) fn is_missing(&self) -> bool {
        ["QueueDoesNotExist", "NonExistentQueue"].contains(&&*self.code)
    }

    /// The end of a settlement.
    pub(super) fn settled(self) -> Result<()> {
        match self.meaning {
            FailureMeaning::NotOurs | FailureMeaning::WrongParameter => Ok(()),
            FailureMeaning::Unclear => Err(unknown("SQS did not confirm a settlement").caused_by(self)),
            FailureMeaning::NeverTaken
            | FailureMeaning::Throttled
            | FailureMeaning::NeedsOperator
            | FailureMeaning::NotSent
            | FailureMeaning::NotDone => Err(not_applied("SQS does not take a settlement now").caused_by(self)),
        }
    }

    /// The end of a publication.
    pub(super) fn published(self, queue: &str) -> Published {
        let after = match self.meaning {
            FailureMeaning::Unclear => {
                return Published::Unknown(
                    unknown(format!("SQS did not confirm an event for the queue `{queue}`")).caused_by(self),
                );
            }
            FailureMeaning::NeverTaken | FailureMeaning::WrongParameter => {
                return Published::Refused(format!("the queue `{queue}` never takes the event: {self}"));
            }
            FailureMeaning::Throttled | FailureMeaning::NotSent => Duration::ZERO,
            FailureMeaning::NotOurs | FailureMeaning::NeedsOperator | FailureMeaning::NotDone => OPERATOR_PAUSE,
        };
        let cause = not_applied(format!("the queue `{queue}` does not take an event now")).caused_by(self);
        Published::NotPublished { after, cause }
    }

    /// The end of a poll, or of another question.
    pub(super) fn asked(self, queue: &str) -> Error {
        match self.meaning {
            FailureMeaning::NeedsOperator => unusable(format!("the queue `{queue}` cannot be used")).caused_by(self),
            FailureMeaning::NotOurs
            | FailureMeaning::WrongParameter
            | FailureMeaning::NeverTaken
            | FailureMeaning::Throttled
            | FailureMeaning::NotSent
            | FailureMeaning::Unclear
            | FailureMeaning::NotDone => {
                not_applied(format!("the queue `{queue}` cannot be asked now")).caused_by(self)
            }
        }
    }
}

/// The code without the word that some services of AWS write behind it.
fn plain(code: &str) -> &str {
    code.strip_suffix("Exception").unwrap_or(code)
}

/// What a plain code means that the service gives for a call or an entry.
fn meaning_of(code: &str) -> FailureMeaning {
    match code {
        "ReceiptHandleIsInvalid" | "MessageNotInflight" => FailureMeaning::NotOurs, // A2
        "InvalidParameterValue" => FailureMeaning::WrongParameter,                  // A2 and A3
        "MessageTooLong" | "InvalidMessageContents" | "BatchRequestTooLong" => FailureMeaning::NeverTaken, // A3
        "OverLimit" => FailureMeaning::Throttled,                                   // A4
        _ if code.contains("Throttl") => FailureMeaning::Throttled,                 // A4
        _ if is_for_operators(code) => FailureMeaning::NeedsOperator,               // A5
        "InternalError" | "InternalFailure" | "ServiceUnavailable" => FailureMeaning::Unclear, // A8
        // A6 and A9.
        _ => FailureMeaning::NotDone,
    }
}

/// Whether only an operator can help.
fn is_for_operators(code: &str) -> bool {
    const CODES: &[&str] = &[
        "InvalidAddress",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidSignature",
        "KmsAccessDenied",
        "KmsDisabled",
        "KmsInvalidKeyUsage",
        "KmsInvalidState",
        "KmsNotFound",
        "KmsOptInRequired",
        "MissingAuthenticationToken",
        "NonExistentQueue",
        "OptInRequired",
        "QueueDeletedRecently",
        "QueueDoesNotExist",
        "SignatureDoesNotMatch",
        "UnrecognizedClient",
    ];
    CODES.contains(&code) || code.starts_with("AccessDenied")
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl StdError for CallFailure {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ends of a settlement, a publication and a poll.
    fn ends(failure: &CallFailure) -> [&'static str; 3] {
        let names = [
            (ErrorKind::NotApplied, "not applied"),
            (ErrorKind::Unknown, "unknown"),
            (ErrorKind::Unusable, "unusable"),
        ];
        let kind = |kind| names.into_iter().find(|(other, _)| *other == kind).map_or("another kind", |(_, name)| name);
        let settled = failure.clone().settled().map_or_else(|error| kind(error.kind()), |()| "done");
        let published = match failure.clone().published("q") {
            Published::Yes { .. } => "published",
            Published::NotPublished { after, .. } if after.is_zero() => "not published",
            Published::NotPublished { .. } => "later",
            Published::Unknown(_) => "unknown",
            Published::Refused(_) => "refused",
        };
        [settled, published, kind(failure.clone().asked("q").kind())]
    }

    #[test]
    fn every_answer_has_its_row() {
        let rows = [
            ("A2", "ReceiptHandleIsInvalid", ["done", "later", "not applied"]),
            ("A2", "AWS.SimpleQueueService.MessageNotInflight", ["done", "later", "not applied"]),
            ("A2, A3", "InvalidParameterValue", ["done", "refused", "not applied"]),
            ("A2, A3", "com.amazon.coral.service#InvalidParameterValueException", ["done", "refused", "not applied"]),
            ("A3", "MessageTooLong", ["not applied", "refused", "not applied"]),
            ("A3", "com.amazonaws.sqs#InvalidMessageContents", ["not applied", "refused", "not applied"]),
            ("A3", "BatchRequestTooLong", ["not applied", "refused", "not applied"]),
            ("A4", "OverLimit", ["not applied", "not published", "not applied"]),
            ("A4", "ThrottlingException", ["not applied", "not published", "not applied"]),
            ("A4", "RequestThrottled", ["not applied", "not published", "not applied"]),
            ("A4", "KmsThrottled", ["not applied", "not published", "not applied"]),
            ("A5", "com.amazonaws.sqs#QueueDoesNotExist", ["not applied", "later", "unusable"]),
            ("A5", "AWS.SimpleQueueService.NonExistentQueue", ["not applied", "later", "unusable"]),
            ("A5", "AccessDenied", ["not applied", "later", "unusable"]),
            ("A5", "AccessDeniedException", ["not applied", "later", "unusable"]),
            ("A5", "InvalidClientTokenId", ["not applied", "later", "unusable"]),
            ("A5", "UnrecognizedClientException", ["not applied", "later", "unusable"]),
            ("A5", "InvalidSignatureException", ["not applied", "later", "unusable"]),
            ("A5", "SignatureDoesNotMatch", ["not applied", "later", "unusable"]),
            ("A6", "ExpiredToken", ["not applied", "later", "not applied"]),
            ("A8", "InternalError", ["unknown", "unknown", "not applied"]),
            ("A8", "ServiceUnavailable", ["unknown", "unknown", "not applied"]),
            ("A9", "SomethingNew", ["not applied", "later", "not applied"]),
        ];
        for (row, code, expected) in rows {
            assert_eq!(ends(&CallFailure::of_code(code, "")), expected, "{row} {code}");
        }
        assert_eq!(ends(&CallFailure::without_result()), ["unknown", "unknown", "not applied"], "A10");
        let unsent = |kind| CallFailure::of(AwsFailure::NotSent(Error::new(kind, "x")));
        assert_eq!(ends(&unsent(ErrorKind::NotApplied)), ["not applied", "not published", "not applied"], "A7");
        assert_eq!(ends(&unsent(ErrorKind::Unusable)), ["not applied", "later", "unusable"], "A5");
        let cut = CallFailure::of(AwsFailure::Unknown("cut".into()));
        assert_eq!(ends(&cut), ["unknown", "unknown", "not applied"], "A8");
        let code = "QueueDoesNotExist".to_owned();
        let refused =
            CallFailure::of(AwsFailure::Refused(AwsRefusal { code, message: "gone".into(), ..AwsRefusal::default() }));
        assert_eq!(ends(&refused), ["not applied", "later", "unusable"], "A5");
        assert!(refused.asked("q").source().unwrap().to_string().contains("gone"));
        let code = "InvalidParameterValueException".to_owned();
        let refused =
            CallFailure::of(AwsFailure::Refused(AwsRefusal { code, message: "long".into(), ..AwsRefusal::default() }));
        assert_eq!(ends(&refused), ["done", "refused", "not applied"], "A2, A3");
    }
}
