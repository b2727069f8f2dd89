//! Layer 1: an operation that arrives many times is run once, and every copy gets the same answer.
//!
//! ```text
//! run ── begin ─┬─ granted ── handler, heartbeat ─┬─ applied, final ── complete ──► answer (Fresh, Canonical)
//!               │                                 ├─ not applied ───── release ───► Refused::NotApplied
//!               │                                 └─ unknown, panic ── abandon ───► Refused::Unknown
//!               ├─ replay ───────────────────────────────────────────────────────► answer (Replayed)
//!               └─ busy, mismatch, indeterminate, dead ───────────────────────────► Refused
//! ```
//!
//! All of it happens in a task of its own: whoever stops waiting for [`Gate::run`] stops nothing.

mod attempt;
mod attempt_task;
mod begin;
mod breaker;
mod coalesce;
mod heartbeat;
mod outcome;
mod permits;
mod settle;
mod spill;
mod tasks;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::journal::Journal;
use crate::key::Call;
use crate::record::Owner;
use crate::runtime::{Runtime, timeout};
use crate::settings::{OnBusy, Policy, Settings, Terms};
use crate::store::{Protocol, Store};
use crate::telemetry::Meters;
use breaker::Breaker;
use coalesce::{CallRole, Coalescer, Follower, LeaderOutcome, LeaderStage};
use heartbeat::Heartbeats;
use permits::Permits;
use spill::Spill;
use tasks::Tasks;

pub use attempt::Attempt;
pub use outcome::{Answer, Detail, Failure, Provenance, Recorded, Refused, RunResult};

/// Runs operations once. Cheap to clone; all clones share their store and their tasks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::sync::Arc;
/// use hapax_core::runtime::Tokio;
/// use hapax_core::store::{Memory, MemorySettings};
/// use hapax_core::{Gate, Identity, Key, Scope, Settings};
///
/// let store = Memory::new(Arc::new(Tokio::current()), MemorySettings::default());
/// let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
/// let call = Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?);
///
/// for _ in 0..2 {
///     let ran = gate.run(call, |_attempt| async { Ok(String::from("charged")) }).await?;
///     assert_eq!(ran.answer, "charged");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Gate {
    shared: Arc<Shared>,
    terms: Arc<Terms>,
}

struct Shared {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    store_timeout: Duration,
    tasks: Tasks,
    permits: Arc<Permits>,
    coalescer: Arc<Coalescer>,
    heartbeats: Heartbeats,
    breaker: Breaker,
    spill: Spill,
    meters: Meters,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("store", &self.shared.store).field("terms", &self.terms).finish_non_exhaustive()
    }
}

/// Puts a [`Gate`] together; see [`Gate::builder`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # use std::sync::Arc;
/// # use hapax_core::runtime::Tokio;
/// # use hapax_core::store::{Memory, MemorySettings};
/// # use hapax_core::{Gate, Identity, Key, Scope, Settings};
/// # let store = Arc::new(Memory::new(Arc::new(Tokio::current()), MemorySettings::default()));
/// use hapax_core::journal::MemoryJournal;
///
/// // In a service a `FileJournal`, in a folder that belongs to this store alone.
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

impl Builder {
    /// Runs on this runtime instead of the tokio runtime that `build` is called in.
    #[must_use]
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Keeps the completions that the store does not confirm in this journal, and takes over what it holds from before.
    #[must_use]
    pub fn journal(mut self, journal: Arc<dyn Journal>) -> Self {
        self.journal = Some(journal);
        self
    }

    /// The gate. What it measures goes to the recorder of metrics that is installed by now.
    ///
    /// # Errors
    /// `Invalid` for settings that contradict each other, with the remedy, and where there is neither a runtime nor the feature
    /// `tokio`; `Unusable` if the system has no thread left for the heartbeat.
    ///
    /// # Panics
    /// Outside of a tokio runtime, if no other was given.
    pub fn build(self) -> Result<Gate> {
        self.settings.validate()?;
        let terms = Terms::try_from(&self.settings.policy)?;
        let runtime = self.runtime.map_or_else(current_runtime, Ok)?;
        let settings = self.settings;
        let shared = Arc::new(Shared {
            store: self.store,
            runtime,
            store_timeout: settings.store_timeout,
            tasks: Tasks::default(),
            permits: Arc::new(Permits::new(settings.max_in_flight, settings.max_in_flight_per_tenant)),
            coalescer: Arc::new(Coalescer::new(settings.max_twins, settings.max_twins_per_key)),
            heartbeats: Heartbeats::new(&terms),
            breaker: Breaker::default(),
            spill: Spill::new(self.journal),
            meters: Meters::new(),
        });
        heartbeat::start(&shared)?;
        spill::start(&shared);
        Ok(Gate { shared, terms: Arc::new(terms) })
    }
}

