//! Stores on real databases. Each is a feature of this crate, and none is on by default because drivers cost build
//! time.
//!
//! | feature | store |
//! |---|---|
//! | `redis` | [`Redis`]: a Redis or Valkey server, for any number of hosts |
//! | `sqlite` | [`Sqlite`]: one file, for one host |
//! | `tokio` | `Redis::connect` and `Sqlite::open`, which use the current tokio runtime |

#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "redis")]
pub use redis::{Redis, RedisUrl};
#[cfg(feature = "sqlite")]
pub use sqlite::{Sqlite, SqliteSettings};
