//! A model of layer 3: transactions that write rows of the outbox, relays that publish them, a broker, and a consumer.
//!
//! ```text
//! setting.rs     one setting: its keys, its faults, and the rule that it breaks
//! world.rs       a state
//! action.rs      the steps                        explore.rs    when they are possible, and the invariants
//! writers.rs     transactions and operators       reading.rs    from the outbox into a relay
//! publishing.rs  from a relay to the broker, and the mark
//! broker.rs      what the broker keeps, and what its consumer does
//! ```
//!
//! All rows are of one bucket, because buckets share nothing but the horizon. `hapax_core::relay::DecidedRows` says up
//! to where the cursor may go. The claim of the bucket is a holder and a lease; the other settings of this model check
//! the record behind it.
//!
//! The model is stricter than reality in these points. A relay may act on a read of any age, and on a bucket that it
//! lost any time ago. A publication that got no reply may arrive at any later time. Nothing is read again from the
//! first row without a reason.
//!
//! It is milder in these points. Transactions of one ordering key exclude each other. A relay has room for all rows of
//! a key. A relay that died is back at once. A row is removed only when the broker can no longer lose its event, and an
//! operator republishes only when no relay has yet to mark what it published before the loss.

mod action;
mod broker;
mod explore;
mod publishing;
mod reading;
mod setting;
mod world;
mod writers;

pub use setting::OutboxSetting;
pub(crate) use setting::{HorizonKind, OutboxFaults, OutboxRule, OutboxSpace};
