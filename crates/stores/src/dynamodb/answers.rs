//! The meaning of an answer of DynamoDB. Pure; answers.md has the numbered rows.

use hapax_core::{BoxError, Error, ErrorKind};
use hapax_net::aws::{AwsFailure, AwsRefusal};
use serde_json::{Map, Value};

use crate::errors::{not_applied, unknown, unusable};

/// The attributes of an item, by their names.
pub(super) type Attributes = Map<String, Value>;

/// Why a call has no result.
#[derive(Debug)]
pub(super) enum TableFailure {
    /// The condition of a write does not hold, and this item is stored. None if there is none.
    Condition(Option<Attributes>),
    /// Any other reason.
    Failed(Error),
}

impl TableFailure {
    pub(super) fn of(failure: AwsFailure) -> Self {
        match failure {
            // D2
            AwsFailure::Refused(refusal) if plain(&refusal.code) == "ConditionalCheckFailed" => of_condition(&refusal),
            AwsFailure::Refused(refusal) => Self::Failed(refused(refusal)),
            AwsFailure::NotSent(error) => Self::Failed(error), // D9
            AwsFailure::Unknown(cause) => Self::Failed(unconfirmed(cause)), // D10
        }
    }

    /// The error, for a call that has no condition.
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Condition(_) => not_applied("DynamoDB refused a write because of its condition"),
            Self::Failed(error) => error,
        }
    }
}

impl From<Error> for TableFailure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The failure of a call whose result cannot be read.
pub(super) fn unreadable(cause: impl Into<BoxError>) -> TableFailure {
    TableFailure::Failed(unconfirmed(cause.into())) // D11
}

/// The error of a service without a clock.
pub(super) fn undated() -> Error {
    // D13
    unusable("the answers of DynamoDB have no field `Date`, from which the store reads the clock: a proxy removes it")
}

fn of_condition(refusal: &AwsRefusal) -> TableFailure {
    match serde_json::from_slice::<Value>(&refusal.body) {
        Ok(mut body) => match body.get_mut("Item").map(Value::take) {
            Some(Value::Object(item)) => TableFailure::Condition(Some(item)),
            Some(_) | None => TableFailure::Condition(None),
        },
        Err(error) => unreadable(error),
    }
}

fn unconfirmed(cause: BoxError) -> Error {
    unknown("DynamoDB did not confirm a call").caused_by(cause)
}

fn refused(refusal: AwsRefusal) -> Error {
    let what = match kind_of(plain(&refusal.code)) {
        (ErrorKind::Unusable, what) => unusable(what),
        (ErrorKind::Unknown, what) => unknown(what),
        (_, what) => not_applied(what),
    };
    what.caused_by(refusal)
}

/// The kind and the message of a refusal with this plain code.
fn kind_of(code: &str) -> (ErrorKind, &'static str) {
    match code {
        "ProvisionedThroughputExceeded" | "RequestLimitExceeded" => throttled(), // D3
        code if code.contains("Throttl") => throttled(),                         // D3
        "TransactionConflict" | "ReplicatedWriteConflict" => {
            (ErrorKind::NotApplied, "another write of the same item was under way in DynamoDB") // D4
        }
        "ExpiredToken" => (ErrorKind::NotApplied, "the credentials for AWS have expired"), // D5
        "ResourceNotFound" => {
            (
                ErrorKind::Unusable,
                "DynamoDB has no such table: `hapax migrate` makes it; or the URL names another region",
            ) // D6
        }
        "AccessDenied" => (ErrorKind::Unusable, "the credentials for AWS have no right to use the table"), // D7
        "IncompleteSignature"
        | "InvalidClientTokenId"
        | "InvalidSignature"
        | "MissingAuthenticationToken"
        | "OptInRequired"
        | "SignatureDoesNotMatch"
        | "UnrecognizedClient" => {
            (ErrorKind::Unusable, "DynamoDB does not take the credentials") // D7
        }
        "Validation" => {
            (ErrorKind::Unusable, "the table does not fit: `hapax migrate --check` says what its key must be") // D8
        }
        // No service of AWS has written it.
        code if code.starts_with("HTTP ") => {
            (ErrorKind::Unknown, "the answer to a call of DynamoDB is none of DynamoDB") // D11
        }
        _ => (ErrorKind::NotApplied, "DynamoDB refused a call"), // D12
    }
}

