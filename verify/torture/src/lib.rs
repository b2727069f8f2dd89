//! Torture: a service with a ledger, behind the gateway on Redis, as real processes on real servers. A hostile client
//! orders transfers while processes are killed and connections are cut. Then an audit compares the client's journal
//! with the database.
//!
//! ```text
//! options.rs, order.rs  what a run does, drawn from its seed
//! world.rs, process.rs  the servers and processes
//! client.rs             the hostile client, with its journal
//! faults.rs             kills, pauses and cuts
//! bank.rs, audit.rs     what the database says, and whether it agrees with the journal
//! transfers.rs          the writes of the services
//! harness.rs            what the programs of the proofs share: arguments, folder, report
//! ```
//!
//! In another run the service is behind two gateways, and PostgreSQL has all records. [`target`] tortures
//! `hapax worker` and a service behind it in the same way.

mod audit;
mod bank;
mod client;
mod faults;
pub mod harness;
mod http_session;
mod journal;
mod options;
mod order;
mod process;
mod random;
mod run;
mod sections;
pub mod target;
pub mod transfers;
mod world;

pub use audit::{FoundDamage, TransferDamage};
pub use options::{FaultSelection, TortureFault, TortureOptions, TorturedService};
pub use order::TransferOrder;
pub use process::{built, dies_with_this_process};
pub use random::SplitMix;
pub use run::{TortureResult, run};
pub use sections::with_section;
