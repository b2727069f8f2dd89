//! Beside the key, two things decide whether a request is a copy of an earlier one: the scope of its caller, and the
//! fingerprint of its payload.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use hapax_core::{Error, Fingerprint, Identity, RecordKey, Rule, Scope};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use crate::multipart::Multipart;

/// Finds the scope of a request: the namespace and the caller to whom its key belongs.
///
/// Use only facts that were authenticated before. A caller who can choose the scope can read the answers of others.
///
/// ```
/// use hapax::Scope;
/// use hapax::http::{CallerUnknown, MakeScope};
/// use http::request::Parts;
///
/// /// An authentication layer outside of this one puts it into the request.
/// #[derive(Clone)]
/// struct User(String);
///
/// fn scope(parts: &Parts) -> Result<Scope, CallerUnknown> {
///     let user = parts.extensions.get::<User>().ok_or("log in first")?;
///     Ok(Scope::tenant("payments", &user.0)?)
/// }
/// # fn is_one(_: impl MakeScope) {}
/// # is_one(scope);
/// ```
pub trait MakeScope: Send + Sync + 'static {
    /// The scope of this request. `identity` is that of the layer.
    ///
    /// # Errors
    /// Fails if the caller cannot be identified. The response is 400 `caller-unknown` with the remedy.
    fn scope(&self, identity: &Identity, parts: &Parts) -> Result<Scope, CallerUnknown>;

    /// The member `caller` of the policy page.
    fn describe(&self) -> String {
        "application".into()
    }
}

impl<F> MakeScope for F
where
    F: Fn(&Parts) -> Result<Scope, CallerUnknown> + Send + Sync + 'static,
{
    fn scope(&self, _: &Identity, parts: &Parts) -> Result<Scope, CallerUnknown> {
        self(parts)
    }
}

/// Names where a request comes from, for instance a number for a network address. A service around the layer puts it
/// into the extensions of the request, and `Settings::max_in_flight_per_origin` limits the attempts of one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestOrigin(pub u64);

/// Tells a service around the layer which record a request has, also if the request is dropped before its response. The
/// service puts a clone into the extensions of the request. A response has a [`RequestSummary`](crate::RequestSummary).
#[derive(Clone, Debug, Default)]
pub struct RecordKeySlot(Arc<OnceLock<RecordKey>>);

impl RecordKeySlot {
    /// The record key. `None` if the request has no record, or its body has not arrived yet.
    pub fn get(&self) -> Option<RecordKey> {
        self.0.get().copied()
    }

    /// Sets the record key. The first layer that protects a request sets it.
    pub(crate) fn set(&self, rk: RecordKey) {
        self.0.get_or_init(|| rk);
    }
}

/// Tells a service around the layer that the body of a request is refused as too long. The layer then discards the rest
/// as it arrives, so the body occupies no memory. The service puts a clone into the extensions of the request.
#[derive(Clone, Debug, Default)]
pub struct BodyRefused(Arc<AtomicBool>);

impl BodyRefused {
    /// Whether the layer has refused the body.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The caller of a request cannot be identified. The text tells the caller what to do, without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerUnknown(pub String);

impl From<&str> for CallerUnknown {
    fn from(remedy: &str) -> Self {
        Self(remedy.into())
    }
}

impl From<Error> for CallerUnknown {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

/// The place in a request that names its tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tenant {
    /// Exactly one `Authorization` field, stored as a hash. A retry with a renewed credential is a new request.
    Authorization,
    /// Exactly one field of this name, set by a trusted proxy.
    Header(HeaderName),
    /// No tenant: all callers share their keys, and can get each other's answers.
    None,
}

/// One namespace, with the tenant from a field of the request.
#[derive(Clone, Debug)]
pub(crate) struct TenantScope {
    namespace: String,
    tenant: Tenant,
}

impl TenantScope {
    /// The scopes of one service. Fails if the namespace is empty.
    pub(crate) fn new(namespace: String, tenant: Tenant) -> Result<Self, Error> {
        Scope::untenanted(&namespace)?;
        Ok(Self { namespace, tenant })
    }

