//! The protocol of Hapax, true for all transports and backends.
//!
//! ```text
//! key.rs      who asks for what: Scope, Key, Identity → RecordKey, Fingerprint, Call
//! record.rs   what is stored for a record key, and its form as one value
//! machine.rs  the whole protocol, pure: what was observed + what is asked → reply or change
//! store.rs    what a backend must be able to do: five operations, each one conditional step
//! lease.rs    gets grants, keeps their leases renewed, and gives them back
//! gate.rs     layer 1: begin → run → complete → answer
//! journal.rs  where unconfirmed completions are kept
//! runtime.rs  every clock, spawn and random byte
//! settings.rs what can be set, and the parts that a policy brings
//! telemetry.rs every event and metric
//! ```
//!
//! There is no HTTP type, driver or broker name in here.

#[cfg(feature = "chaos")]
pub mod chaos;
#[cfg(not(feature = "chaos"))]
mod chaos;
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

pub mod gate;
pub mod journal;
pub mod runtime;
pub mod settings;
pub mod telemetry;

pub use error::{BoxError, Error, ErrorKind, Result};
pub use gate::Gate;
pub use journal::Journal;
pub use key::{Call, EventId, Fingerprint, Identity, Key, OperationId, RecordKey, Rule, Scope};
pub use record::{Completion, Holding, Millis, Owner, Phase, Record, Seconds, State, Timestamp, Token};
pub use settings::{Found, OnBusy, OnLapse, OnStoreDown, Policy, Probe, Repeatable, Settings};
pub use store::{Inspect, Store};
