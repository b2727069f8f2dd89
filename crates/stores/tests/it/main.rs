//! What is peculiar to one store and no case of the suite.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod disk;
mod sqlite;
