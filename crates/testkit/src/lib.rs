//! The conformance suite: one list of cases for all stores. Each case names the clause of the contract that it tests.
//!
//! A backend joins with one line in a `tests/conformance.rs` (with `harness = false`):
//!
//! ```text
//! fn main() -> ExitCode {
//!     hapax_testkit::main(&[sqlite::backend()])
//! }
//! ```
//!
//! A ledger joins in the same way, with [`ledger_main`], an outbox with [`outbox_main`], a source of messages with
//! [`source_main`], and a sink of the relay with [`sink_main`].
//!
//! For tests of a whole engine: [`Faulty`], a store with injected faults, and [`VirtualTime`], a scheduler in which
//! leases and timeouts take no real time. [`FaultyTransaction`] is a transaction of a ledger with an injected fault.
//! For tests of a backend: [`servers`], real servers that can be killed, stopped and given another clock, a TCP
//! [`proxy`] with injected faults, and [`FakeBucket`].

mod clock;
mod differential;
mod fake_bucket;
mod faulty;
mod faulty_transaction;
mod ledger_runner;
pub mod memory_broker;
mod memory_dead_letters;
mod outbox_runner;
mod poll;
mod ports;
pub mod proxy;
mod runner;
pub mod servers;
mod setup;
mod sink_runner;
mod source_process;
mod source_runner;
mod suite;
mod suite_runner;
mod virtual_time;

pub use clock::ManualClock;
pub use differential::differential;
pub use fake_bucket::{BucketFault, BucketService, FakeBucket};
pub use faulty::{CopyDelay, Faulty, StoreFault, StoreMethod, yield_now};
pub use faulty_transaction::{FaultyTransaction, StatementFault};
pub use ledger_runner::{LedgerBackend, LedgerTrial, ledger_main};
pub use memory_broker::MemoryBroker;
pub use memory_dead_letters::MemoryDeadLetters;
pub use outbox_runner::{OutboxBackend, outbox_main};
pub use poll::pause;
pub use runner::{Backend, main};
pub use setup::{Capability, ClockStep, Setup, StoredPart, SuiteCase};
pub use sink_runner::{SinkBackend, run_sink_case, sink_main};
pub use source_process::{OpenedSource, SourceProcess, serve_source};
pub use source_runner::{SourceBackend, run_source_case, source_main};
pub use suite::ledger::{
    ConnectionCut, CutRequest, Execute, LedgerCapability, LedgerCase, LedgerContents, LedgerSession, LedgerSetup,
    Script, ScriptFailure, Snapshot, StoredAttempts, StoredEntry, StoredEvent, Way, ledger_cases,
};
pub use suite::outbox::{OutboxCapability, OutboxCase, OutboxSetup, OutboxWriter, outbox_cases};
pub use suite::sink::{ArrivedEvent, SinkCapability, SinkCase, SinkOptions, SinkSetup, sink_cases};
pub use suite::source::{SourceCapability, SourceCase, SourceSetup, SourceTimes, WorkerHost, source_cases};
pub use suite::store::{GOLDEN_ANSWER, cases, golden_call};
pub use suite_runner::{AnyCase, SuiteBackend};
pub use virtual_time::{ChooseTask, ClockOffsets, Process, ProcessPart, TaskHandle, VirtualTime};
