//! For handlers of axum: what an attempt knows, and words for what became of it.

use std::convert::Infallible;
use std::ops::Deref;

use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

use crate::outcome::Outcome;

/// The attempt that a handler runs: its derived ids, its fencing token, and when to stop.
///
/// ```
/// use hapax_http::axum::Attempt;
///
/// async fn charge(attempt: Attempt) -> String {
///     // The same in every attempt of this request: the idempotency key to use with the payment provider.
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

impl<S: Sync> FromRequestParts<S> for Attempt {
    type Rejection = NotProtected;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotProtected> {
        parts.extensions.get().cloned().map(Self).ok_or(NotProtected)
    }
}

/// A handler asked for its [`Attempt`], and its route is not protected: 500. Put the route behind an
/// [`IdempotencyLayer`](crate::IdempotencyLayer), or take an `Option<Attempt>` where the key is optional.
///
/// ```
/// use hapax_http::axum::Attempt;
///
/// /// Where the key is optional: the same handler serves requests with one and without.
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
        tracing::error!("a handler wants its attempt, and its route is not protected");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

macro_rules! words {
    ($($(#[$documentation:meta])* $name:ident),*) => {$(
        $(#[$documentation])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<R>(pub R);

        impl<R: IntoResponse> IntoResponse for $name<R> {
            fn into_response(self) -> Response {
                Outcome::$name.on(self.0.into_response())
            }
        }
    )*};
}
words!(
    /// The response is the last word though nothing was applied: recorded, and given to every copy.
    ///
    /// ```
    /// use http::StatusCode;
    /// use hapax_http::axum::Final;
    ///
    /// let declined = Final((StatusCode::INTERNAL_SERVER_ERROR, "the card was declined"));
    /// ```
    Final,
    /// Nothing was applied: the response is passed on, and the key is free again.
    ///
    /// ```
    /// use http::StatusCode;
    /// use hapax_http::axum::NotApplied;
    ///
    /// let busy = NotApplied((StatusCode::CONFLICT, "the warehouse is being counted"));
    /// ```
    NotApplied,
    /// Nothing was applied because the caller had no right to it: as [`NotApplied`], and soon forgotten.
    ///
    /// ```
    /// use http::StatusCode;
    /// use hapax_http::axum::Denied;
    ///
    /// let denied = Denied((StatusCode::NOT_FOUND, "no such account"));
    /// ```
    Denied,
    /// Nobody knows whether it was applied: the response is passed on, and the key is held.
    ///
    /// ```
    /// use http::StatusCode;
    /// use hapax_http::axum::Unknown;
    ///
    /// let perhaps = Unknown((StatusCode::ACCEPTED, "the bank has not answered"));
    /// ```
    Unknown
);
