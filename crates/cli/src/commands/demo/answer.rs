//! What a client was told, as a client understands it.

use std::fmt;

use bytes::Bytes;
use http::StatusCode;
use http::response::Parts;
use serde_json::Value;

/// The answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Paid, or declined for good: what every later answer must repeat.
    Told(Told),
    /// The same request is still running: ask again later.
    InProgress,
    /// Nobody knows whether the payment was made, and asking again does not help.
    OutcomeUnknown,
    /// The key belongs to another request.
    KeyReused,
    /// Any other answer.
    Other(Other),
    /// None, for the client did not wait for it.
    HungUp,
    /// None: the connection broke, or nothing came in time.
    Broken,
    /// None: the request could not even be sent, for nobody listens.
    NotSent,
}

/// An answer that settles a payment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    /// A 2xx, or 402.
    pub(super) status: StatusCode,
    /// Byte for byte.
    pub(super) body: Bytes,
    /// Whether it is marked as the repetition of an earlier answer.
    pub(super) replayed: bool,
    /// Whether it was given before its record was confirmed: until then a copy may still be told that the outcome is unknown.
    pub(super) pending: bool,
}

/// An answer that the sample client knows nothing about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Other {
    /// Its status.
    pub(super) status: StatusCode,
    /// Which problem it names, if it does.
    pub(super) problem: Option<String>,
}

impl Answer {
    /// Reads a response.
    pub(super) fn read(head: &Parts, body: Bytes) -> Self {
        let status = head.status;
        if status.is_success() || status == StatusCode::PAYMENT_REQUIRED {
            let replayed = head.headers.contains_key("idempotent-replayed");
            let pending = head.headers.get("hapax-recorded").is_some_and(|recorded| recorded == "pending");
            return Self::Told(Told { status, body, replayed, pending });
        }
        let problem = problem(&body);
        match (status, problem.as_deref()) {
            (StatusCode::CONFLICT, Some("in-progress")) => Self::InProgress,
            (StatusCode::CONFLICT, Some("outcome-unknown")) => Self::OutcomeUnknown,
            (StatusCode::UNPROCESSABLE_ENTITY, Some("key-reused")) => Self::KeyReused,
            _ => Self::Other(Other { status, problem }),
        }
    }

    /// Whether the client may stop asking.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Told(_) | Self::OutcomeUnknown | Self::KeyReused => true,
            Self::Other(other) => !other.status.is_server_error(),
            Self::InProgress | Self::HungUp | Self::Broken | Self::NotSent => false,
        }
    }

    /// What it says of the payment, if it settles it.
    pub(super) fn told(&self) -> Option<&Told> {
        if let Self::Told(told) = self { Some(told) } else { None }
    }

    /// Whether a request was sent at all.
    pub(super) fn was_sent(&self) -> bool {
        *self != Self::NotSent
    }
}

/// The fragment of a problem's type, which names it.
fn problem(body: &[u8]) -> Option<String> {
    let json: Value = serde_json::from_slice(body).ok()?;
    let (_, fragment) = json.get("type")?.as_str()?.rsplit_once('#')?;
    Some(fragment.to_owned())
}

impl Told {
    /// Whether it says that the payment was made.
    pub(super) fn is_charged(&self) -> bool {
        self.status.is_success()
    }
}

/// Its kind, as the audit lists it.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told(told) => told.fmt(f),
            Self::InProgress => f.write_str("409 still running, ask again"),
            Self::OutcomeUnknown => f.write_str("409 outcome unknown"),
            Self::KeyReused => f.write_str("422 key used for another request"),
            Self::Other(other) => other.fmt(f),
            Self::HungUp => f.write_str("none: the client hung up"),
            Self::Broken => f.write_str("none: the connection broke"),
            Self::NotSent => f.write_str("not sent: nobody listens"),
        }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_charged() { "charged" } else { "declined" };
        write!(f, "{} {what}", self.status.as_u16())?;
        if self.replayed {
            f.write_str(" (first answer repeated)")?;
        }
        if self.pending {
            f.write_str(" (record pending)")?;
        }
        Ok(())
    }
}

impl fmt::Display for Other {
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

    fn read(status: u16, body: &'static str) -> Answer {
        let response = Response::builder().status(status).body(()).unwrap();
        Answer::read(&response.into_parts().0, Bytes::from_static(body.as_bytes()))
    }

    #[test]
    fn answers_are_told_apart_and_say_whether_to_go_on() {
        let cases = [
            (201, "{}", "201 charged", true),
            (402, "{}", "402 declined", true),
            (409, r#"{"type":"/x#in-progress"}"#, "409 still running, ask again", false),
            (409, r#"{"type":"/x#outcome-unknown"}"#, "409 outcome unknown", true),
            (422, r#"{"type":"/x#key-reused"}"#, "422 key used for another request", true),
            (422, "no problem", "422 unprocessable entity", true),
            (503, r#"{"type":"/x#store-unavailable"}"#, "503 store-unavailable", false),
            (500, "", "500 internal server error", false),
            (400, r#"{"type":"/x#key-missing"}"#, "400 key-missing", true),
        ];
        for (status, body, kind, is_final) in cases {
            let answer = read(status, body);
            assert_eq!((answer.to_string().as_str(), answer.is_final()), (kind, is_final));
        }
    }

    #[test]
    fn an_answer_whose_record_is_pending_says_so() {
        for (recorded, is_pending) in [("pending", true), ("forged", false)] {
            let response = Response::builder().status(201).header("hapax-recorded", recorded).body(()).unwrap();
            let answer = Answer::read(&response.into_parts().0, Bytes::new());
            assert_eq!(answer.told().map(|told| told.pending), Some(is_pending));
            assert_eq!(answer.to_string() == "201 charged (record pending)", is_pending);
        }
    }
}
