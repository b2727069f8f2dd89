//! The protocol of Hapax, independent of transports and backends.
//!
//! ```text
//! canonical.rs  JSON in a form in which two texts of one value are the same (feature canonical-json)
//! key.rs      names an operation: Scope, Key, Identity → RecordKey, Fingerprint, Call
//! record.rs   the record of an operation, and its form as one stored value
//! machine.rs  the whole protocol as pure functions: observation + request → reply or change
//! store.rs    the five operations of a backend, each one conditional step
//! lease.rs    gets grants, keeps their leases renewed, and gives them back
//! gate.rs     layer 1: begin → run → complete → answer
//! ledger.rs   layer 2: a row that commits with the effect: claim → handler → finish → COMMIT
//! broker.rs   what the worker needs from a broker, and from what processes the messages
//! worker.rs   message → process → acknowledge
//! outbox.rs   what the relay of layer 3 needs from a database with an outbox, and from what it publishes to
//! relay.rs    layer 3: open row → publish → mark
//! journal.rs  keeps completions that the store has not confirmed
//! runtime.rs  every clock, spawned task and random byte
//! settings.rs the settings and policies
//! telemetry.rs the name of every event and metric
//! testing.rs  for tests of a service: delivers a call twice and kills it in between (feature test-util)
//! error.rs    the one error, and what a caller does about each kind
//! ```
//!
//! This crate contains no HTTP type, no driver and no code for a certain broker.

#[cfg(feature = "canonical-json")]
mod canonical;
#[doc(hidden)]
pub mod chaos;
mod error;
mod key;
mod record;

#[cfg(not(feature = "chaos"))]
pub mod machine;
#[cfg(feature = "chaos")]
#[path = "chaos/machine.rs"]
pub mod machine;
/// `machine.rs` itself, behind the functions that apply a mutant.
#[cfg(feature = "chaos")]
#[path = "."]
mod unaltered {
    #[expect(unreachable_pub, reason = "the functions with mutants take the public names")]
    pub mod machine;
}

pub mod store;

mod lease;

pub mod broker;
pub mod gate;
pub mod journal;
pub mod ledger;
pub mod outbox;
#[cfg(feature = "relay")]
pub mod relay;
pub mod runtime;
pub mod settings;
pub mod telemetry;
#[cfg(feature = "test-util")]
pub mod testing;
#[cfg(feature = "worker")]
pub mod worker;

#[cfg(feature = "canonical-json")]
pub use canonical::canonical_json;
pub use error::{BoxError, Error, ErrorKind, Result};
pub use gate::Gate;
pub use journal::Journal;
pub use key::{Call, EventId, Fingerprint, Identity, Key, OperationId, RecordKey, Rule, Scope};
pub use record::{
    AnswerPointer, Completion, Holding, Millis, Owner, Phase, Record, Seconds, State, StoredAnswer, Timestamp, Token,
};
pub use settings::{Found, OnBusy, OnLapse, OnStoreDown, Policy, Probe, Repeatable, Settings};
pub use store::{Inspect, Store};
