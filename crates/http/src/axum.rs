//! Extractors and responses for handlers of axum: the current attempt, and explicit outcomes.

use std::convert::Infallible;
use std::ops::Deref;

use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use hapax_core::ledger::Call;
use http::StatusCode;
use http::request::Parts;

use crate::outcome::Outcome;

/// The attempt that a handler runs: its derived ids, its fencing token, and the signal to stop.
///
/// A handler of axum takes this type. It cannot take [`gate::Attempt`](hapax_core::gate::Attempt), which the closure of
/// a [`Gate::run`](hapax_core::Gate::run) gets: axum then says that the function is no `Handler`.
///
/// ```
/// use hapax::http::axum::Attempt;
///
/// async fn charge(attempt: Attempt) -> String {
///     // The same in every attempt of this request. Use it as the idempotency key of calls to the payment provider.
///     attempt.operation().to_string()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Attempt(pub hapax_core::gate::Attempt);

impl Deref for Attempt {
    type Target = hapax_core::gate::Attempt;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The call of the attempt, for a ledger in the handler; see [`Call`].
///
/// ```
/// use hapax::http::axum::Attempt;
/// use hapax::ledger::Call;
///
/// async fn transfer(attempt: Attempt) -> String {
///     let call = Call::from(&attempt);
///     format!("the ledger claims {}", call.operation())
/// }
/// # let _: axum::Router = axum::Router::new().route("/", axum::routing::post(transfer));
/// ```
impl From<&Attempt> for Call {
    fn from(attempt: &Attempt) -> Self {
        Self::from(&attempt.0)
    }
}

impl<S: Sync> FromRequestParts<S> for Attempt {
    type Rejection = NotProtected;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotProtected> {
        parts.extensions.get().cloned().map(Self).ok_or(NotProtected)
    }
}

/// A handler extracts an [`Attempt`], but its route is not protected: 500. Put the route behind an
/// [`IdempotencyLayer`](crate::IdempotencyLayer), or extract an `Option<Attempt>` if the key is optional.
///
/// ```
/// use hapax::http::axum::Attempt;
///
/// /// The key is optional: the handler serves requests with a key and without.
/// async fn charge(attempt: Option<Attempt>) -> String {
///     attempt.map_or("charged".into(), |attempt| format!("charged as {}", attempt.operation()))
/// }
/// # let _: axum::Router = axum::Router::new().route("/", axum::routing::post(charge));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotProtected;

impl<S: Sync> OptionalFromRequestParts<S> for Attempt {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get().cloned().map(Self))
    }
}

impl IntoResponse for NotProtected {
    fn into_response(self) -> Response {
        tracing::error!("a handler extracts its attempt, but its route is not protected by an idempotency layer");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

macro_rules! outcome_responses {
    ($($(#[$documentation:meta])* $name:ident),*) => {$(
        $(#[$documentation])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<R>(pub R);

        impl<R: IntoResponse> IntoResponse for $name<R> {
            fn into_response(self) -> Response {
                Outcome::$name.declare_on(self.0.into_response())
            }
        }
    )*};
}
outcome_responses!(
    /// The effect did not happen and never will. The response is recorded and replayed to every copy.
    ///
    /// ```
    /// use http::StatusCode;
    /// use hapax::http::axum::Final;
    ///
    /// let declined = Final((StatusCode::INTERNAL_SERVER_ERROR, "the card was declined"));
    /// ```
    Final,
    /// The effect did not happen. The response is passed on, and a copy runs again.
    NotApplied,
    /// The effect did not happen because the caller had no right to it. Like [`NotApplied`], but the record expires
    /// soon.
    Denied,
    /// The effect may or may not have happened. The response is passed on, and copies get what the lapse policy says.
    Unknown
);
