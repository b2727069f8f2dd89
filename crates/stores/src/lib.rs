//! Stores on real databases. Each is a feature of this crate, and none is on by default because drivers cost build
//! time.
//!
//! | feature | store |
//! |---|---|
//! | `dynamodb` | [`DynamoDb`]: a table of AWS DynamoDB, for any number of hosts |
//! | `postgres` | [`Postgres`]: a PostgreSQL server, for any number of hosts; its ledger, outbox and dead letters |
//! | `redis` | [`Redis`]: a Redis or Valkey server, for any number of hosts; its dead letters |
//! | `s3` | [`FarAnswers`]: large answers in a bucket of S3, beside any of these stores |
//! | `sqlite` | [`Sqlite`]: one file, for one host; its ledger, outbox, queue and dead letters; Linux and macOS only |
//! | `spanner` | [`Spanner`]: a database of Google Cloud Spanner, for any number of hosts; its ledger and outbox |
//! | `sqlx` | [`SqlxLedger`]: no store, but the ledger in transactions of sqlx on PostgreSQL, and its runner |
//! | `tokio` | `Postgres::connect`, `Redis::connect`, `Sqlite::open` and the like, which use the current tokio runtime |

#[cfg(all(feature = "sqlite", not(unix)))]
compile_error!(
    "the feature `sqlite` of hapax-stores needs a Unix system: writers take turns by `flock`, and files are private by \
     their mode; use the feature `postgres` or `redis`"
);

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "sqlx"))]
mod chaos;
#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(any(feature = "dynamodb", feature = "postgres", feature = "redis", feature = "s3", feature = "spanner"))]
mod errors;
#[cfg(any(feature = "postgres", feature = "spanner", feature = "sqlite"))]
mod event;
#[cfg(any(feature = "dynamodb", feature = "spanner"))]
mod executor;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
mod headers;
#[cfg(any(feature = "postgres", feature = "sqlx"))]
mod ledger_row;
#[cfg(any(feature = "postgres", feature = "sqlx"))]
mod ledger_runner;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
mod letter;
#[cfg(feature = "s3")]
mod objects;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "postgres", feature = "sqlx"))]
mod schema;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod server_events;
#[cfg(feature = "spanner")]
mod spanner;
#[cfg(any(feature = "postgres", feature = "spanner", feature = "sqlite", feature = "sqlx"))]
mod spread;
#[cfg(any(feature = "postgres", feature = "sqlx"))]
mod sql_state;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlx")]
mod sqlx;
#[cfg(any(feature = "dynamodb", feature = "spanner"))]
mod turns;

#[cfg(feature = "dynamodb")]
pub use dynamodb::{DynamoDb, DynamoDbUrl, MissingTableParts};
#[cfg(feature = "s3")]
pub use objects::{AnswerBucket, BucketUrl, FarAnswers, FarInspect, FoundObject};
#[cfg(feature = "postgres")]
pub use postgres::{
    HandleJobs, Postgres, PostgresDeadLetters, PostgresEntry, PostgresLedger, PostgresOutbox, PostgresProcess,
    PostgresTables, PostgresTransaction, PostgresUrl,
};
#[cfg(feature = "redis")]
pub use redis::{Redis, RedisDeadLetters, RedisUrl};
#[cfg(feature = "spanner")]
pub use spanner::{
    HandleSpannerJobs, Spanner, SpannerEntry, SpannerLedger, SpannerOutbox, SpannerProcess, SpannerRow,
    SpannerStatement, SpannerStatementError, SpannerTables, SpannerTransaction, SpannerUrl, SpannerValue,
};
#[cfg(feature = "sqlite")]
pub use sqlite::{
    Sqlite, SqliteDeadLetters, SqliteEntry, SqliteFile, SqliteLedger, SqliteOutbox, SqliteProcess, SqliteSettings,
    SqliteTables,
};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteQueue, SqliteSink, SqliteSinkConfig, SqliteSource, SqliteSourceSettings};
#[cfg(feature = "sqlx")]
pub use sqlx::{HandleSqlxJobs, SqlxEntry, SqlxLedger, SqlxProcess, SqlxRunner};
