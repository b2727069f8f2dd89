//! Hapax on real databases. Each is a feature of this crate and none is on by default: drivers are what costs build time.
//!
//! | feature | store |
//! |---|---|
//! | `sqlite` | [`Sqlite`]: one file, for one host |

#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "sqlite")]
pub use sqlite::Sqlite;
