//! The leader of a call: one attempt from its begin to its end, in a task of its own.

use std::cell::Cell;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::chaos;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::attempt::Attempt;
use crate::gate::begin::BeginOutcome;
use crate::gate::coalesce::{Leader, LeaderOutcome};
use crate::gate::outcome::{Answer, Failure, Provenance, Recorded, Refused, RunResult};
use crate::gate::permits::Permit;
use crate::gate::settle::GrantGuard;
use crate::gate::{Gate, Shared};
use crate::key::Call;

impl Gate {
    /// Runs the call in a task of its own.
    pub(super) async fn lead<A, H, F>(
        &self,
        call: Call,
        leader: Option<Leader>,
        handler: H,
    ) -> Result<RunResult<A>, Refused<A>>
    where
        A: Answer,
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Result<A, Failure<A>>> + Send + 'static,
    {
        let Some(permit) = self.shared.permits.take(call.tenant()) else {
            return Err(Refused::Overloaded);
        };
        let (tell, told) = oneshot::channel();
        let resources = AttemptResources { leader, _permit: permit };
        let gate = self.clone();
        #[cfg(feature = "chaos")]
        if chaos::on("handler_dies_with_caller") {
            return Box::pin(gate.attempt(call, resources, handler)).await;
        }
        // Boxed before it is handed on: it is large, and each hand would copy it.
        let attempt = Box::pin(gate.attempt(call, resources, handler));
        self.shared.spawn(async move {
            let ended = attempt.await;
            // Nobody may be waiting any more; the record has the answer.
            let _ = tell.send(ended);
        });
        told.await.unwrap_or_else(|_| {
            let message = "the attempt ended without a word";
            Err(Refused::Unknown { detail: Error::new(ErrorKind::Unknown, message).into(), unrecorded: false })
        })
    }

    /// The whole of one attempt; its end is told to the twins, too.
    async fn attempt<A, H, F>(
        self,
        call: Call,
        mut resources: AttemptResources,
        handler: H,
    ) -> Result<RunResult<A>, Refused<A>>
    where
        A: Answer,
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Result<A, Failure<A>>> + Send + 'static,
    {
        let timer = PhaseTimer::start(&self.shared);
        let begun = self.begin(call).await;
        timer.shared.meters.begun(timer.lap());
        let ran = match begun {
            Ok(BeginOutcome::Granted(granted)) => {
                resources.granted();
                let attempt = Attempt::granted(granted.grant);
                let guard = GrantGuard::new(self, granted, attempt.cancellation());
                let said = guarded(attempt, handler).await;
                timer.shared.meters.handled(timer.lap());
                if chaos::on("twin_told_early")
                    && let Ok(answer) = &said
                    && let Some(leader) = resources.leader.take()
                {
                    leader.ended(|| LeaderOutcome::Answer {
                        answer: answer.encode(),
                        recorded: Recorded::Yes,
                        expiry: None,
                    });
                }
                let ran = guard.settle(said).await;
                timer.shared.meters.completed(timer.lap());
                ran
            }
            Ok(BeginOutcome::Unprotected) => {
                unprotected(guarded(Attempt::unprotected(call.record_key()), handler).await)
            }
            Ok(BeginOutcome::Ended(ended)) => ended.into_result(),
            Err(error) => Err(Refused::Store(error)),
        };
        resources.ended(&ran);
        ran
    }
}

/// The handler's word; a panic means that the outcome is unknown.
async fn guarded<A, H, F>(attempt: Attempt, handler: H) -> Result<A, Failure<A>>
where
    H: FnOnce(Attempt) -> F,
    F: Future<Output = Result<A, Failure<A>>>,
{
    let said = AssertUnwindSafe(async move { handler(attempt).await }).catch_unwind().await;
    if said.is_err() && chaos::on("panic_is_not_applied") {
        return Err(Failure::not_applied(Error::new(ErrorKind::NotApplied, "the handler panicked")));
    }
    said.unwrap_or_else(|_panic| Err(Failure::unknown(Error::new(ErrorKind::Unknown, "the handler panicked"))))
}

/// Measures the parts of an attempt.
struct PhaseTimer {
    shared: Arc<Shared>,
    since: Cell<Duration>,
}

impl PhaseTimer {
    fn start(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), since: Cell::new(shared.runtime.boottime_now()) }
    }

    /// The time since the start, or the lap before.
    fn lap(&self) -> Duration {
        let now = self.shared.runtime.boottime_now();
        now.saturating_sub(self.since.replace(now))
    }
}

/// What an attempt holds in this process beside its grant.
struct AttemptResources {
    leader: Option<Leader>,
    _permit: Permit,
}

impl AttemptResources {
    fn granted(&mut self) {
        if let Some(leader) = &mut self.leader {
            leader.granted();
        }
    }

    fn ended<A: Answer>(self, ran: &Result<RunResult<A>, Refused<A>>) {
        if let Some(leader) = self.leader {
            leader.ended(|| LeaderOutcome::of(ran));
        }
    }
}

/// The end of a handler that ran without a record.
fn unprotected<A>(ran: Result<A, Failure<A>>) -> Result<RunResult<A>, Refused<A>> {
    match ran {
        Ok(answer) | Err(Failure::Final(answer)) => {
            Ok(RunResult { answer, provenance: Provenance::Fresh, recorded: Recorded::No, expiry: None })
        }
        Err(Failure::NotApplied(detail) | Failure::Denied(detail)) => {
            Err(Refused::NotApplied { detail, unrecorded: true })
        }
        Err(Failure::Unknown(detail)) => Err(Refused::Unknown { detail, unrecorded: true }),
    }
}
