//! UUIDs as values of sqlx. Its own feature for them would put its SQLite into the lock files of users.

use hapax_core::{EventId, OperationId};
use sqlx::decode::Decode;
use sqlx::encode::{Encode, IsNull};
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef, Postgres};

/// A UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SqlxUuid([u8; 16]);

impl From<OperationId> for SqlxUuid {
    fn from(operation: OperationId) -> Self {
        Self(*operation.as_bytes())
    }
}

impl From<EventId> for SqlxUuid {
    fn from(event: EventId) -> Self {
        Self(*event.as_bytes())
    }
}

/// The number of the type `uuid`, the same in every server.
const UUID: Oid = Oid(2950);

/// The number of the type `uuid[]`.
const UUID_ARRAY: Oid = Oid(2951);

impl sqlx::Type<Postgres> for SqlxUuid {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(UUID)
    }
}

impl PgHasArrayType for SqlxUuid {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(UUID_ARRAY)
    }
}

impl Encode<'_, Postgres> for SqlxUuid {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }
}

impl Decode<'_, Postgres> for SqlxUuid {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        match value.format() {
            PgValueFormat::Binary => Ok(Self(value.as_bytes()?.try_into()?)),
            PgValueFormat::Text => Err("the statements of the ledger get their rows in the binary format".into()),
        }
    }
}
