use http::header::RETRY_AFTER;
use http::response::Parts;
use http::{Response, StatusCode};

/// What a response says about the effect of its request.
///
/// ```
/// use hapax::http::Outcome;
/// use http::{Response, StatusCode};
///
/// /// The status alone would mean *unknown*. The handler knows whether the charge was sent.
/// fn respond(was_sent: bool) -> Response<&'static str> {
///     let mut response = Response::new("the charge failed");
///     *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
///     if was_sent { Outcome::Unknown.declare_on(response) } else { Outcome::NotApplied.declare_on(response) }
/// }
/// # respond(true);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The effect happened. The response is recorded and replayed to every copy.
    Applied,
    /// The effect did not happen and never will. The response is recorded and replayed to every copy.
    Final,
    /// The effect did not happen. The response is passed on, and a copy runs again.
    NotApplied,
    /// The effect did not happen because the caller had no right to it. Like `NotApplied`, but the record expires soon.
    Denied,
    /// The effect may or may not have happened. The response is passed on, and copies get what the lapse policy says.
    Unknown,
}

impl Outcome {
    /// Declares this outcome on a response. It takes precedence over the status.
    pub fn declare_on<B>(self, mut response: Response<B>) -> Response<B> {
        response.extensions_mut().insert(self);
        response
    }

    /// The outcome that the response declares.
    pub(crate) fn declared_by(response: &Parts) -> Option<Self> {
        response.extensions.get().copied()
    }
}

/// Decides the outcome of a response that declares no [`Outcome`].
///
/// ```
/// use hapax::http::{JudgeOutcome, Outcome, StatusOutcomes};
/// use http::response::Parts;
///
/// /// The service reports in a header whether it acted.
/// fn outcome(response: &Parts) -> Outcome {
///     match response.headers.get("x-acted") {
///         Some(no) if no == "no" => Outcome::NotApplied,
///         _ => StatusOutcomes::default().outcome(response),
///     }
/// }
/// # fn is_one(_: impl JudgeOutcome) {}
/// # is_one(outcome);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not judge outcomes",
    label = "does not implement `JudgeOutcome`",
    note = "pass a `StatusOutcomes`, or a closure `|response: &Parts| -> Outcome`"
)]
pub trait JudgeOutcome: Send + Sync + 'static {
    /// The outcome of a response with this head.
    fn outcome(&self, response: &Parts) -> Outcome;
}

impl<F> JudgeOutcome for F
where
    F: Fn(&Parts) -> Outcome + Send + Sync + 'static,
{
    fn outcome(&self, response: &Parts) -> Outcome {
        self(response)
    }
}

/// Decides by the status: the table of the contract, and the exceptions of a route.
///
/// | status | means |
/// |---|---|
/// | 2xx, 3xx | applied |
/// | 401, 403 | denied |
/// | 425, 429; 409 and 503 with Retry-After | not applied |
/// | other 4xx except 408 | final |
/// | 408, other 5xx, anything else | unknown |
///
/// A 503 without Retry-After means unknown, because a proxy may answer it after it has sent the request. A 408 means
/// unknown, because a timeout layer answers it after it has dropped the running handler. A 409 with Retry-After means
/// not applied: an idempotent service answers it while an earlier copy still runs.
///
/// ```
/// use hapax::http::StatusOutcomes;
///
/// // This service answers 503 before it acts, and its 500 is final.
/// let outcomes = StatusOutcomes::default().not_applied([503]).finally([500]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusOutcomes {
    exceptions: Vec<(u16, Outcome)>,
}

impl StatusOutcomes {
    /// These statuses mean that the effect happened.
    #[must_use]
    pub fn applied(self, statuses: impl IntoIterator<Item = u16>) -> Self {
        self.add_exceptions(statuses, Outcome::Applied)
    }

