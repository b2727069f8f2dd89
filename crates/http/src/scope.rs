use hapax_core::{Identity, Scope};
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderName};

/// Tells whose key a request carries, from facts that were authenticated before.
///
/// ```
/// use hapax_core::Scope;
/// use hapax_http::{CallerUnknown, MakeScope};
/// use http::request::Parts;
///
/// /// What an authentication layer outside leaves in the request.
/// #[derive(Clone)]
/// struct User(String);
///
/// fn scope(parts: &Parts) -> Result<Scope, CallerUnknown> {
///     let user = parts.extensions.get::<User>().ok_or(CallerUnknown("log in first".into()))?;
///     Scope::tenant("payments", &user.0).map_err(|error| CallerUnknown(error.to_string()))
/// }
/// # fn is_one(_: impl MakeScope) {}
/// # is_one(scope);
/// ```
pub trait MakeScope: Send + Sync + 'static {
    /// The scope of this request.
    ///
    /// # Errors
    /// When the caller cannot be told; answered with 400 `caller-unknown` and the remedy.
    fn scope(&self, parts: &Parts) -> Result<Scope, CallerUnknown>;

    /// What the policy page says about whose key it is.
    fn published(&self) -> String {
        "application".into()
    }
}

impl<F> MakeScope for F
where
    F: Fn(&Parts) -> Result<Scope, CallerUnknown> + Send + Sync + 'static,
{
    fn scope(&self, parts: &Parts) -> Result<Scope, CallerUnknown> {
        self(parts)
    }
}

/// The caller cannot be told from the request; the text is the remedy that the caller is given.
///
/// ```
/// use hapax_core::Scope;
/// use hapax_http::CallerUnknown;
///
/// /// The tenant that a session belongs to.
/// fn scope(tenant_of_session: Option<&str>) -> Result<Scope, CallerUnknown> {
///     let tenant = tenant_of_session.ok_or_else(|| CallerUnknown("the session has expired; log in again".into()))?;
///     Scope::tenant("payments", tenant).map_err(|error| CallerUnknown(error.to_string()))
/// }
/// assert_eq!(scope(None).unwrap_err().0, "the session has expired; log in again");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerUnknown(pub String);

/// Where the tenant of a request is written.
///
/// ```
/// use hapax_core::Identity;
/// use hapax_http::{MakeScope, Tenant, TenantScope};
/// use http::Request;
///
/// // By its credential, which is stored as a hash: a renewed one is a new caller.
/// let scope = TenantScope::new("payments", Tenant::Authorization, Identity::plain())?;
/// let of = |token: &str| scope.scope(&Request::post("/").header("authorization", token).body(()).unwrap().into_parts().0);
/// assert_ne!(of("Bearer one"), of("Bearer two"));
/// # Ok::<(), hapax_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tenant {
    /// Exactly one `Authorization` field, of which a hash is kept. A retry with a renewed credential is a new request.
    Authorization,
    /// Exactly one field of this name, set by a proxy that is trusted.
    Header(HeaderName),
    /// All callers share their keys, and can be given each other's answers.
    None,
}

/// One namespace, and a tenant by a field of the request.
///
/// ```
/// use hapax_core::Identity;
/// use hapax_http::{MakeScope, Tenant, TenantScope};
/// use http::{HeaderName, Request};
///
/// let tenant = Tenant::Header(HeaderName::from_static("x-account"));
/// let scope = TenantScope::new("payments", tenant, Identity::plain())?;
/// let of = |request: http::request::Builder| scope.scope(&request.body(()).unwrap().into_parts().0);
/// assert!(of(Request::post("/charges").header("x-account", "acme")).is_ok());
/// assert!(of(Request::post("/charges")).is_err());
/// # Ok::<(), hapax_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TenantScope {
    namespace: String,
    tenant: Tenant,
    identity: Identity,
}

impl TenantScope {
    /// The scopes of one service.
    ///
    /// # Errors
    /// `Invalid` if the namespace is empty.
    pub fn new(namespace: impl Into<String>, tenant: Tenant, identity: Identity) -> Result<Self, hapax_core::Error> {
        let namespace = namespace.into();
        Scope::untenanted(&namespace)?;
        Ok(Self { namespace, tenant, identity })
    }

    fn of_tenant(&self, tenant: &[u8]) -> Result<Scope, CallerUnknown> {
        Scope::tenant(&self.namespace, tenant).map_err(|error| CallerUnknown(error.to_string()))
    }
}

impl MakeScope for TenantScope {
    fn scope(&self, parts: &Parts) -> Result<Scope, CallerUnknown> {
        match &self.tenant {
            Tenant::Authorization => {
                let credential = exactly_one(&parts.headers, &AUTHORIZATION)?;
                self.of_tenant(&self.identity.tenant_of(credential))
            }
            Tenant::Header(name) => self.of_tenant(exactly_one(&parts.headers, name)?),
            Tenant::None => Scope::untenanted(&self.namespace).map_err(|error| CallerUnknown(error.to_string())),
        }
    }

    fn published(&self) -> String {
        match &self.tenant {
            Tenant::Authorization => "authorization".into(),
            Tenant::Header(name) => format!("header:{name}"),
            Tenant::None => "none".into(),
        }
    }
}

fn exactly_one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a [u8], CallerUnknown> {
    let mut fields = headers.get_all(name).iter();
    match (fields.next(), fields.next()) {
        (Some(field), None) if !field.is_empty() => Ok(field.as_bytes()),
        _ => Err(CallerUnknown(format!("send exactly one {name} field; keys belong to the caller it names"))),
    }
}
