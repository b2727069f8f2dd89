//! A running process: its gates, one for each route, and a journal that survives a crash.

use std::sync::Arc;

use hapax_core::Gate;
use hapax_core::journal::MemoryJournal;
use hapax_testkit::Process;

/// A process in its present state.
#[derive(Debug)]
pub(crate) struct SimProcess {
    pub(crate) process: Arc<Process>,
    pub(crate) life: usize,
    /// The gate of each route.
    pub(crate) gates: Vec<Gate>,
    pub(crate) journal: Option<Arc<MemoryJournal>>,
    pub(crate) up: bool,
}