    fn of_tenant(&self, tenant: &[u8]) -> Result<Scope, CallerUnknown> {
        Ok(Scope::tenant(&self.namespace, tenant)?)
    }
}

impl MakeScope for TenantScope {
    fn scope(&self, identity: &Identity, parts: &Parts) -> Result<Scope, CallerUnknown> {
        match &self.tenant {
            Tenant::Authorization => {
                let credential = exactly_one(&parts.headers, &AUTHORIZATION)?;
                self.of_tenant(&identity.tenant_of(credential))
            }
            Tenant::Header(name) => self.of_tenant(exactly_one(&parts.headers, name)?),
            Tenant::None => Ok(Scope::untenanted(&self.namespace)?),
        }
    }

    fn describe(&self) -> String {
        match &self.tenant {
            Tenant::Authorization => "authorization".into(),
            Tenant::Header(name) => format!("header:{name}"),
            Tenant::None => "none".into(),
        }
    }
}

/// The value of the only field of this name. Two fields are refused, because a proxy and a service may pick different
/// ones.
fn exactly_one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a [u8], CallerUnknown> {
    let mut fields = headers.get_all(name).iter();
    match (fields.next(), fields.next()) {
        (Some(field), None) if !field.is_empty() => Ok(field.as_bytes()),
        _ => Err(CallerUnknown(format!("send exactly one {name} field; it names the caller to whom the key belongs"))),
    }
}

/// Computes the fingerprint of a request's payload. A request with the same key and another fingerprint is refused.
///
/// Two requests that a client may send as retries of each other must have the same fingerprint. Any two others should
/// differ. A changed rule needs a new number. Give the layer the old rule too, until no record made under it lives; see
/// [`IdempotencyLayer::older_fingerprint`](crate::IdempotencyLayer::older_fingerprint).
///
/// ```
/// use bytes::Bytes;
/// use hapax::{Fingerprint, Identity, Rule};
/// use hapax::http::MakeFingerprint;
/// use http::request::Parts;
///
/// /// Method, path and body. The query is left out: it carries a trace id that differs in each copy.
/// fn without_query(identity: &Identity, parts: &Parts, body: &Bytes) -> Fingerprint {
///     identity.fingerprint(Rule(2), &[parts.method.as_str().as_bytes(), parts.uri.path().as_bytes(), body])
/// }
/// # fn is_one(_: impl MakeFingerprint) {}
/// # is_one(without_query);
/// ```
pub trait MakeFingerprint: Send + Sync + 'static {
    /// The fingerprint of a request with its whole body.
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

/// Method, host, path, query, content type and body. The number of this rule is 1.
///
/// The host is the authority of the target, or the `Host` field. Upper and lower case and the default port do not
/// count. The other parts are compared byte for byte. The framing of a body does not count: a chunked body is the same
/// payload. Its compression counts, because the bytes differ; the field `Content-Encoding` itself does not. The
/// boundary of a body in parts does not count, because a client that sends an upload again draws a new one. Its parts
/// count in their order, each with its head; every byte counts if some service may read the body in another way. A
/// nested router of axum removes its prefix from the path. With the feature `axum` the fingerprint covers the full
/// path, and a rule of your own finds it in `axum::extract::OriginalUri`.
///
/// ```
/// use hapax::Identity;
/// use hapax::http::{MakeFingerprint, RawFingerprint};
/// use http::Request;
///
/// let of = |target: &str, body: &'static str| {
///     let (parts, ()) = Request::post(target).body(()).unwrap().into_parts();
///     RawFingerprint::default().fingerprint(&Identity::plain(), &parts, &body.into())
/// };
/// assert_eq!(of("/charges", "{\"a\":1}"), of("/charges", "{\"a\":1}"));
/// assert_ne!(of("/charges", "{\"a\":1}"), of("/charges", "{ \"a\": 1 }"));
/// assert_ne!(of("/charges", "{\"a\":1}"), of("/refunds", "{\"a\":1}"));
/// assert_eq!(of("http://API.example:80/charges", ""), of("http://api.example/charges", ""));
/// assert_ne!(of("http://other.example/charges", ""), of("http://api.example/charges", ""));
/// ```
#[derive(Clone, Debug, Default)]
pub struct RawFingerprint {
    scheme: Option<Scheme>,
    is_without_host: bool,
}

impl RawFingerprint {
    /// The number of this rule. Use other numbers for your own rules.
    pub const RULE: Rule = Rule(1);

