use bytes::Bytes;
use hapax_core::{Fingerprint, Identity, Rule};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Uri};

/// Says which parts of a request are its payload: the same key with another payload is refused.
///
/// Two requests that a client may send as retries of each other must have the same fingerprint, any other two should not.
/// A rule that changes needs a new number; give the layer both until no record of the older one lives, see
/// [`IdempotencyLayer::formerly`](crate::IdempotencyLayer::formerly).
///
/// ```
/// use bytes::Bytes;
/// use hapax_core::{Fingerprint, Identity, Rule};
/// use hapax_http::MakeFingerprint;
/// use http::request::Parts;
///
/// /// Method, path and body: the query carries a trace that differs from copy to copy.
/// fn without_query(identity: &Identity, parts: &Parts, body: &Bytes) -> Fingerprint {
///     identity.fingerprint(Rule(2), &[parts.method.as_str().as_bytes(), parts.uri.path().as_bytes(), body])
/// }
/// # fn is_one(_: impl MakeFingerprint) {}
/// # is_one(without_query);
/// ```
pub trait MakeFingerprint: Send + Sync + 'static {
    /// The fingerprint of a request whose body has arrived whole.
    fn fingerprint(&self, identity: &Identity, parts: &Parts, body: &Bytes) -> Fingerprint;
}

impl<F> MakeFingerprint for F
where
    F: Fn(&Identity, &Parts, &Bytes) -> Fingerprint + Send + Sync + 'static,
{
    fn fingerprint(&self, identity: &Identity, parts: &Parts, body: &Bytes) -> Fingerprint {
        self(identity, parts, body)
    }
}

/// Method, path, query, content type and body, byte for byte as they came. The number of its rule is 1.
///
/// How a body was framed does not count, so that a chunked one is the same payload; how it was encoded does, so that a retry with
/// another `Content-Encoding` is another payload. With the feature `axum` the path is the whole one also within a nested router of
/// axum, which takes its prefix away; a rule of your own finds it in `axum::extract::OriginalUri`.
///
/// ```
/// use hapax_core::Identity;
/// use hapax_http::{MakeFingerprint, RawFingerprint};
/// use http::Request;
///
/// let of = |path: &str, body: &'static str| {
///     let (parts, ()) = Request::post(path).body(()).unwrap().into_parts();
///     RawFingerprint.fingerprint(&Identity::plain(), &parts, &body.into())
/// };
/// assert_eq!(of("/charges", "{\"a\":1}"), of("/charges", "{\"a\":1}"));
/// assert_ne!(of("/charges", "{\"a\":1}"), of("/charges", "{ \"a\": 1 }"));
/// assert_ne!(of("/charges", "{\"a\":1}"), of("/refunds", "{\"a\":1}"));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct RawFingerprint;

impl RawFingerprint {
    /// The number of this rule; rules of your own take others.
    pub const RULE: Rule = Rule(1);
}

impl MakeFingerprint for RawFingerprint {
    fn fingerprint(&self, identity: &Identity, parts: &Parts, body: &Bytes) -> Fingerprint {
        let uri = uri(parts);
        let (path, query) = (uri.path(), uri.query().unwrap_or_default());
        let mut counted = vec![parts.method.as_str().as_bytes(), path.as_bytes(), query.as_bytes(), body];
        // Every Content-Type field is one, so that none can be hidden behind another.
        counted.extend(parts.headers.get_all(CONTENT_TYPE).iter().map(HeaderValue::as_bytes));
        identity.fingerprint(Self::RULE, &counted)
    }
}

/// The URI as it came. Without the prefix of a nested router, `/accounts/1/charges` and `/accounts/2/charges` would be the same.
#[cfg(feature = "axum")]
fn uri(parts: &Parts) -> &Uri {
    parts.extensions.get::<axum::extract::OriginalUri>().map_or(&parts.uri, |original| &original.0)
}

#[cfg(not(feature = "axum"))]
fn uri(parts: &Parts) -> &Uri {
    &parts.uri
}
