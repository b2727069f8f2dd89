use std::sync::Arc;

use crate::error::Result;
use crate::gate::coalesce::Coalescer;
use crate::gate::permits::Permits;
use crate::gate::spill::{self, SpillQueue};
use crate::gate::{Gate, GateCore};
use crate::journal::Journal;
use crate::lease::{Cancellation, LeaseEngine};
use crate::runtime::Runtime;
use crate::settings::{PolicyTerms, Settings};
use crate::store::Store;
use crate::telemetry::Meters;

/// Builds a [`Gate`]; see [`Gate::builder`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # use std::sync::Arc;
/// # use hapax::store::Memory;
/// # use hapax::{Gate, Identity, Key, Scope, Settings};
/// # let store = Arc::new(Memory::new());
/// use hapax::journal::MemoryJournal;
///
/// // A service uses a `FileJournal`, which carries the place of the store.
/// let gate = Gate::builder(store, Settings::default()).journal(Arc::new(MemoryJournal::new())).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Builder {
    store: Arc<dyn Store>,
    settings: Settings,
    runtime: Option<Arc<dyn Runtime>>,
    journal: Option<Arc<dyn Journal>>,
}

impl Gate {
    /// Starts to build a gate over this store; [`Gate`] has an example.
    pub fn builder(store: Arc<dyn Store>, settings: Settings) -> Builder {
        Builder { store, settings, runtime: None, journal: None }
    }
}

impl Builder {
    /// Uses this runtime instead of the tokio runtime in which `build` is called.
    #[must_use]
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Keeps completions that the store does not confirm in this journal, and records those that an earlier process
    /// left in it.
    #[must_use]
    pub fn journal(mut self, journal: Arc<dyn Journal>) -> Self {
        self.journal = Some(journal);
        self
    }

    /// Builds the gate. Its metrics go to the recorder that is installed at this moment.
    ///
    /// # Errors
    /// - `Invalid` if settings contradict each other; the message names the remedy.
    /// - `Invalid` without a runtime and without the feature `tokio`.
    /// - `Unusable` if the system has no thread left for the heartbeat.
    ///
    /// # Panics
    /// Outside of a tokio runtime, if no runtime was given.
    pub fn build(self) -> Result<Gate> {
        self.settings.validate()?;
        let terms = PolicyTerms::try_from(&self.settings.policy)?;
        let runtime = self.runtime.map_or_else(current_runtime, Ok)?;
        let settings = self.settings;
        let leases = LeaseEngine::start(self.store, runtime, settings.store_timeout, terms.lease)?;
        let shared = Arc::new(GateCore {
            leases,
            permits: Arc::new(Permits::new(&settings)),
            coalescer: Arc::new(Coalescer::new(settings.max_followers, settings.max_followers_per_key)),
            spill_queue: SpillQueue::new(self.journal),
            end_of_waits: Cancellation::default(),
            meters: Meters::new(),
        });
        spill::start(&shared);
        Ok(Gate { shared, terms: Arc::new(terms) })
    }
}

#[cfg(feature = "tokio")]
pub(crate) fn current_runtime() -> Result<Arc<dyn Runtime>> {
    Ok(Arc::new(crate::runtime::Tokio::current()))
}

#[cfg(not(feature = "tokio"))]
pub(crate) fn current_runtime() -> Result<Arc<dyn Runtime>> {
    let message = "no runtime was given; call `runtime` of the builder, or turn on the feature `tokio`";
    Err(crate::error::Error::new(crate::error::ErrorKind::Invalid, message))
}
