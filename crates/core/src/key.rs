//! Who asks for what: scope and key name an operation, the fingerprint names its payload.
//!
//! ```text
//! Scope + Key ──Identity──► RecordKey ──► OperationId ──► EventId(0), EventId(1), …
//! payload     ──Identity──► Fingerprint
//! RecordKey + Fingerprints = Call, the thing a gate or a ledger is asked to run once
//! ```
//!
//! Every id is derived, never minted, so that each layer, and each attempt, arrives at the same one.
//! `tests/vectors` holds known answers computed by an independent program.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::chaos;
use crate::error::{Error, ErrorKind};

/// What the client sent to name its operation: 1 to 1,024 bytes, compared byte for byte.
///
/// Transports may be stricter (HTTP takes up to 255 visible ASCII characters).
///
/// ```
/// use hapax_core::Key;
///
/// let key = Key::new("8e03978e-40d5-43dd-bc93-6894a57f9324")?;
/// assert!(Key::new("").is_err());
/// # Ok::<(), hapax_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Box<[u8]>);

impl Key {
    /// The longest key, in bytes.
    pub const MAX_LEN: usize = 1024;

    /// Takes the bytes of a key as they came.
    ///
    /// # Errors
    /// `Invalid` if it is empty or longer than [`Key::MAX_LEN`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, Error> {
        let bytes = bytes.into();
        match bytes.len() {
            0 => Err(Error::new(ErrorKind::Invalid, "an idempotency key is empty")),
            1..=Self::MAX_LEN => Ok(Self(bytes.into_boxed_slice())),
            _ => Err(Error::new(ErrorKind::Invalid, "an idempotency key is longer than 1,024 bytes")),
        }
    }

    /// The bytes as the client sent them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A key is the client's secret: it is never printed.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

/// The room in which a key is unique: a namespace, the tenant, and at will the principal within it.
///
/// All come from authenticated facts. There is no default: without a scope one tenant could be answered with the response of another.
///
/// ```
/// use hapax_core::Scope;
///
/// let shop = Scope::tenant("payments", "acme")?;
/// // The same key at two tills of one shop is two operations.
/// assert_ne!(shop.clone().principal("till-3"), shop.principal("till-4"));
/// assert!(Scope::tenant("payments", "").is_err(), "nobody is everybody's tenant by mistake");
/// # Ok::<(), hapax_core::Error>(())
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
    /// `Invalid` if either is empty.
    pub fn tenant(namespace: &str, tenant: impl AsRef<[u8]>) -> Result<Self, Error> {
        let tenant = tenant.as_ref();
        if tenant.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a scope's tenant is empty; Scope::untenanted says that there are none",
            ));
        }
        Ok(Self { tenant: tenant.into(), ..Self::untenanted(namespace)? })
    }

    /// One scope for everybody who reaches the service: only where all callers may see each other's answers.
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

    /// Stands for namespace and tenant where a share of this process's room is counted. Never stored.
    fn tenant_number(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        (&self.namespace, &self.tenant).hash(&mut hash);
        hash.finish()
    }
}

/// Tenants may be derived from credentials: only the namespace is printed.
impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({})", self.namespace)
    }
}

/// How ids are derived: plain SHA-256, or HMAC under a secret so that nothing can be guessed from what is stored.
///
/// A keyed identity never rotates: another secret makes every retry look like a new operation.
///
/// ```
/// use hapax_core::{Identity, Key, Scope};
///
/// let (scope, key) = (Scope::tenant("payments", "acme")?.principal("till-3"), Key::new("order-7")?);
/// let plain = Identity::plain().record_key(&scope, &key);
/// let keyed = Identity::keyed([7; 32]).record_key(&scope, &key);
/// assert_ne!(plain, keyed);
/// # Ok::<(), hapax_core::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Identity {
    secret: Option<[u8; 32]>,
}

impl Identity {
    /// Ids that anybody who knows scope and key can derive.
    pub fn plain() -> Self {
        Self { secret: None }
    }

    /// Ids that only holders of the secret can derive.
    pub fn keyed(secret: [u8; 32]) -> Self {
        Self { secret: Some(secret) }
    }

    /// The record key of a key within its scope.
    pub fn record_key(&self, scope: &Scope, key: &Key) -> RecordKey {
        let tenant: &[u8] = if chaos::on("tenant_ignored") { b"" } else { &scope.tenant };
        let parts = [scope.namespace.as_bytes(), tenant, &scope.principal, &key.0];
        RecordKey(head(&self.digest("hapax/rk/v1", &parts)))
    }

