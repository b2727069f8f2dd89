//! Webhooks against a receiver on loopback that answers as a test says.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]
#![expect(clippy::disallowed_methods, reason = "the receiver is a server of its own, and the deadline is in real time")]

mod addresses;
mod answers;
mod receiver;
mod relay;
mod room;
mod signatures;
mod tls;
mod world;
