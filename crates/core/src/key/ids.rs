//! Record keys, operation ids and event ids: each is derived from the one before.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::length;
use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind};

/// The key of a record in a store: the first 16 bytes of a hash over the scope and key.
///
/// ```
/// use hapax::{Identity, Key, RecordKey, Scope};
///
/// let rk = Identity::plain().record_key(&Scope::tenant("payments", "acme")?, &Key::new("order-7")?);
/// // `Display` prints all digits, `Debug` only the first 8, for logs.
/// assert_eq!(rk.to_string().len(), 32);
/// assert_eq!(format!("{rk:?}"), rk.to_string()[..8]);
/// // Stores keep the bytes.
/// assert_eq!(RecordKey::from_bytes(*rk.as_bytes()), rk);
/// # Ok::<(), hapax::Error>(())
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
    /// The record key with these bytes, which were derived before.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The id of the operation, the same in every layer.
    pub fn operation(&self) -> OperationId {
        let mut hash = Sha256::new();
        hash.update(b"hapax/op/v1");
        hash.update(self.0);
        OperationId(uuid_v8(&hash.finalize().into()))
    }
}

/// Prints all 32 hexadecimal digits.
impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Prints the first 8 hexadecimal digits, as logs may show no more.
impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The derived id of an operation, a version 8 UUID. Use it downstream as a transaction id or idempotency key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(Uuid);

impl OperationId {
    /// The operation id with these bytes, which were received: from a request header or a ledger's row.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The 16 bytes of the UUID.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The id of the n-th event that the operation emits through the ledger of this namespace. Two ledgers that handle
    /// one operation emit different events.
    ///
    /// # Panics
    /// If the namespace is 4 GiB or longer.
    pub fn event(&self, namespace: &str, n: u32) -> EventId {
        let namespace = if Mutant::EventWithoutNamespace.is_on() { "" } else { namespace };
        let mut hash = Sha256::new();
        hash.update(b"hapax/event/v2");
        hash.update(length(namespace.as_bytes()));
        hash.update(namespace);
        hash.update(self.as_bytes());
        hash.update(n.to_be_bytes());
        EventId(uuid_v8(&hash.finalize().into()))
    }
}

/// The derived id of an event, a version 8 UUID, by which brokers and consumers deduplicate. A later attempt that
/// publishes the event again uses the same id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(Uuid);

impl EventId {
    /// The event id with these bytes, which were derived before, or come from another writer.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// A new id from random bytes, a version 4 UUID, for an event that no operation emits.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(uuid::Builder::from_random_bytes(bytes).into_uuid())
    }

    /// The 16 bytes of the UUID.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

/// Reads a UUID, as `Display` prints it. Any UUID is accepted: another system may have minted the operation's id.
impl FromStr for OperationId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let uuid = Uuid::try_parse(text);
        uuid.map(Self).map_err(|error| Error::new(ErrorKind::Invalid, "an operation id is a UUID").caused_by(error))
    }
}

/// Reads a UUID, as `Display` prints it.
impl FromStr for EventId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let uuid = Uuid::try_parse(text);
        uuid.map(Self).map_err(|error| Error::new(ErrorKind::Invalid, "the id of an event is a UUID").caused_by(error))
    }
}

pub(super) fn uuid_v8(digest: &[u8; 32]) -> Uuid {
    uuid::Builder::from_custom_bytes(head(digest)).into_uuid()
}

macro_rules! uuids {
    ($($name:ident),*) => {$(
        /// The same UUID, for a column of that type.
        impl From<$name> for Uuid {
            fn from(id: $name) -> Self {
                id.0
            }
        }

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
uuids!(OperationId, EventId);

/// The first `N` bytes of a digest.
pub(super) fn head<const N: usize>(digest: &[u8; 32]) -> [u8; N] {
    *digest.first_chunk().expect("no id is longer than the digest it is cut from")
}
