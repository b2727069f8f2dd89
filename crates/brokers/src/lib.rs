//! Sources of messages on real brokers. Each is a feature of this crate, and none is on by default because drivers cost
//! build time.
//!
//! | feature | source |
//! |---|---|
//! | `nats` | [`NatsSource`]: a durable consumer of NATS JetStream |

#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "nats")]
mod url;

#[cfg(feature = "nats")]
pub use nats::{NatsSource, NatsUrl};