fn throttled() -> (ErrorKind, &'static str) {
    (ErrorKind::NotApplied, "the table of DynamoDB has too little capacity now")
}

/// The code without the word that some services of AWS write behind it.
fn plain(code: &str) -> &str {
    code.strip_suffix("Exception").unwrap_or(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_code(code: &str) -> TableFailure {
        let code = AwsRefusal::short_code(code).to_owned();
        TableFailure::of(AwsFailure::Refused(AwsRefusal { code, ..AwsRefusal::default() }))
    }

    fn kind(failure: TableFailure) -> Option<ErrorKind> {
        match failure {
            TableFailure::Condition(_) => None,
            TableFailure::Failed(error) => Some(error.kind()),
        }
    }

    #[test]
    fn every_refusal_has_its_row() {
        const NOT_APPLIED: ErrorKind = ErrorKind::NotApplied;
        const UNUSABLE: ErrorKind = ErrorKind::Unusable;
        let rows = [
            ("D3", "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException", NOT_APPLIED),
            ("D3", "com.amazonaws.dynamodb.v20120810#ThrottlingException", NOT_APPLIED),
            ("D3", "RequestLimitExceeded", NOT_APPLIED),
            ("D4", "TransactionConflictException", NOT_APPLIED),
            ("D4", "ReplicatedWriteConflictException", NOT_APPLIED),
            ("D5", "ExpiredTokenException", NOT_APPLIED),
            ("D6", "com.amazonaws.dynamodb.v20120810#ResourceNotFoundException", UNUSABLE),
            ("D7", "com.amazon.coral.service#AccessDeniedException", UNUSABLE),
            ("D7", "com.amazon.coral.service#UnrecognizedClientException", UNUSABLE),
            ("D7", "com.amazon.coral.service#InvalidSignatureException", UNUSABLE),
            ("D7", "SignatureDoesNotMatch", UNUSABLE),
            ("D7", "MissingAuthenticationTokenException", UNUSABLE),
            ("D7", "IncompleteSignatureException", UNUSABLE),
            ("D8", "com.amazon.coral.validate#ValidationException", UNUSABLE),
            ("D11", "HTTP 413", ErrorKind::Unknown),
            ("D12", "SomethingNewException", NOT_APPLIED),
        ];
        for (row, code, expected) in rows {
            assert_eq!(kind(of_code(code)), Some(expected), "{row} {code}");
        }
        for unsent in [NOT_APPLIED, UNUSABLE] {
            let failure = TableFailure::of(AwsFailure::NotSent(Error::new(unsent, "x")));
            assert_eq!(kind(failure), Some(unsent), "D9");
        }
        assert_eq!(kind(TableFailure::of(AwsFailure::Unknown("cut".into()))), Some(ErrorKind::Unknown), "D10");
        assert_eq!(kind(unreadable("x")), Some(ErrorKind::Unknown), "D11");
        assert_eq!(undated().kind(), UNUSABLE, "D13");
    }

    #[test]
    fn a_condition_that_does_not_hold_shows_what_is_stored() {
        let failed = |body: &'static str| {
            let code = "ConditionalCheckFailedException".to_owned();
            TableFailure::of(AwsFailure::Refused(AwsRefusal { code, body: body.into(), ..AwsRefusal::default() }))
        };
        let TableFailure::Condition(Some(item)) = failed(r#"{"__type":"x","Item":{"st":{"N":"1"}}}"#) else {
            panic!("there is an item");
        };
        assert_eq!(item["st"]["N"], "1", "D2");
        assert!(matches!(failed(r#"{"__type":"x"}"#), TableFailure::Condition(None)), "D2");
        assert_eq!(kind(failed("{")), Some(ErrorKind::Unknown), "D11");
    }
}
