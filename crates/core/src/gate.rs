//! Layer 1: an operation that arrives many times runs once, and every copy gets the same answer. It may run again only
//! if its handler said that nothing was applied, or if the policy permits it.
//!
//! ```text
//! run ── begin ─┬─ granted ── handler, heartbeat ─┬─ Ok, Failure::Final ── complete ─► answer (Fresh, Canonical)
//!               │                                 ├─ NotApplied, Denied ── release ──► Refused, Reason::NotApplied
//!               │                                 ├─ GivenUp ───────────── bury ─────► Refused, Reason::NotApplied
//!               │                                 └─ Unknown, panic ────── abandon ──► Refused, Reason::Unknown
//!               ├─ replay ──────────────────────────────────────────────────────────► answer (Replayed)
//!               └─ busy, mismatch, indeterminate, dead, store error ────────────────► Refused with that reason
//! ```
//!
//! `Ok` means that the effect was applied. `Failure::Final` means that nothing was applied and that the answer stays.
//!
//! Each attempt runs in a task of its own, so dropping the future of [`Gate::run`] does not stop it.

mod attempt;
mod attempt_task;
mod begin;
#[path = "chaos/gate.rs"]
mod bugs;
mod builder;
mod coalesce;
#[cfg(feature = "json")]
mod json;
mod outcome;
mod permits;
mod reason;
mod renewal;
mod settle;
mod spill;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};

use crate::error::{ErrorKind, Result};
use crate::key::Call;
use crate::lease::{Cancellation, LeaseEngine};
use crate::runtime::{Runtime, timeout};
use crate::settings::{OnBusy, Policy, PolicyTerms};
use crate::telemetry::{self, Meters};
use coalesce::{CallRole, Coalescer, Follower, LeaderOutcome, LeaderStage};
use permits::Permits;
use spill::SpillQueue;

pub use attempt::Attempt;
pub use builder::Builder;
pub(crate) use builder::current_runtime;
#[cfg(feature = "json")]
pub use json::Json;
pub use outcome::{Answer, Detail, Failure, Provenance, Recorded, Refused, ResultAndLocal, RunResult};
pub use reason::Reason;

/// Runs each operation once. Cheap to clone; all clones share one store and its tasks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::sync::Arc;
/// use hapax::store::Memory;
/// use hapax::{Gate, Identity, Key, Scope, Settings};
///
/// let store = Memory::new();
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
    shared: Arc<GateCore>,
    terms: Arc<PolicyTerms>,
}

/// A call, and until when it may wait for another attempt, which runs in this process or in another one.
#[derive(Clone, Copy)]
struct ArrivedCall {
    call: Call,
    /// On the boot-time clock. None if it does not wait.
    wait_until: Option<Duration>,
}

struct GateCore {
    leases: Arc<LeaseEngine>,
    permits: Arc<Permits>,
    coalescer: Arc<Coalescer>,
    spill_queue: SpillQueue,
    /// Ends the waits of calls for other attempts.
    end_of_waits: Cancellation,
    meters: Meters,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("leases", &self.shared.leases).field("terms", &self.terms).finish_non_exhaustive()
    }
}