#[cfg(feature = "tokio")]
fn current_runtime() -> Result<Arc<dyn Runtime>> {
    Ok(Arc::new(crate::runtime::Tokio::current()))
}

#[cfg(not(feature = "tokio"))]
fn current_runtime() -> Result<Arc<dyn Runtime>> {
    Err(Error::new(ErrorKind::Invalid, "a gate needs a runtime; give it one, or turn on the feature `tokio`"))
}

impl Gate {
    /// A gate over this store, as [`Gate`] shows.
    pub fn builder(store: Arc<dyn Store>, settings: Settings) -> Builder {
        Builder { store, settings, runtime: None, journal: None }
    }

    /// The same gate under another policy, for one route.
    ///
    /// # Errors
    /// `Invalid` for a policy that contradicts itself, with the remedy.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax_core::runtime::Tokio;
    /// # use hapax_core::store::{Memory, MemorySettings};
    /// # use hapax_core::{Gate, Identity, Key, Scope, Settings};
    /// # let store = Arc::new(Memory::new(Arc::new(Tokio::current()), MemorySettings::default()));
    /// use std::time::Duration;
    /// use hapax_core::{OnBusy, Policy};
    ///
    /// let gate = Gate::builder(store, Settings::default()).build()?;
    /// let mut patient = Policy::default();
    /// patient.on_busy = OnBusy::Wait(Duration::from_secs(5));
    /// let reports = gate.with(&patient)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with(&self, policy: &Policy) -> Result<Self> {
        let terms = Terms::try_from(policy)?;
        self.shared.heartbeats.expect(&terms);
        Ok(Self { shared: Arc::clone(&self.shared), terms: Arc::new(terms) })
    }

    /// What this gate runs on, for the layers around it.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.shared.runtime
    }

    /// The policy of the calls of this handle.
    pub fn policy(&self) -> &Policy {
        &self.terms.policy
    }

    /// Whether begins are refused at once, because the store has not answered several in a row. One a second is let through
    /// still, and the first that succeeds ends it: somebody must call.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax_core::runtime::Tokio;
    /// # use hapax_core::store::{Memory, MemorySettings};
    /// # use hapax_core::{Gate, Settings};
    /// # let store = Arc::new(Memory::new(Arc::new(Tokio::current()), MemorySettings::default()));
    /// let gate = Gate::builder(store, Settings::default()).build()?;
    /// // A health check of the service: to this process no calls should be sent now.
    /// let is_ready = !gate.is_store_down();
    /// assert!(is_ready);
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_store_down(&self) -> bool {
        self.shared.breaker.is_open()
    }

    /// Runs the handler once for this call, and gives every copy of the call the same answer.
    ///
    /// The handler runs in a task of its own and is not cancelled when the caller goes away. What it returns decides what is
    /// recorded, see [`Failure`]; a plain `?`, a panic and a dropped handler all mean that the outcome is unknown.
    ///
    /// # Errors
    /// [`Refused`], each kind a different thing to tell the caller.
    ///
    /// # Cancel safety
    /// The attempt goes on. The same call later gets its answer, or learns that it still runs.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax_core::runtime::Tokio;
    /// # use hapax_core::store::{Memory, MemorySettings};
    /// # use hapax_core::{Gate, Identity, Key, Scope, Settings};
    /// # let store = Arc::new(Memory::new(Arc::new(Tokio::current()), MemorySettings::default()));
    /// # let gate = Gate::builder(store, Settings::default()).build()?;
    /// # let call = Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?);
    /// use hapax_core::gate::{Provenance, Refused};
    ///
    /// let ran = gate.run(call, |attempt| async move { Ok(format!("charged as {}", attempt.operation())) }).await;
    /// match ran {
    ///     Ok(ran) if ran.provenance == Provenance::Replayed => println!("it happened before: {}", ran.answer),
    ///     Ok(ran) => println!("it happened now: {}", ran.answer),
    ///     Err(Refused::Busy { retry_after }) => println!("it runs; ask again in {retry_after:?}"),
    ///     Err(Refused::Mismatch) => println!("the key was used for something else"),
    ///     Err(Refused::NotApplied { .. } | Refused::Overloaded) => println!("nothing happened; try again"),
    ///     // The others: nobody knows, or the store cannot be asked.
    ///     Err(refused) => println!("{refused}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<A, H, F>(&self, call: Call, handler: H) -> Result<RunResult<A>, Refused<A>>
    where
        A: Answer,
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Result<A, Failure<A>>> + Send + 'static,
    {
        let ran = self.lead_or_follow(call, handler).await;
        let (outcome, caught) = outcome::label(&ran);
        self.shared.meters.call_ended(outcome, caught);
        ran
    }

    /// Waits until every attempt has ended and every release and abandonment is through, or until time is up.
    /// Says whether all of them are. New calls are still taken: stop those first.
    ///
    /// # Cancel safety
    /// Safe to drop.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax_core::runtime::Tokio;
    /// # use hapax_core::store::{Memory, MemorySettings};
    /// # use hapax_core::{Gate, Identity, Key, Scope, Settings};
    /// # let store = Arc::new(Memory::new(Arc::new(Tokio::current()), MemorySettings::default()));
    /// # let gate = Gate::builder(store, Settings::default()).build()?;
    /// use std::time::Duration;
    ///
    /// // No call is under way, or half a minute has passed.
    /// let all_ended = gate.drain(Duration::from_secs(30)).await;
    /// assert!(all_ended);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drain(&self, limit: Duration) -> bool {
        timeout(&*self.shared.runtime, limit, self.shared.tasks.ended()).await.is_some()
    }

    async fn lead_or_follow<A, H, F>(&self, call: Call, handler: H) -> Result<RunResult<A>, Refused<A>>
    where
        A: Answer,
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Result<A, Failure<A>>> + Send + 'static,
    {
        loop {
            let follower = match self.shared.coalescer.join(&call) {
                CallRole::Leader(leader) => return self.lead(call, Some(leader), handler).await,
                CallRole::Alone => return self.lead(call, None, handler).await,
                CallRole::Mismatch => return Err(Refused::Mismatch),
                CallRole::TooMany => {
                    return Err(Refused::Busy { retry_after: self.terms.lease.into() });
                }
                CallRole::Follower(follower) => follower,
            };
            if let Some(ended) = self.follow(follower).await {
                return ended.into_result();
            }
        }
    }

    /// What became of the leader, or of the wait; nothing if it ended with nothing applied, and this copy is to begin for itself.
    async fn follow(&self, mut follower: Follower) -> Option<LeaderOutcome> {
        let busy = || LeaderOutcome::Busy(self.terms.lease.into());
        let stage = match (follower.decided().await, self.terms.on_busy) {
            (LeaderStage::Granted, OnBusy::Reject) => return Some(busy()),
            (LeaderStage::Granted, OnBusy::Wait(budget)) => {
                timeout(&*self.shared.runtime, budget, follower.ended()).await.unwrap_or(LeaderStage::Ended(busy()))
            }
            (decided @ (LeaderStage::Beginning | LeaderStage::Ended(_)), _) => decided,
        };
        match stage {
            LeaderStage::Ended(LeaderOutcome::NotApplied) => None,
            LeaderStage::Ended(ended) => Some(ended),
            LeaderStage::Beginning | LeaderStage::Granted => Some(busy()),
        }
    }
}

impl Shared {
    /// One call to the store. No answer in time means that it may or may not have been carried out.
    async fn ask<'a, T, F>(&'a self, call: impl FnOnce(Protocol<'a>) -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        timeout(&*self.runtime, self.store_timeout, call(Protocol::over(&*self.store)))
            .await
            .unwrap_or_else(|| Err(Error::new(ErrorKind::Unknown, "the store did not answer in time")))
    }

    fn owner(&self) -> Owner {
        let mut bytes = [0; 16];
        self.runtime.fill_random(&mut bytes);
        Owner(bytes)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(Box::pin(self.tasks.track(task)));
    }
}
