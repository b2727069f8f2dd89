use http::StatusCode;
use http::header::RETRY_AFTER;
use http::response::Parts;

/// What a response says about the effect. A handler that knows better than its status puts one into the response's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The effect happened: recorded, and given to every copy.
    Applied,
    /// It did not and never will: recorded, and given to every copy.
    Final,
    /// It did not happen: passed on, and the key is free again.
    NotApplied,
    /// Nobody knows: passed on, and the key is held as the policy says.
    Unknown,
}

impl Outcome {
    /// The outcome that the response declares, else what its status means.
    pub(crate) fn of(response: &Parts) -> Self {
        let declared = response.extensions.get::<Self>().copied();
        declared.unwrap_or_else(|| Self::of_status(response.status, response.headers.contains_key(RETRY_AFTER)))
    }

    /// A 503 without Retry-After is unknown: proxies answer it after they have sent the request, too.
    fn of_status(status: StatusCode, retry_after: bool) -> Self {
        match status.as_u16() {
            200..=399 => Self::Applied,
            401 | 403 | 408 | 425 | 429 => Self::NotApplied,
            400..=499 => Self::Final,
            503 if retry_after => Self::NotApplied,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_meaning() {
        let meaning = |status, retry_after| Outcome::of_status(StatusCode::from_u16(status).unwrap(), retry_after);
        for status in [200, 201, 204, 299, 301, 303, 399] {
            assert_eq!(meaning(status, false), Outcome::Applied, "{status}");
        }
        for status in [401, 403, 408, 425, 429] {
            assert_eq!(meaning(status, false), Outcome::NotApplied, "{status}");
        }
        for status in [400, 402, 404, 405, 409, 410, 422, 499] {
            assert_eq!(meaning(status, true), Outcome::Final, "{status}");
        }
        for status in [100, 101, 500, 501, 502, 504, 599] {
            assert_eq!(meaning(status, true), Outcome::Unknown, "{status}");
        }
        assert_eq!(meaning(503, true), Outcome::NotApplied);
        assert_eq!(meaning(503, false), Outcome::Unknown);
    }

    #[test]
    fn a_declared_outcome_beats_the_status() {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts.extensions.insert(Outcome::NotApplied);
        assert_eq!(Outcome::of(&parts), Outcome::NotApplied);
    }
}