    /// The fingerprint of a payload under a rule: the parts that count, in order.
    ///
    /// # Panics
    /// If a part is 4 GiB long or longer.
    pub fn fingerprint(&self, rule: Rule, parts: &[&[u8]]) -> Fingerprint {
        Fingerprint { rule, bytes: head(&self.digest("hapax/fp/v1", parts)) }
    }

    /// A call for this key. Until [`Call::fingerprint`] gives it one, the payload is not compared.
    ///
    /// ```
    /// use hapax_core::{Identity, Key, Rule, Scope};
    ///
    /// let identity = Identity::plain();
    /// let scope = Scope::tenant("payments", "acme")?;
    /// let key = Key::new("order-7")?;
    /// let call = identity.call(&scope, &key).fingerprint(identity.fingerprint(Rule(1), &[b"amount=5"]));
    /// # Ok::<(), hapax_core::Error>(())
    /// ```
    pub fn call(&self, scope: &Scope, key: &Key) -> Call {
        Call { tenant: scope.tenant_number(), ..Call::new(self.record_key(scope, key)) }
    }

    /// Stands for a secret value, a credential for instance, where a tenant is asked for.
    pub fn tenant_of(&self, credential: &[u8]) -> [u8; 32] {
        self.digest("hapax/tenant/v1", &[credential])
    }

    /// The call that ties a namespace to this identity: whoever runs it first decides, and under another identity it is a mismatch.
    /// Its record key is the same under every identity.
    ///
    /// A process with a keyed identity runs it before it serves: under another secret every retry would look new.
    pub fn pin(&self, namespace: &str) -> Call {
        let rk = RecordKey(head(&Self::plain().digest("hapax/identity", &[namespace.as_bytes()])));
        Call::new(rk).fingerprint(self.fingerprint(Self::PIN, &[b"hapax/identity"]))
    }

    const PIN: Rule = Rule(1);

    /// H(label, parts…): the label and each part preceded by its length, so that no two lists of parts look alike.
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

/// The secret is never printed.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.secret.is_some() { "Identity(keyed)" } else { "Identity(plain)" })
    }
}

/// The first `N` bytes of a SHA-256 digest.
fn head<const N: usize>(digest: &[u8; 32]) -> [u8; N] {
    *digest.first_chunk().expect("no id is longer than the digest it is cut from")
}

fn length(part: &[u8]) -> [u8; 4] {
    u32::try_from(part.len()).expect("a part of an identity is shorter than 4 GiB").to_be_bytes()
}

/// The 16 bytes under which a record is stored: the head of a hash over scope and key.
///
/// ```
/// use hapax_core::{Identity, Key, RecordKey, Scope};
///
/// let rk = Identity::plain().record_key(&Scope::tenant("payments", "acme")?, &Key::new("order-7")?);
/// // In full to find it by, and its first 8 digits for a log.
/// assert_eq!(rk.to_string().len(), 32);
/// assert_eq!(format!("{rk:?}"), rk.to_string()[..8]);
/// // Stores keep its bytes.
/// assert_eq!(RecordKey::from_bytes(*rk.as_bytes()), rk);
/// # Ok::<(), hapax_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordKey([u8; 16]);

impl Hash for RecordKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // One write: the derived hash would also write the length, and every call is hashed many times.
        state.write(&self.0);
    }
}

impl RecordKey {
    /// Takes back the bytes of a record key that was derived before.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The operation that this key names, in every layer.
    pub fn operation(&self) -> OperationId {
        let mut hash = Sha256::new();
        hash.update(b"hapax/op/v1");
        hash.update(self.0);
        OperationId(uuid_v8(&hash.finalize().into()))
    }
}

/// All 32 hexadecimal digits.
impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The first 8 hexadecimal digits: what a log may show.
impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The derived name of an operation, a version 8 UUID: the transaction id and idempotency key to use downstream.
///
/// ```
/// use hapax_core::RecordKey;
///
/// let operation = RecordKey::from_bytes([7; 16]).operation();
/// assert_eq!(operation.to_string().len(), 36);
/// // The first event that the operation emits, and the second.
/// assert_ne!(operation.event(0), operation.event(1));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(Uuid);

impl OperationId {
    /// The 16 bytes of the UUID.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The id of the n-th event that the operation emits.
    pub fn event(&self, n: u32) -> EventId {
        let mut hash = Sha256::new();
        hash.update(b"hapax/event/v1");
        hash.update(self.as_bytes());
        hash.update(n.to_be_bytes());
        EventId(uuid_v8(&hash.finalize().into()))
    }
}