    /// These statuses mean that the effect did not happen and never will.
    #[must_use]
    pub fn finally(self, statuses: impl IntoIterator<Item = u16>) -> Self {
        self.add_exceptions(statuses, Outcome::Final)
    }

    /// These statuses mean that the effect did not happen.
    #[must_use]
    pub fn not_applied(self, statuses: impl IntoIterator<Item = u16>) -> Self {
        self.add_exceptions(statuses, Outcome::NotApplied)
    }

    /// These statuses mean that the outcome is unknown.
    #[must_use]
    pub fn unknown(self, statuses: impl IntoIterator<Item = u16>) -> Self {
        self.add_exceptions(statuses, Outcome::Unknown)
    }

    /// If a status is listed twice, the later entry applies.
    fn add_exceptions(mut self, statuses: impl IntoIterator<Item = u16>, outcome: Outcome) -> Self {
        self.exceptions.extend(statuses.into_iter().map(|status| (status, outcome)));
        self
    }

    fn outcome_of(&self, status: StatusCode, retry_after: bool) -> Outcome {
        let exception = self.exceptions.iter().rev().find(|(listed, _)| *listed == status.as_u16());
        exception.map_or_else(|| by_contract(status, retry_after), |(_, outcome)| *outcome)
    }
}

impl JudgeOutcome for StatusOutcomes {
    fn outcome(&self, response: &Parts) -> Outcome {
        self.outcome_of(response.status, response.headers.contains_key(RETRY_AFTER))
    }
}

/// The outcome of a status without exceptions. The clauses are those of `docs/http.md`.
fn by_contract(status: StatusCode, retry_after: bool) -> Outcome {
    match status.as_u16() {
        200..=399 => Outcome::Applied,                   // H21
        401 | 403 => Outcome::Denied,                    // H22
        425 | 429 => Outcome::NotApplied,                // H22
        409 | 503 if retry_after => Outcome::NotApplied, // H22
        408 => Outcome::Unknown,                         // H24
        400..=499 => Outcome::Final,                     // H23
        _ => Outcome::Unknown,                           // H24
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_the_outcome_of_the_contract() {
        let table: &[(std::ops::RangeInclusive<u16>, bool, Outcome)] = &[
            (100..=199, true, Outcome::Unknown),
            (200..=399, false, Outcome::Applied),
            (400..=400, false, Outcome::Final),
            (401..=401, false, Outcome::Denied),
            (402..=402, false, Outcome::Final),
            (403..=403, false, Outcome::Denied),
            (404..=407, false, Outcome::Final),
            (408..=408, true, Outcome::Unknown),
            (409..=409, true, Outcome::NotApplied),
            (409..=424, false, Outcome::Final),
            (410..=424, true, Outcome::Final),
            (425..=425, false, Outcome::NotApplied),
            (426..=428, false, Outcome::Final),
            (429..=429, false, Outcome::NotApplied),
            (430..=499, false, Outcome::Final),
            (500..=502, true, Outcome::Unknown),
            (503..=503, true, Outcome::NotApplied),
            (503..=503, false, Outcome::Unknown),
            (504..=999, true, Outcome::Unknown),
        ];
        for (statuses, retry_after, outcome) in table {
            for status in statuses.clone() {
                let contracted = by_contract(StatusCode::from_u16(status).unwrap(), *retry_after);
                assert_eq!(contracted, *outcome, "{status} {retry_after}");
            }
        }
    }

    #[test]
    fn the_last_exception_of_a_route_applies() {
        let outcomes = StatusOutcomes::default().not_applied([503, 418]).finally([500]).unknown([418]).applied([404]);
        for (status, outcome) in [
            (503, Outcome::NotApplied),
            (500, Outcome::Final),
            (418, Outcome::Unknown),
            (404, Outcome::Applied),
            (201, Outcome::Applied),
        ] {
            assert_eq!(outcomes.outcome_of(StatusCode::from_u16(status).unwrap(), false), outcome, "{status}");
        }
    }
}
