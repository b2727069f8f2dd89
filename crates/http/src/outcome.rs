use http::header::RETRY_AFTER;
use http::response::Parts;
use http::{Response, StatusCode};

/// What a response says about the effect.
///
/// ```
/// use hapax_http::Outcome;
/// use http::{Response, StatusCode};
///
/// /// A handler knows better than its status what became of the charge.
/// fn answer(declined_by_us: bool) -> Response<&'static str> {
///     let mut response = Response::new("declined");
///     *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
///     if declined_by_us { Outcome::NotApplied.on(response) } else { Outcome::Unknown.on(response) }
/// }
/// # answer(true);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The effect happened: recorded, and given to every copy.
    Applied,
    /// It did not and never will: recorded, and given to every copy.
    Final,
    /// It did not happen: passed on, and the key is free again.
    NotApplied,
    /// It did not happen because the caller had no right to it: as `NotApplied`, and soon forgotten.
    Denied,
    /// Nobody knows: passed on, and the key is held as the policy says.
    Unknown,
}

impl Outcome {
    /// Declares this outcome on a response: it counts, whatever the status says.
    pub fn on<B>(self, mut response: Response<B>) -> Response<B> {
        response.extensions_mut().insert(self);
        response
    }

    /// The outcome that the response declares.
    pub(crate) fn declared(response: &Parts) -> Option<Self> {
        response.extensions.get().copied()
    }
}

/// Says what a response means that declares no [`Outcome`] of its own.
///
/// ```
/// use hapax_http::{JudgeOutcome, Outcome, StatusOutcomes};
/// use http::response::Parts;
///
/// /// A service that says in a header whether it has acted.
/// fn outcome(response: &Parts) -> Outcome {
///     match response.headers.get("x-acted") {
///         Some(no) if no == "no" => Outcome::NotApplied,
///         _ => StatusOutcomes::default().outcome(response),
///     }
/// }
/// # fn is_one(_: impl JudgeOutcome) {}
/// # is_one(outcome);
/// ```
pub trait JudgeOutcome: Send + Sync + 'static {
    /// What a response with this head means.
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

/// What each status means: the table of the contract, with lists of a route's own before it.
///
/// | status | means |
/// |---|---|
/// | 2xx, 3xx | applied |
/// | 401, 403 | denied |
/// | 425, 429; 409 and 503 with Retry-After | not applied |
/// | other 4xx, but for 408 | final |
/// | 408, other 5xx, anything else | unknown |
///
/// A 503 without Retry-After is unknown because proxies answer it after they have sent the request, too, and a 408 because
/// timeout layers answer it after they have dropped the handler in mid-work. A 409 with Retry-After is what a service that is
/// idempotent itself says of a copy that came too early: no last word.
///
/// ```
/// use hapax_http::StatusOutcomes;
///
/// // A service that refuses with 503 before it acts, and whose 500 is its last word.
/// let outcomes = StatusOutcomes::default().not_applied([503]).finally([500]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusOutcomes {
    own: Vec<(u16, Outcome)>,
}

impl StatusOutcomes {
    /// These mean that the effect happened.
    #[must_use]
    pub fn applied(self, statuses: impl IntoIterator<Item = u16>) -> Self {
        self.means(statuses, Outcome::Applied)
    }

    /// These are the last word, though nothing was applied.
    #[must_use]
    pub fn finally(self, statuses: impl IntoIterator<Item = u16>) -> Self {
        self.means(statuses, Outcome::Final)
    }

    /// These mean that nothing was applied.
    #[must_use]
    pub fn not_applied(self, statuses: impl IntoIterator<Item = u16>) -> Self {
        self.means(statuses, Outcome::NotApplied)
    }

    /// These mean that nobody knows.
    #[must_use]
    pub fn unknown(self, statuses: impl IntoIterator<Item = u16>) -> Self {
        self.means(statuses, Outcome::Unknown)
    }

    /// Of two words on one status the later one holds.
    fn means(mut self, statuses: impl IntoIterator<Item = u16>, outcome: Outcome) -> Self {
        self.own.extend(statuses.into_iter().map(|status| (status, outcome)));
        self
    }

    fn of(&self, status: StatusCode, retry_after: bool) -> Outcome {
        let own = self.own.iter().rev().find(|(own, _)| *own == status.as_u16());
        own.map_or_else(|| by_contract(status, retry_after), |(_, outcome)| *outcome)
    }
}

impl JudgeOutcome for StatusOutcomes {
    fn outcome(&self, response: &Parts) -> Outcome {
        self.of(response.status, response.headers.contains_key(RETRY_AFTER))
    }
}

fn by_contract(status: StatusCode, retry_after: bool) -> Outcome {
    match status.as_u16() {
        200..=399 => Outcome::Applied,
        401 | 403 => Outcome::Denied,
        425 | 429 => Outcome::NotApplied,
        409 | 503 if retry_after => Outcome::NotApplied,
        408 => Outcome::Unknown,
        400..=499 => Outcome::Final,
        _ => Outcome::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_meaning() {
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
                let meaning = by_contract(StatusCode::from_u16(status).unwrap(), *retry_after);
                assert_eq!(meaning, *outcome, "{status} {retry_after}");
            }
        }
    }

    #[test]
    fn a_route_may_read_a_status_in_its_own_way() {
        let outcomes = StatusOutcomes::default().not_applied([503, 418]).finally([500]).unknown([418]).applied([404]);
        for (status, outcome) in [
            (503, Outcome::NotApplied),
            (500, Outcome::Final),
            (418, Outcome::Unknown),
            (404, Outcome::Applied),
            (201, Outcome::Applied),
        ] {
            assert_eq!(outcomes.of(StatusCode::from_u16(status).unwrap(), false), outcome, "{status}");
        }
    }
}