/// The derived name of an event, a version 8 UUID: what a broker and its consumers deduplicate by.
///
/// ```
/// use hapax_core::RecordKey;
///
/// let operation = RecordKey::from_bytes([7; 16]).operation();
/// let (receipt, parcel) = (operation.event(0), operation.event(1));
/// // Published again by a later attempt, it has the same id, and the broker drops the copy.
/// assert_eq!(receipt, operation.event(0));
/// assert_ne!(receipt.to_string(), parcel.to_string());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(Uuid);

impl EventId {
    /// The 16 bytes of the UUID.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

fn uuid_v8(digest: &[u8; 32]) -> Uuid {
    uuid::Builder::from_custom_bytes(head(digest)).into_uuid()
}

macro_rules! printed_as_uuid {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
printed_as_uuid!(OperationId, EventId);

/// Which parts of a payload a fingerprint covers. The numbers are the caller's to give; a changed rule needs a new one.
///
/// ```
/// use hapax_core::{Identity, Rule};
///
/// /// Account and amount: what else the body says may differ from copy to copy.
/// const ACCOUNT_AND_AMOUNT: Rule = Rule(2);
///
/// let fingerprint = Identity::plain().fingerprint(ACCOUNT_AND_AMOUNT, &[b"DE07", b"5.00"]);
/// assert_eq!(fingerprint.rule(), ACCOUNT_AND_AMOUNT);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule(pub u8);

impl Rule {
    /// No payload is compared.
    pub const NONE: Self = Self(0);
}

/// 96 bits that stand for a payload, and the rule they were taken under.
///
/// ```
/// use hapax_core::{Fingerprint, Identity, Rule};
///
/// let identity = Identity::plain();
/// let of = |body: &str| identity.fingerprint(Rule(1), &[b"POST /charges", body.as_bytes()]);
/// assert_ne!(of("amount=5"), of("amount=6"));
/// // Stores keep its parts.
/// let kept = of("amount=5");
/// assert_eq!(Fingerprint::from_parts(kept.rule(), *kept.as_bytes()), kept);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    rule: Rule,
    bytes: [u8; Self::LEN],
}

impl Fingerprint {
    /// Its length in bytes.
    pub const LEN: usize = 12;

    /// The fingerprint of calls whose payload is not compared.
    pub const NONE: Self = Self { rule: Rule::NONE, bytes: [0; Self::LEN] };

    /// Takes back a fingerprint that was taken before.
    pub const fn from_parts(rule: Rule, bytes: [u8; Self::LEN]) -> Self {
        Self { rule, bytes }
    }

    /// The rule it was taken under.
    pub const fn rule(&self) -> Rule {
        self.rule
    }

    /// The 12 bytes.
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.bytes
    }
}

/// Tells fingerprints apart without telling the payload.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.rule.0)?;
        self.bytes[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a gate or a ledger is asked to run once: a record key, and the payload under every rule that is still accepted.
///
/// ```
/// use hapax_core::{Identity, Key, Rule, Scope};
///
/// let identity = Identity::plain();
/// let (newer, older) = (identity.fingerprint(Rule(2), &[b"5"]), identity.fingerprint(Rule(1), &[b"amount=5"]));
/// let call = identity.call(&Scope::tenant("payments", "acme")?, &Key::new("order-7")?).fingerprint(newer).or_older(older);
/// assert_eq!(call.newest_fingerprint(), newer);
/// assert!(call.accepts(older), "of a record from before the rule changed");
/// # Ok::<(), hapax_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    rk: RecordKey,
    fingerprint: Fingerprint,
    older: Option<Fingerprint>,
    tenant: u64,
}

impl Call {
    /// A call whose payload is not compared.
    pub const fn new(rk: RecordKey) -> Self {
        Self { rk, fingerprint: Fingerprint::NONE, older: None, tenant: 0 }
    }

    /// Compares the payload by this fingerprint, which a new record will carry.
    #[must_use]
    pub const fn fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = fingerprint;
        self
    }

    /// Also accepts records that carry the payload's fingerprint under an older rule, while routes change from one to the next.
    #[must_use]
    pub const fn or_older(mut self, fingerprint: Fingerprint) -> Self {
        self.older = Some(fingerprint);
        self
    }

    /// The record key.
    pub const fn record_key(&self) -> RecordKey {
        self.rk
    }

    /// The fingerprint that a new record carries.
    pub const fn newest_fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Whose share of the permits it takes.
    pub(crate) const fn tenant(&self) -> u64 {
        self.tenant
    }

    /// Whether a record with this fingerprint was made for the same payload. A rule that the call does not carry is a mismatch.
    pub fn accepts(&self, recorded: Fingerprint) -> bool {
        self.fingerprint == recorded || self.older == Some(recorded)
    }
}
