//! One attempt from its begin to its end, in a task of its own.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::attempt::Attempt;
use crate::gate::begin::BeginOutcome;
use crate::gate::coalesce::{Leader, LeaderOutcome};
use crate::gate::outcome::{Answer, Failure, Provenance, Recorded, Refused, ResultAndLocal, RunResult};
use crate::gate::permits::Permit;
use crate::gate::reason::Reason;
use crate::gate::settle::GrantGuard;
use crate::gate::{ArrivedCall, Gate, GateCore, bugs};
use crate::telemetry::{self, Meters};

impl Gate {
    /// Runs the call in a task of its own.
    pub(super) async fn lead<A, L, H, F>(
        &self,
        call: ArrivedCall,
        leader: Option<Leader>,
        handler: H,
    ) -> ResultAndLocal<A, L>
    where
        A: Answer,
        L: Send + 'static,
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = (Result<A, Failure<A>>, L)> + Send + 'static,
    {
        // Taken before the begin: a grant that waits for a permit would use up its lease.
        let Some(permit) = self.shared.permits.take(call.call.tenant(), call.call.permit_origin()) else {
            return (Err(Reason::Overloaded.into()), None);
        };
        let (sender, receiver) = oneshot::channel();
        let resources = AttemptResources { leader, _permit: permit };
        let gate = self.clone();
        #[cfg(feature = "chaos")]
        if Mutant::HandlerDiesWithCaller.is_on() {
            return Box::pin(gate.attempt(call, resources, handler)).await;
        }
        // Boxed before it is moved into the task: it is large, and every move would copy it.
        let attempt = Box::pin(gate.attempt(call, resources, handler));
        let task = async move {
            let result = attempt.await;
            // The caller may have gone away; the record has the answer.
            let _ = sender.send(result);
        };
        // What the handler logs belongs to the span of the caller, too.
        self.shared.leases.spawn_attempt(task.in_current_span());
        receiver.await.unwrap_or_else(|_| {
            let error = Error::new(ErrorKind::Unknown, "the task of the attempt ended without a result");
            (Err(Refused::with_detail(Reason::Unknown { unrecorded: false }, error.into())), None)
        })
    }

    /// Begins, runs the handler and settles the grant. Then the followers get the outcome.
    async fn attempt<A, L, H, F>(
        self,
        call: ArrivedCall,
        mut resources: AttemptResources,
        handler: H,
    ) -> ResultAndLocal<A, L>
    where
        A: Answer,
        L: Send + 'static,
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = (Result<A, Failure<A>>, L)> + Send + 'static,
    {
        let mut timer = PhaseTimer::start(&self.shared);
        let begun = self.begin(call).instrument(telemetry::begin_span()).await;
        timer.end_phase(Meters::begun);
        let (result, local) = match begun {
            Ok(BeginOutcome::Granted(granted)) => {
                telemetry::attempt_begins(&granted.grant);
                resources.set_granted();
                let span = telemetry::handler_span(granted.grant.token.0, granted.grant.attempt);
                let attempt = Attempt::granted(granted.grant);
                // Created before the handler runs: a handler that is aborted must abandon its grant.
                let guard = GrantGuard::new(self, granted, attempt.cancellation());
                let (returned, local) = catch_panic(attempt, handler).instrument(span).await;
                timer.end_phase(Meters::handled);
                if Mutant::TwinToldEarly.is_on() {
                    bugs::end_early(&mut resources.leader, &returned);
                }
                let result = guard.settle(returned).instrument(telemetry::complete_span()).await;
                timer.end_phase(Meters::completed);
                (result, local)
            }
            Ok(BeginOutcome::Unprotected) => {
                let (returned, local) = catch_panic(Attempt::unprotected(&call.call), handler).await;
                (unprotected_result(returned), local)
            }
            Ok(BeginOutcome::Replay(completion)) => (RunResult::from_record(completion, Provenance::Replayed), None),
            Ok(BeginOutcome::Refused(reason)) => (Err(reason.into()), None),
            Err(error) => (Err(Refused::store(error)), None),
        };
        // After the settlement, so that no follower gets an answer before it is recorded.
        resources.end(&result);
        (result, local)
    }
}

/// Runs the handler. A panic means that the outcome is unknown, and leaves no local value.
async fn catch_panic<A, L, H, F>(attempt: Attempt, handler: H) -> (Result<A, Failure<A>>, Option<L>)
where
    H: FnOnce(Attempt) -> F,
    F: Future<Output = (Result<A, Failure<A>>, L)>,
{
    // Unwind safe: a panic drops the handler with its state, so no code sees that state afterwards.
    match AssertUnwindSafe(async move { handler(attempt).await }).catch_unwind().await {
        Ok((returned, local)) => (returned, Some(local)),
        Err(_panic) => {
            let failure = if Mutant::PanicIsNotApplied.is_on() { Failure::not_applied } else { Failure::unknown };
            (Err(failure(Error::new(ErrorKind::Unknown, "the handler panicked"))), None)
        }
    }
}

/// Measures the phases of an attempt.
struct PhaseTimer {
    shared: Arc<GateCore>,
    phase_start: Duration,
}

impl PhaseTimer {
    fn start(shared: &Arc<GateCore>) -> Self {
        Self { shared: Arc::clone(shared), phase_start: shared.leases.runtime().boottime_now() }
    }

    /// Records the duration of the phase that ends now.
    fn end_phase(&mut self, record: fn(&Meters, Duration)) {
        let now = self.shared.leases.runtime().boottime_now();
        record(&self.shared.meters, now.saturating_sub(self.phase_start));
        self.phase_start = now;
    }
}

/// What an attempt occupies in this process until it ends: its place as leader, and its permit.
struct AttemptResources {
    leader: Option<Leader>,
    _permit: Permit,
}

impl AttemptResources {
    fn set_granted(&mut self) {
        if let Some(leader) = &mut self.leader {
            leader.set_granted();
        }
    }

    fn end<A: Answer>(self, result: &Result<RunResult<A>, Refused<A>>) {
        if let Some(leader) = self.leader {
            leader.end(|| LeaderOutcome::of(result));
        }
    }
}

/// The result of a handler that ran without a record.
fn unprotected_result<A>(returned: Result<A, Failure<A>>) -> Result<RunResult<A>, Refused<A>> {
    match returned {
        Ok(answer) | Err(Failure::Final(answer)) => {
            Ok(RunResult { answer, provenance: Provenance::Fresh, recorded: Recorded::No, expiry: None })
        }
        Err(Failure::NotApplied(detail) | Failure::Denied(detail) | Failure::GivenUp(detail)) => {
            Err(Refused::with_detail(Reason::NotApplied { unrecorded: true }, detail))
        }
        Err(Failure::Unknown(detail)) => Err(Refused::with_detail(Reason::Unknown { unrecorded: true }, detail)),
    }
}
