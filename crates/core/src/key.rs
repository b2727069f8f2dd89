//! Identifies operations: the scope and key name an operation, the fingerprint identifies its payload.
//!
//! ```text
//! Scope + Key ──Identity──► RecordKey ──► OperationId ──► EventId(0), EventId(1), …
//! payload     ──Identity──► Fingerprint
//! RecordKey + Fingerprints = Call, which a gate or a ledger runs once
//! ```
//!
//! Every id is derived, never generated, so every layer and every attempt computes the same one.
//! `tests/vectors` contains expected ids, computed by an independent program.

mod fingerprint;
mod ids;

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind};

pub use fingerprint::{Fingerprint, Rule};
use ids::head;
pub use ids::{EventId, OperationId, RecordKey};

/// The client's name for its operation: 1 to 1,024 bytes, compared byte by byte.
///
/// Transports may be stricter: HTTP accepts up to 255 printable ASCII characters.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Box<[u8]>);

impl Key {
    /// The longest key, in bytes.
    pub const MAX_LEN: usize = 1024;

    /// A key with these bytes.
    ///
    /// # Errors
    /// `Invalid` if the key is empty or longer than [`Key::MAX_LEN`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, Error> {
        let bytes = bytes.into();
        match bytes.len() {
            0 => Err(Error::new(ErrorKind::Invalid, "an idempotency key is empty")),
            1..=Self::MAX_LEN => Ok(Self(bytes.into_boxed_slice())),
            _ => Err(Error::new(ErrorKind::Invalid, "an idempotency key is longer than 1,024 bytes")),
        }
    }

    /// The bytes that the client sent.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Prints only the length: a key may be a secret of the client.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

/// The scope in which a key is unique: a namespace, a tenant, and optionally a principal of the tenant.
///
/// All three must come from authenticated facts. There is no default scope: without a scope, one tenant could receive
/// the answer of another.
///
/// ```
/// use hapax::Scope;
///
/// let shop = Scope::tenant("payments", "acme")?;
/// // The same key from two principals names two operations.
/// assert_ne!(shop.clone().principal("till-3"), shop.principal("till-4"));
/// assert!(Scope::tenant("payments", "").is_err(), "an empty tenant is an error");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    namespace: Box<str>,
    tenant: Box<[u8]>,
    principal: Box<[u8]>,
}

impl Scope {
    /// The scope of one tenant in a namespace (one per service or consumer group).
    ///
    /// # Errors
    /// `Invalid` if the namespace or the tenant is empty.
    pub fn tenant(namespace: &str, tenant: impl AsRef<[u8]>) -> Result<Self, Error> {
        let tenant = tenant.as_ref();
        if tenant.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a scope's tenant is empty; use Scope::untenanted for a service without tenants",
            ));
        }
        Ok(Self { tenant: tenant.into(), ..Self::untenanted(namespace)? })
    }

    /// One scope for all callers of a service. Use it only if all callers may see each other's answers.
    ///
    /// # Errors
    /// `Invalid` if the namespace is empty.
    pub fn untenanted(namespace: &str) -> Result<Self, Error> {
        if namespace.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "a scope's namespace is empty"));
        }
        Ok(Self { namespace: namespace.into(), tenant: Box::default(), principal: Box::default() })
    }

    /// Narrows the scope to one principal of the tenant.
    #[must_use]
    pub fn principal(mut self, principal: impl AsRef<[u8]>) -> Self {
        self.principal = principal.as_ref().into();
        self
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A number for the namespace and tenant, by which this process limits each tenant's share of its permits. Never
    /// stored.
    fn tenant_number(&self) -> u64 {
        // Two tenants with one number share one limit; nothing else depends on it.
        let mut hash = DefaultHasher::new();
        (&self.namespace, &self.tenant).hash(&mut hash);
        hash.finish()
    }
}

/// Prints only the namespace: tenants may be derived from credentials.
impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({})", self.namespace)
    }
}

/// How ids are derived: with plain SHA-256, or with HMAC under a secret, so that stored ids cannot be guessed.
///
/// The secret can never change: under another secret every retry looks like a new operation.
///
/// ```
/// use hapax::{Identity, Key, Scope};
///
/// let (scope, key) = (Scope::tenant("payments", "acme")?.principal("till-3"), Key::new("order-7")?);
/// let plain = Identity::plain().record_key(&scope, &key);
/// let keyed = Identity::keyed([7; 32]).record_key(&scope, &key);
/// assert_ne!(plain, keyed);
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Identity {
    secret: Option<[u8; 32]>,
}

impl Identity {
    /// Derives ids without a secret: everyone who knows the scope and key can compute them.
    pub fn plain() -> Self {
        Self { secret: None }
    }

    /// Derives ids with a secret: only its holders can compute them.
    pub fn keyed(secret: [u8; 32]) -> Self {
        Self { secret: Some(secret) }
    }

    /// Whether ids are derived under a secret.
    pub(crate) fn is_keyed(&self) -> bool {
        self.secret.is_some()
    }

    /// The record key of a key within its scope.
    pub fn record_key(&self, scope: &Scope, key: &Key) -> RecordKey {
        let tenant: &[u8] = if Mutant::TenantIgnored.is_on() { b"" } else { &scope.tenant };
        // An absent principal is an empty part: the number of parts never varies.
        let parts = [scope.namespace.as_bytes(), tenant, &scope.principal, &key.0];
        RecordKey::from_bytes(head(&self.digest("hapax/rk/v1", &parts)))
    }

