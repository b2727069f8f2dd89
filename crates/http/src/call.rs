//! The caller of a request, to whom its key belongs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use hapax_core::{Error, ErrorKind, Identity, RecordKey, Scope};
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderName};

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
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the scope of a caller",
    label = "does not implement `MakeScope`",
    note = "pass a closure `|parts: &Parts| -> Result<Scope, CallerUnknown>`, or implement `MakeScope`"
)]
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
    /// Several fields together, stored as one hash: for instance a credential, and the field that chooses one of its
    /// accounts. At least one of them must be required. One part alone is the same as the variant of that part.
    Parts(Vec<TenantPart>),
    /// No tenant: all callers share their keys, and can get each other's answers.
    None,
}

/// A field that names the tenant together with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantPart {
    /// Exactly one `Authorization` field.
    Authorization,
    /// Exactly one field of this name.
    Header(HeaderName),
    /// At most one field of this name. A request without it is one of another tenant than any request with it.
    OptionalHeader(HeaderName),
}

impl TenantPart {
    /// The name of the field.
    pub fn name(&self) -> &HeaderName {
        match self {
            Self::Authorization => &AUTHORIZATION,
            Self::Header(name) | Self::OptionalHeader(name) => name,
        }
    }

    /// Whether a request must have the field.
    pub fn is_required(&self) -> bool {
        match self {
            Self::Authorization | Self::Header(_) => true,
            Self::OptionalHeader(_) => false,
        }
    }

    /// The value of the field. Empty if it is absent and may be.
    fn value<'a>(&self, headers: &'a HeaderMap) -> Result<&'a [u8], CallerUnknown> {
        let is_absent = !self.is_required() && !headers.contains_key(self.name());
        if is_absent { Ok(b"") } else { exactly_one(headers, self.name()) }
    }

    fn describe(&self) -> String {
        match self {
            Self::Authorization => "authorization".into(),
            Self::Header(name) => format!("header:{name}"),
            Self::OptionalHeader(name) => format!("optional-header:{name}"),
        }
    }
}

/// One namespace, with the tenant from a field of the request.
#[derive(Clone, Debug)]
pub(crate) struct TenantScope {
    namespace: String,
    tenant: Tenant,
}

impl TenantScope {
    /// The scopes of one service. Fails if the namespace is empty, or no part of the tenant is required.
    pub(crate) fn new(namespace: String, tenant: Tenant) -> Result<Self, Error> {
        Scope::untenanted(&namespace)?;
        let tenant = match tenant {
            Tenant::Parts(parts) => match parts.as_slice() {
                [TenantPart::Authorization] => Tenant::Authorization,
                [TenantPart::Header(name)] => Tenant::Header(name.clone()),
                parts if parts.iter().any(TenantPart::is_required) => Tenant::Parts(parts.to_vec()),
                _ => return Err(Error::new(ErrorKind::Invalid, "no part of the tenant is required in a request")),
            },
            tenant @ (Tenant::Authorization | Tenant::Header(_) | Tenant::None) => tenant,
        };
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
            Tenant::Parts(fields) => {
                let mut joined = Vec::new();
                for field in fields {
                    let value = field.value(&parts.headers)?;
                    // No name and no value of a field has a zero byte, and only an absent one is empty: two lists
                    // never join to the same bytes, and none to the bytes of a credential alone.
                    joined.push(0);
                    joined.extend_from_slice(field.name().as_ref());
                    joined.push(0);
                    joined.extend_from_slice(value);
                }
                self.of_tenant(&identity.tenant_of(&joined))
            }
            Tenant::None => Ok(Scope::untenanted(&self.namespace)?),
        }
    }

    fn describe(&self) -> String {
        match &self.tenant {
            Tenant::Authorization => "authorization".into(),
            Tenant::Header(name) => format!("header:{name}"),
            Tenant::Parts(parts) => parts.iter().map(TenantPart::describe).collect::<Vec<_>>().join(","),
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