    /// The number of this rule [without the host](Self::without_host).
    pub const RULE_WITHOUT_HOST: Rule = Rule(255);

    /// Leaves the host out, for a service whose clients may send a retry to another host.
    #[must_use]
    pub fn without_host(self) -> Self {
        Self { is_without_host: true, ..self }
    }

    /// The scheme of requests whose target names none, as in HTTP/1. It decides which port is the default. Without it,
    /// the ports 80 and 443 both are.
    #[must_use]
    pub fn scheme(self, scheme: Scheme) -> Self {
        Self { scheme: Some(scheme), ..self }
    }

    /// The host of a request, in lower case and without a default port. Empty if the request names none.
    fn host<'a>(&self, parts: &'a Parts) -> Cow<'a, [u8]> {
        let field = parts.headers.get(HOST);
        let Some(named) = parts.uri.authority().map(Authority::as_str).map(str::as_bytes).or(field.map(AsRef::as_ref))
        else {
            return Cow::default();
        };
        let host = Self::without_default_port(named, parts.uri.scheme().or(self.scheme.as_ref()));
        if host.iter().any(u8::is_ascii_uppercase) { host.to_ascii_lowercase().into() } else { host.into() }
    }

    fn without_default_port<'a>(host: &'a [u8], scheme: Option<&Scheme>) -> &'a [u8] {
        let is_scheme = |other| scheme.is_none_or(|scheme| *scheme == other);
        // An address of IPv6 has colons too, but ends in a bracket.
        let Some(colon) = host.iter().rposition(|byte| *byte == b':') else { return host };
        match &host[colon..] {
            b":" => &host[..colon],
            b":80" if is_scheme(Scheme::HTTP) => &host[..colon],
            b":443" if is_scheme(Scheme::HTTPS) => &host[..colon],
            _ => host,
        }
    }
}

impl MakeFingerprint for RawFingerprint {
    fn fingerprint(&self, identity: &Identity, parts: &Parts, body: &Bytes) -> Fingerprint {
        let uri = full_uri(parts);
        let (path, query) = (uri.path(), uri.query().unwrap_or_default());
        let host = if self.is_without_host { Cow::default() } else { self.host(parts) };
        let mut payload = vec![parts.method.as_str().as_bytes(), &*host, path.as_bytes(), query.as_bytes()];
        let multipart = Multipart::parse(&parts.headers, body);
        match &multipart {
            // The content type has a zero byte, which no field has: no other body gives the same list.
            Some(multipart) => {
                payload.extend([&[], &*multipart.content_type]);
                payload.extend(&multipart.parts);
            }
            // Each Content-Type field is a part of its own, so that a second one changes the fingerprint.
            None => {
                payload.push(body);
                payload.extend(parts.headers.get_all(CONTENT_TYPE).iter().map(HeaderValue::as_bytes));
            }
        }
        let rule = if self.is_without_host { Self::RULE_WITHOUT_HOST } else { Self::RULE };
        identity.fingerprint(rule, &payload)
    }
}

/// The URI with the prefix of a nested router. Without the prefix, `/accounts/1/charges` and `/accounts/2/charges`
/// would be the same path.
#[cfg(feature = "axum")]
fn full_uri(parts: &Parts) -> &Uri {
    parts.extensions.get::<axum::extract::OriginalUri>().map_or(&parts.uri, |original| &original.0)
}

#[cfg(not(feature = "axum"))]
fn full_uri(parts: &Parts) -> &Uri {
    &parts.uri
}