impl Gate {
    /// Returns the same gate under another policy, for one route for example.
    ///
    /// # Errors
    /// `Invalid` if the policy contradicts itself; the message names the remedy.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax::store::Memory;
    /// # use hapax::{Gate, Identity, Key, Scope, Settings};
    /// # let store = Arc::new(Memory::new());
    /// use std::time::Duration;
    /// use hapax::{OnBusy, Policy};
    ///
    /// let gate = Gate::builder(store, Settings::default()).build()?;
    /// let mut patient = Policy::default();
    /// patient.on_busy = OnBusy::Wait(Duration::from_secs(5));
    /// let reports = gate.with(&patient)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with(&self, policy: &Policy) -> Result<Self> {
        let terms = PolicyTerms::try_from(policy)?;
        // The heartbeat must check often enough for the shortest lease of any policy.
        self.shared.leases.expect_lease(terms.lease);
        Ok(Self { shared: Arc::clone(&self.shared), terms: Arc::new(terms) })
    }

    /// The runtime of this gate, for the layers around it.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        self.shared.leases.runtime()
    }

    /// The policy of calls through this handle.
    pub fn policy(&self) -> &Policy {
        &self.terms.policy
    }

    /// Whether begins are refused at once, because the store has not answered several begins in a row.
    ///
    /// One begin a second still goes to the store, and the first success ends this state. So the gate needs calls to
    /// notice that the store answers again: a health check that stops all traffic would keep the gate in this state.
    pub fn is_store_down(&self) -> bool {
        self.shared.leases.breaker().is_open()
    }

    /// Runs the handler once for this call, and gives every copy of the call the same answer.
    ///
    /// The handler runs in a task of its own and is not cancelled when the caller goes away. Its return value decides
    /// what is recorded, see [`Failure`]. A plain `?`, a panic and a dropped handler mean that the outcome is unknown.
    ///
    /// # Errors
    /// [`Refused`]; its [`Reason`] says what the caller can do.
    ///
    /// # Cancel safety
    /// If dropped, the attempt goes on. A later copy of the call gets its answer. While the attempt runs, the policy's
    /// `on_busy` decides whether the copy waits or gets `Busy`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax::store::Memory;
    /// # use hapax::{Gate, Identity, Key, Scope, Settings};
    /// # let store = Arc::new(Memory::new());
    /// # let gate = Gate::builder(store, Settings::default()).build()?;
    /// # let call = Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?);
    /// use hapax::gate::{Provenance, Reason};
    ///
    /// let result = gate.run(call, |attempt| async move { Ok(format!("charged as {}", attempt.operation())) }).await;
    /// match result {
    ///     Ok(result) if result.provenance == Provenance::Replayed => println!("charged before: {}", result.answer),
    ///     Ok(result) => println!("charged now: {}", result.answer),
    ///     Err(refused) => match refused.reason {
    ///         Reason::Busy { retry_after } => println!("in progress; try again in {retry_after:?}"),
    ///         Reason::Mismatch => println!("the key was used for another payload"),
    ///         Reason::NotApplied { .. } | Reason::Overloaded => println!("not applied; try again"),
    ///         // The outcome is unknown, or the store failed.
    ///         _ => println!("{refused}"),
    ///     },
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
        let without_local = |attempt| handler(attempt).map(|returned| (returned, ()));
        self.run_with_local(call, without_local).await.0
    }

    /// As [`run`](Self::run), for a handler that returns a local value beside its answer or its failure.
    ///
    /// The local value is not recorded. The caller whose call ran the handler gets it, whatever the result is. It is
    /// `None` if the handler did not run for this call, or did not end: then no value exists.
    ///
    /// # Cancel safety
    /// As [`run`](Self::run). The local value of a caller that went away is dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax::store::Memory;
    /// # use hapax::{Gate, Identity, Key, Scope, Settings};
    /// # let store = Arc::new(Memory::new());
    /// # let gate = Gate::builder(store, Settings::default()).build()?;
    /// # let call = Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?);
    /// use std::time::Duration;
    ///
    /// // The time that the provider took is shown to the first caller only.
    /// let charge = |_attempt| async { (Ok(String::from("charged")), Duration::from_millis(80)) };
    /// let (result, took) = gate.run_with_local(call, charge).await;
    /// assert_eq!((result?.answer, took), (String::from("charged"), Some(Duration::from_millis(80))));
    /// let (copy, took) = gate.run_with_local(call, charge).await;
    /// assert_eq!((copy?.answer, took), (String::from("charged"), None));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_with_local<A, L, H, F>(&self, call: Call, handler: H) -> ResultAndLocal<A, L>
    where
        A: Answer,
        L: Send + 'static,
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = (Result<A, Failure<A>>, L)> + Send + 'static,
    {
        let (mut result, local) = self.lead_or_follow(call, handler).await;
        if let Ok(ran) = &mut result {
            ran.hide_past_expiry(self.shared.leases.runtime().wall_now());
        }
        let (label, is_caught) = outcome::metric_label(&result);
        self.shared.meters.call_ended(label, is_caught);
        if let Err(Refused { reason: Reason::Store(ErrorKind::Damaged), .. }) = &result {
            telemetry::damaged();
        }
        (result, local)
    }

    /// Waits until every attempt has ended and the store has confirmed every grant that was given back (by a release,
    /// burial, abandonment or cancellation), or until the limit. Returns whether all have ended. New calls are still
    /// accepted: stop them first.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn drain(&self, limit: Duration) -> bool {
        timeout(&**self.shared.leases.runtime(), limit, self.shared.leases.wait_until_idle()).await.is_some()
    }

    /// Waits until every attempt has ended, or until the limit. Returns whether all have ended. Unlike
    /// [`drain`](Self::drain), it does not wait for grants that are still being given back in the background.
    ///
    /// # Cancel safety
    /// Safe to drop.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax::store::Memory;
    /// # use hapax::{Gate, Settings};
    /// # let gate = Gate::builder(Arc::new(Memory::new()), Settings::default()).build()?;
    /// use std::time::Duration;
    ///
    /// // While the store is down, a stop need not wait for releases: the leases expire.
    /// let has_ended = gate.wait_for_attempts(Duration::from_secs(20)).await;
    /// gate.drain(Duration::from_secs(1)).await;
    /// println!("all attempts ended: {has_ended}; unconfirmed releases: {}", gate.unconfirmed_releases());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait_for_attempts(&self, limit: Duration) -> bool {
        timeout(&**self.shared.leases.runtime(), limit, self.shared.leases.wait_for_attempts()).await.is_some()
    }

    /// Ends the waits of calls for other attempts, those of now and all later ones, whatever their policy says: such a
    /// call gets [`Reason::Busy`] at once. Attempts that run go on.
    ///
    /// For a process that stops. Its callers would otherwise wait as long as it may take to stop, although another
    /// process could already give them the answer.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax::store::Memory;
    /// # use hapax::{Gate, Settings};
    /// # let gate = Gate::builder(Arc::new(Memory::new()), Settings::default()).build()?;
    /// use std::time::Duration;
    ///
    /// gate.end_waits();
    /// gate.drain(Duration::from_secs(20)).await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn end_waits(&self) {
        self.shared.end_of_waits.fire();
    }

    /// The number of grants that are still being given back in the background: by a release, burial, abandonment or
    /// cancellation that the store has not confirmed yet. If the process ends, their leases expire.
    ///
    /// It includes a cancellation that is repeated because its begin may still arrive.
    pub fn unconfirmed_releases(&self) -> usize {
        self.shared.leases.give_backs()
    }

    /// The number of completions in the journal that the store has not confirmed yet. Those of earlier processes count
    /// as soon as the gate is built.
    pub fn spilled(&self) -> usize {
        self.shared.spill_queue.depth()
    }

    async fn lead_or_follow<A, L, H, F>(&self, call: Call, handler: H) -> ResultAndLocal<A, L>
    where
        A: Answer,
        L: Send + 'static,
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = (Result<A, Failure<A>>, L)> + Send + 'static,
    {
        let call = ArrivedCall { call, wait_until: self.wait_until() };
        loop {
            // A follower whose leader applied nothing joins again: as the next leader, or as its follower.
            let follower = match self.shared.coalescer.join(&call.call) {
                CallRole::Leader(leader) => return self.lead(call, Some(leader), handler).await,
                CallRole::Alone => return self.lead(call, None, handler).await,
                CallRole::Mismatch => return (Err(Reason::Mismatch.into()), None),
                CallRole::TooManyFollowers => return (Err(self.busy().into()), None),
                CallRole::Follower(follower) => follower,
            };
            if let Some(result) = self.follow(follower, call.wait_until).await.into_result() {
                return (result, None);
            }
        }
    }

    /// Until when a call that arrives now may wait for another attempt.
    fn wait_until(&self) -> Option<Duration> {
        match self.terms.on_busy {
            OnBusy::Wait(budget) => Some(self.shared.leases.runtime().boottime_now().saturating_add(budget)),
            OnBusy::Reject => None,
        }
    }

    /// Waits for the leader's outcome as long as the policy allows.
    async fn follow(&self, mut follower: Follower, wait_until: Option<Duration>) -> LeaderOutcome {
        let runtime = &**self.shared.leases.runtime();
        // Waiting for the leader's begin needs no limit of its own, because the begin has one.
        let stage = match (follower.wait_for_begin().await, wait_until) {
            (LeaderStage::Granted, Some(deadline)) => {
                let left = deadline.saturating_sub(runtime.boottime_now());
                let waits_end = pin!(self.shared.end_of_waits.wait());
                match timeout(runtime, left, select(pin!(follower.wait_for_end()), waits_end)).await {
                    Some(Either::Left((stage, _))) => stage,
                    Some(Either::Right(((), _))) | None => LeaderStage::Granted,
                }
            }
            (stage, _) => stage,
        };
        match stage {
            LeaderStage::Ended(outcome) => outcome,
            LeaderStage::Beginning | LeaderStage::Granted => LeaderOutcome::Refused(self.busy()),
        }
    }

    /// The refusal of a copy whose leader runs in this process: the leader takes too long, or has too many followers.
    /// The rest of the leader's lease is not known here, so the caller is asked to wait for a whole lease.
    fn busy(&self) -> Reason {
        Reason::Busy { retry_after: self.terms.lease.into() }
    }
}
