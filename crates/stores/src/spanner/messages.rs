//! The messages of the API, as `google/spanner/v1/*.proto` and `google/spanner/admin/**.proto` number their fields.
//! Fields that are not used are left out.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateSessionRequest {
    #[prost(string, tag = "1")]
    pub(super) database: String,
}

/// A session, or a request that only names one.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionName {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExecuteSqlRequest {
    #[prost(string, tag = "1")]
    pub(super) session: String,
    /// None: a transaction of this statement alone, which only reads.
    #[prost(message, optional, tag = "2")]
    pub(super) transaction: Option<TransactionSelector>,
    #[prost(string, tag = "3")]
    pub(super) sql: String,
    #[prost(message, optional, tag = "4")]
    pub(super) params: Option<SqlParams>,
    #[prost(btree_map = "string, message", tag = "5")]
    pub(super) param_types: BTreeMap<String, SqlType>,
    /// Needed for statements that change rows.
    #[prost(int64, tag = "9")]
    pub(super) seqno: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SqlParams {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(super) fields: BTreeMap<String, SqlValue>,
}

/// A value as `google.protobuf.Value` has it. Spanner writes integers, times and bytes as text.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SqlValue {
    #[prost(oneof = "SqlKind", tags = "1, 2, 3, 4, 6")]
    pub(super) kind: Option<SqlKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum SqlKind {
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "6")]
    List(SqlList),
}

/// A row, the key of a row, an array or a struct.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SqlList {
    #[prost(message, repeated, tag = "1")]
    pub(super) values: Vec<SqlValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SqlType {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(message, optional, boxed, tag = "2")]
    pub(super) element: Option<Box<Self>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TransactionSelector {
    #[prost(oneof = "Selected", tags = "2, 3")]
    pub(super) selected: Option<Selected>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Selected {
    /// A transaction that has begun.
    #[prost(bytes = "bytes", tag = "2")]
    Id(Bytes),
    #[prost(message, tag = "3")]
    Begin(TransactionOptions),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TransactionOptions {
    #[prost(oneof = "TransactionMode", tags = "1, 2")]
    pub(super) mode: Option<TransactionMode>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum TransactionMode {
    #[prost(message, tag = "1")]
    ReadWrite(NoFields),
    #[prost(message, tag = "2")]
    ReadOnly(ReadOnlyOptions),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ReadOnlyOptions {
    #[prost(bool, tag = "1")]
    pub(super) strong: bool,
    /// Whether the answer tells the time of the snapshot.
    #[prost(bool, tag = "6")]
    pub(super) returns_time: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResultSet {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ResultSetMetadata>,
    #[prost(message, repeated, tag = "2")]
    pub(super) rows: Vec<SqlList>,
    #[prost(message, optional, tag = "3")]
    pub(super) stats: Option<ResultSetStats>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ResultSetStats {
    /// How many rows the statement has changed.
    #[prost(int64, tag = "3")]
    pub(super) changed: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResultSetMetadata {
    #[prost(message, optional, tag = "1")]
    pub(super) row_type: Option<RowType>,
    /// The transaction that the statement has begun.
    #[prost(message, optional, tag = "2")]
    pub(super) transaction: Option<BegunTransaction>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RowType {
    #[prost(message, repeated, tag = "1")]
    pub(super) fields: Vec<RowField>,
}

/// A column of a row.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RowField {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) column_type: Option<SqlType>,
}

impl RowField {
    /// The number of the type, and that of the elements of an array.
    pub(super) fn types(&self) -> (i32, Option<i32>) {
        let column_type = self.column_type.as_ref();
        let element = column_type.and_then(|column_type| column_type.element.as_ref()).map(|element| element.code);
        (column_type.map_or(0, |column_type| column_type.code), element)
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BegunTransaction {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) id: Bytes,
    /// The time of its snapshot, if it only reads.
    #[prost(message, optional, tag = "2")]
    pub(super) snapshot: Option<SnapshotTime>,
}

/// A time as `google.protobuf.Timestamp` has it.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct SnapshotTime {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CommitRequest {
    #[prost(string, tag = "1")]
    pub(super) session: String,
    #[prost(oneof = "CommitTransaction", tags = "2, 3")]
    pub(super) transaction: Option<CommitTransaction>,
    #[prost(message, repeated, tag = "4")]
    pub(super) mutations: Vec<Mutation>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum CommitTransaction {
    #[prost(bytes = "bytes", tag = "2")]
    Id(Bytes),
    #[prost(message, tag = "3")]
    SingleUse(TransactionOptions),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CommitResponse {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RollbackRequest {
    #[prost(string, tag = "1")]
    pub(super) session: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) transaction_id: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Mutation {
    #[prost(oneof = "MutationKind", tags = "1, 2, 3, 5")]
    pub(super) kind: Option<MutationKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum MutationKind {
    #[prost(message, tag = "1")]
    Insert(WrittenRows),
    #[prost(message, tag = "2")]
    Update(WrittenRows),
    #[prost(message, tag = "3")]
    InsertOrUpdate(WrittenRows),
    #[prost(message, tag = "5")]
    Delete(DeletedRows),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WrittenRows {
    #[prost(string, tag = "1")]
    pub(super) table: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) columns: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub(super) values: Vec<SqlList>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeletedRows {
    #[prost(string, tag = "1")]
    pub(super) table: String,
    #[prost(message, optional, tag = "2")]
    pub(super) key_set: Option<KeySet>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeySet {
    #[prost(message, repeated, tag = "1")]
    pub(super) keys: Vec<SqlList>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct NoFields {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct UpdateDdlRequest {
    #[prost(string, tag = "1")]
    pub(super) database: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) statements: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateDatabaseRequest {
    /// The instance.
    #[prost(string, tag = "1")]
    pub(super) parent: String,
    #[prost(string, tag = "2")]
    pub(super) create_statement: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateInstanceRequest {
    /// The project.
    #[prost(string, tag = "1")]
    pub(super) parent: String,
    #[prost(string, tag = "2")]
    pub(super) instance_id: String,
    #[prost(message, optional, tag = "3")]
    pub(super) instance: Option<InstanceSettings>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InstanceSettings {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) config: String,
    #[prost(string, tag = "3")]
    pub(super) display_name: String,
    #[prost(int32, tag = "5")]
    pub(super) node_count: i32,
}

/// Work that the service does in the background, or a request that only names it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AdminOperation {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(bool, tag = "3")]
    pub(super) done: bool,
    /// Why it has failed.
    #[prost(message, optional, tag = "4")]
    pub(super) error: Option<OperationError>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OperationError {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}
