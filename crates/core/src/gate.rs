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
mod heartbeat;
mod outcome;
mod settle;
mod tasks;

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind, Result};
use crate::key::Call;
use crate::machine::{Begin, Begun};
use crate::record::Owner;
use crate::runtime::{Runtime, within};
use crate::settings::{Policy, Settings, Terms};
use crate::store::{Protocol, Store};
use heartbeat::Heartbeat;
use settle::Held;
use tasks::Tasks;

pub use attempt::Attempt;
pub use outcome::{Answer, Failure, How, Ran, Refused, Told};

/// Runs operations once. Cheap to clone; all clones share their store and their tasks.
#[derive(Clone)]
pub struct Gate {
    shared: Arc<Shared>,
    terms: Terms,
}

struct Shared {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    store_timeout: Duration,
    tasks: Tasks,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("store", &self.shared.store).field("terms", &self.terms).finish_non_exhaustive()
    }
}

/// Puts a [`Gate`] together; see [`Gate::builder`].
#[derive(Debug)]
pub struct Builder {
    store: Arc<dyn Store>,
    settings: Settings,
    runtime: Option<Arc<dyn Runtime>>,
}

impl Builder {
    /// Runs on this runtime instead of the tokio runtime that `build` is called in.
    #[must_use]
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// The gate.
    ///
    /// # Errors
    /// `Invalid` for settings that contradict each other, with the remedy.
    ///
    /// # Panics
    /// Outside of a tokio runtime, if no other was given.
    pub fn build(self) -> Result<Gate> {
        self.settings.validate()?;
        let terms = Terms::try_from(&self.settings.policy)?;
        let runtime = self.runtime.map_or_else(current_runtime, Ok)?;
        let shared =
            Shared { store: self.store, runtime, store_timeout: self.settings.store_timeout, tasks: Tasks::default() };
        Ok(Gate { shared: Arc::new(shared), terms })
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
    /// A gate over this store.
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
    pub fn builder(store: Arc<dyn Store>, settings: Settings) -> Builder {
        Builder { store, settings, runtime: None }
    }

    /// The same gate under another policy, for one route.
    ///
    /// # Errors
    /// `Invalid` for a policy that contradicts itself, with the remedy.
    pub fn with(&self, policy: &Policy) -> Result<Self> {
        Ok(Self { shared: Arc::clone(&self.shared), terms: Terms::try_from(policy)? })
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
    pub async fn run<A, H, F>(&self, call: Call, handler: H) -> Result<Ran<A>, Refused<A>>
    where
        A: Answer,
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Result<A, Failure<A>>> + Send + 'static,
    {
        let (tell, told) = oneshot::channel();
        let gate = self.clone();
        self.shared.spawn(async move {
            let ended = gate.attempt(call, handler).await;
            // Nobody may be waiting any more; the record has the answer.
            let _ = tell.send(ended);
        });
        told.await.unwrap_or_else(|_| {
            let message = "the attempt ended without a word";
            Err(Refused::Unknown(Told::Error(Error::new(ErrorKind::Unknown, message).into())))
        })
    }

    /// Waits until every attempt has ended and every release and abandonment is through, or until time is up.
    /// Says whether all of them are. New calls are still taken: stop those first.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn drain(&self, limit: Duration) -> bool {
        within(&*self.shared.runtime, limit, self.shared.tasks.ended()).await.is_some()
    }

    async fn attempt<A, H, F>(self, call: Call, handler: H) -> Result<Ran<A>, Refused<A>>
    where
        A: Answer,
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Result<A, Failure<A>>> + Send + 'static,
    {
        let (begun, sent) = self.begin(call).await.map_err(Refused::Store)?;
        let grant = match begun {
            Begun::Granted(grant) | Begun::Mine(grant) => grant,
            Begun::Replay(completion) => return Ran::recorded(completion, How::Replayed),
            Begun::Busy(retry_after) => return Err(Refused::Busy { retry_after }),
            Begun::Mismatch => return Err(Refused::Mismatch),
            Begun::Indeterminate(since) => return Err(Refused::Indeterminate { since }),
            Begun::Dead => return Err(Refused::Dead),
        };
        let held = Held::new(self, grant, sent);
        let attempt = Attempt::new(grant);
        let heartbeat = Heartbeat::start(&held, attempt.cancellation());
        let ran = AssertUnwindSafe(async move { handler(attempt).await }).catch_unwind().await;
        match ran {
            Ok(Ok(answer) | Err(Failure::Final(answer))) => held.complete(answer, heartbeat).await,
            Ok(Err(Failure::NotApplied(told))) => {
                held.release(heartbeat).await;
                Err(Refused::NotApplied(told))
            }
            Ok(Err(Failure::Unknown(told))) => {
                held.abandon(heartbeat).await;
                Err(Refused::Unknown(told))
            }
            Err(_panic) => {
                held.abandon(heartbeat).await;
                Err(Refused::Unknown(Told::Error(Error::new(ErrorKind::Unknown, "the handler panicked").into())))
            }
        }
    }

    /// Begins, twice with the same owner where the first outcome is unknown, and cancels what an unknown begin may have left.
    /// With the reply comes when the begin was sent that got it, on the boot clock.
    async fn begin(&self, call: Call) -> Result<(Begun, Duration)> {
        let ask = Begin {
            call,
            owner: self.shared.owner(),
            lease: self.terms.lease,
            unknown_retention: self.terms.unknown_retention,
            on_lapse: self.terms.on_lapse,
        };
        let sent = self.shared.runtime.boot();
        let first = self.shared.ask(|protocol| protocol.begin(&ask)).await;
        if !matches!(&first, Err(error) if error.kind() == ErrorKind::Unknown) {
            return first.map(|begun| (begun, sent));
        }
        let sent = self.shared.runtime.boot();
        let second = self.shared.ask(|protocol| protocol.begin(&ask)).await;
        if !matches!(second, Ok(Begun::Granted(_) | Begun::Mine(_))) {
            settle::cancel(self.clone(), &ask);
        }
        second.map(|begun| (begun, sent))
    }
}

impl Shared {
    /// One call to the store. No answer in time means that it may or may not have been carried out.
    async fn ask<'a, T, F>(&'a self, call: impl FnOnce(Protocol<'a>) -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        within(&*self.runtime, self.store_timeout, call(Protocol::over(&*self.store)))
            .await
            .unwrap_or_else(|| Err(Error::new(ErrorKind::Unknown, "the store did not answer in time")))
    }

    fn owner(&self) -> Owner {
        let mut bytes = [0; 16];
        self.runtime.fill(&mut bytes);
        Owner(bytes)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(Box::pin(self.tasks.track(task)));
    }
}