    /// The fingerprint of a payload under a rule. `parts` are the parts of the payload that the rule covers, in order.
    ///
    /// # Panics
    /// If a part is 4 GiB or longer.
    pub fn fingerprint(&self, rule: Rule, parts: &[&[u8]]) -> Fingerprint {
        Fingerprint::from_parts(rule, head(&self.digest("hapax/fp/v1", parts)))
    }

    /// A call for this key. Its payload is not compared unless [`Call::fingerprint`] adds a fingerprint.
    pub fn call(&self, scope: &Scope, key: &Key) -> Call {
        Call { tenant: scope.tenant_number(), ..Call::new(self.record_key(scope, key)) }
    }

    /// A tenant derived from a secret value, such as a credential. The secret cannot be computed from it.
    pub fn tenant_of(&self, credential: &[u8]) -> [u8; 32] {
        self.digest("hapax/tenant/v1", &[credential])
    }

    /// The id of a dead letter, from what it is about.
    #[cfg(feature = "worker")]
    pub(crate) fn dead_letter(&self, parts: &[&[u8]]) -> uuid::Uuid {
        ids::uuid_v8(&self.digest("hapax/dead/v1", parts))
    }

    /// The call that pins a namespace to this identity. The first process that completes it decides; under another
    /// identity it is a mismatch. Its record key is the same under every identity.
    ///
    /// A process with a keyed identity runs it before it serves requests, because under another secret every retry
    /// would look new.
    pub fn pin(&self, namespace: &str) -> Call {
        // Plain, so that processes with different secrets meet in one record and notice it.
        let rk = RecordKey::from_bytes(head(&Self::plain().digest("hapax/identity", &[namespace.as_bytes()])));
        Call::new(rk).fingerprint(self.fingerprint(Self::PIN, &[b"hapax/identity"]))
    }

    const PIN: Rule = Rule(1);

    /// H(label, parts…): hashes the label and each part after its length, so that different lists of parts never give
    /// the same input.
    fn digest(&self, label: &str, parts: &[&[u8]]) -> [u8; 32] {
        let all = std::iter::once(label.as_bytes()).chain(parts.iter().copied());
        match &self.secret {
            None => {
                let mut hash = Sha256::new();
                all.for_each(|part| {
                    hash.update(length(part));
                    hash.update(part);
                });
                hash.finalize().into()
            }
            Some(secret) => {
                let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes a key of any length");
                all.for_each(|part| {
                    mac.update(&length(part));
                    mac.update(part);
                });
                mac.finalize().into_bytes().into()
            }
        }
    }
}

/// Prints whether there is a secret, never the secret.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.secret.is_some() { "Identity(keyed)" } else { "Identity(plain)" })
    }
}

fn length(part: &[u8]) -> [u8; 4] {
    u32::try_from(part.len()).expect("a part of an identity is shorter than 4 GiB").to_be_bytes()
}

/// An operation for a gate or a ledger to run once: a record key, and the payload's fingerprint under each rule that is
/// accepted.
///
/// ```
/// use hapax::{Identity, Key, Rule, Scope};
///
/// let identity = Identity::plain();
/// let (newer, older) = (identity.fingerprint(Rule(2), &[b"5"]), identity.fingerprint(Rule(1), &[b"amount=5"]));
/// let (scope, key) = (Scope::tenant("payments", "acme")?, Key::new("order-7")?);
/// let call = identity.call(&scope, &key).fingerprint(newer).or_older(older);
/// assert_eq!(call.newest_fingerprint(), newer);
/// assert!(call.accepts(older), "a record from before the change of the rule");
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    rk: RecordKey,
    fingerprint: Fingerprint,
    older: Option<Fingerprint>,
    tenant: u64,
    origin: Option<u64>,
}

impl Call {
    /// A call whose payload is not compared.
    pub const fn new(rk: RecordKey) -> Self {
        Self { rk, fingerprint: Fingerprint::NONE, older: None, tenant: 0, origin: None }
    }

    /// Sets the fingerprint to compare the payload by. A new record stores it.
    #[must_use]
    pub const fn fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = fingerprint;
        self
    }

    /// Also accepts records that store the payload's fingerprint under an older rule, during the change from one rule
    /// to the next.
    #[must_use]
    pub const fn or_older(mut self, fingerprint: Fingerprint) -> Self {
        self.older = Some(fingerprint);
        self
    }

    /// Names where the call comes from, for instance a number for a network address. Unlike a tenant, a caller cannot
    /// invent it. `Settings::max_in_flight_per_origin` limits the attempts of one origin. Never stored.
    #[must_use]
    pub const fn origin(mut self, origin: u64) -> Self {
        self.origin = Some(origin);
        self
    }

    /// The record key.
    pub const fn record_key(&self) -> RecordKey {
        self.rk
    }

    /// The fingerprint that a new record stores.
    pub const fn newest_fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The fingerprint under the older rule that is accepted too.
    pub(crate) const fn older_fingerprint(&self) -> Option<Fingerprint> {
        self.older
    }

    /// Whether both calls have the same key and the same payload. They may come from different origins.
    pub(crate) fn is_copy_of(&self, other: &Self) -> bool {
        let payload = |call: &Self| (call.rk, call.fingerprint, call.older);
        payload(self) == payload(other)
    }

    /// The tenant whose share of the permits the call uses.
    pub(crate) const fn tenant(&self) -> u64 {
        self.tenant
    }

    /// The origin whose share of the permits the call uses.
    pub(crate) const fn permit_origin(&self) -> Option<u64> {
        self.origin
    }

    /// Whether a record with this fingerprint has the same payload. If the call has no fingerprint under the record's
    /// rule, it is a mismatch.
    pub fn accepts(&self, recorded: Fingerprint) -> bool {
        self.fingerprint == recorded || self.older == Some(recorded)
    }
}
