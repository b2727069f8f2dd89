//! Responses as a client of the payment service understands them.

use std::fmt;

use bytes::Bytes;
use http::StatusCode;
use http::response::Parts;
use serde_json::Value;

/// The result of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReceivedResponse {
    /// The payment is made or permanently declined. Every later response must be the same.
    Settling(SettlingResponse),
    /// The same request is still running; retry later.
    InProgress,
    /// The outcome is unknown, and a retry does not change that.
    OutcomeUnknown,
    /// The key was used for another request.
    KeyReused,
    /// Any other response.
    Other(OtherResponse),
    /// No response, because the client closed the connection.
    HungUp,
    /// No response, because the connection broke or the request timed out.
    Broken,
    /// No response, because the connection was refused.
    NotSent,
}

/// A response that settles a payment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SettlingResponse {
    /// A 2xx status, or 402.
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
    /// Whether the gateway replayed an earlier response.
    pub(super) is_replayed: bool,
    /// Whether the store has not confirmed the response yet. Until then a retry may get *outcome unknown*.
    pub(super) is_pending: bool,
}

/// A response that the client does not interpret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OtherResponse {
    pub(super) status: StatusCode,
    /// The name of the problem, for problem details.
    pub(super) problem: Option<String>,
}

impl ReceivedResponse {
    /// Reads a response.
    pub(super) fn read(head: &Parts, body: Bytes) -> Self {
        let status = head.status;
        if status.is_success() || status == StatusCode::PAYMENT_REQUIRED {
            let is_replayed = head.headers.contains_key("idempotent-replayed");
            let is_pending = head.headers.get("hapax-recorded").is_some_and(|recorded| recorded == "pending");
            return Self::Settling(SettlingResponse { status, body, is_replayed, is_pending });
        }
        let problem = problem(&body);
        match (status, problem.as_deref()) {
            (StatusCode::CONFLICT, Some("in-progress")) => Self::InProgress,
            (StatusCode::CONFLICT, Some("outcome-unknown")) => Self::OutcomeUnknown,
            (StatusCode::UNPROCESSABLE_ENTITY, Some("key-reused")) => Self::KeyReused,
            _ => Self::Other(OtherResponse { status, problem }),
        }
    }

    /// Whether the client stops retrying.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Settling(_) | Self::OutcomeUnknown | Self::KeyReused => true,
            Self::Other(other) => !other.status.is_server_error(),
            Self::InProgress | Self::HungUp | Self::Broken | Self::NotSent => false,
        }
    }

    /// Returns the response if it settles the payment.
    pub(super) fn settling(&self) -> Option<&SettlingResponse> {
        if let Self::Settling(response) = self { Some(response) } else { None }
    }

    /// Whether the request was sent.
    pub(super) fn is_sent(&self) -> bool {
        *self != Self::NotSent
    }
}

/// Returns the fragment of the problem type, which is the name of the problem.
fn problem(body: &[u8]) -> Option<String> {
    let json: Value = serde_json::from_slice(body).ok()?;
    let (_, fragment) = json.get("type")?.as_str()?.rsplit_once('#')?;
    Some(fragment.to_owned())
}

impl SettlingResponse {
    /// Whether the response confirms the payment.
    pub(super) fn is_charged(&self) -> bool {
        self.status.is_success()
    }
}

/// The kind of response, for the table of the audit.
impl fmt::Display for ReceivedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settling(response) => response.fmt(f),
            Self::InProgress => f.write_str("409 still running"),
            Self::OutcomeUnknown => f.write_str("409 outcome unknown"),
            Self::KeyReused => f.write_str("422 key used for another request"),
            Self::Other(other) => other.fmt(f),
            Self::HungUp => f.write_str("none: the client closed the connection"),
            Self::Broken => f.write_str("none: the connection broke"),
            Self::NotSent => f.write_str("not sent: the connection was refused"),
        }
    }
}

impl fmt::Display for SettlingResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = match self.status {
            StatusCode::ACCEPTED => "accepted",
            status if status.is_success() => "charged",
            _ => "declined",
        };
        write!(f, "{} {result}", self.status.as_u16())?;
        if self.is_replayed {
            f.write_str(" (replayed)")?;
        }
        if self.is_pending {
            f.write_str(" (record pending)")?;
        }
        Ok(())
    }
}

impl fmt::Display for OtherResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.status.canonical_reason().unwrap_or_default();
        let problem = self.problem.as_deref().unwrap_or(reason);
        write!(f, "{} {}", self.status.as_u16(), problem.to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    fn read(status: u16, body: &'static str) -> ReceivedResponse {
        let response = Response::builder().status(status).body(()).unwrap();
        ReceivedResponse::read(&response.into_parts().0, Bytes::from_static(body.as_bytes()))
    }

    #[test]
    fn every_response_has_a_kind_and_is_final_or_not() {
        let cases = [
            (201, "{}", "201 charged", true),
            (402, "{}", "402 declined", true),
            (409, r#"{"type":"/x#in-progress"}"#, "409 still running", false),
            (409, r#"{"type":"/x#outcome-unknown"}"#, "409 outcome unknown", true),
            (422, r#"{"type":"/x#key-reused"}"#, "422 key used for another request", true),
            (422, "no problem", "422 unprocessable entity", true),
            (503, r#"{"type":"/x#store-unavailable"}"#, "503 store-unavailable", false),
            (500, "", "500 internal server error", false),
            (400, r#"{"type":"/x#key-missing"}"#, "400 key-missing", true),
        ];
        for (status, body, kind, is_final) in cases {
            let response = read(status, body);
            assert_eq!((response.to_string().as_str(), response.is_final()), (kind, is_final));
        }
    }

    #[test]
    fn the_hapax_recorded_field_marks_a_pending_record() {
        for (recorded, is_pending) in [("pending", true), ("forged", false)] {
            let response = Response::builder().status(201).header("hapax-recorded", recorded).body(()).unwrap();
            let received = ReceivedResponse::read(&response.into_parts().0, Bytes::new());
            assert_eq!(received.settling().map(|settling| settling.is_pending), Some(is_pending));
            assert_eq!(received.to_string() == "201 charged (record pending)", is_pending);
        }
    }
}
