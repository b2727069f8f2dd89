//! The handlers of a sweep. Each reports its true outcome.

use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::gate::Attempt;
use hapax_core::runtime::Runtime;
use hapax_sim::outcome::{HandlerOutcome, HandlerResult};
use hapax_testkit::{Process, yield_now};

use crate::oracle::{KeyOracle, RunningHandler};

/// What one handler does: it waits, has its effect or not, waits again, and returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandlerScript {
    /// How long it waits before its effect, besides some turns of the executor.
    pub(crate) before: Duration,
    /// Whether it checks for cancellation just before its effect, and then does nothing.
    pub(crate) careful: bool,
    pub(crate) effect: bool,
    /// How long it waits after its effect.
    pub(crate) after: Duration,
    /// The outcome that it reports; none if it never returns.
    pub(crate) outcome: Option<HandlerOutcome>,
    /// The poll at which it panics.
    pub(crate) panics_at: Option<usize>,
}

impl HandlerScript {
    pub(crate) const APPLIES: Self = Self {
        before: Duration::ZERO,
        careful: true,
        effect: true,
        after: Duration::ZERO,
        outcome: Some(HandlerOutcome::Applied),
        panics_at: None,
    };

    /// It has its effect and never returns.
    pub(crate) const HANGS: Self = Self { outcome: None, ..Self::APPLIES };

    pub(crate) const fn returns(self, outcome: HandlerOutcome) -> Self {
        let effect = matches!(outcome, HandlerOutcome::Applied | HandlerOutcome::Unknown);
        Self { outcome: Some(outcome), effect, ..self }
    }

    pub(crate) const fn without_effect(self) -> Self {
        Self { effect: false, ..self }
    }

    pub(crate) const fn careless(self) -> Self {
        Self { careful: false, ..self }
    }

    pub(crate) const fn lasting(self, before: Duration, after: Duration) -> Self {
        Self { before, after, ..self }
    }

    /// Runs as the handler of a call.
    pub(crate) async fn run(
        self,
        call: usize,
        attempt: Attempt,
        oracle: Arc<KeyOracle>,
        process: Arc<Process>,
    ) -> HandlerResult {
        let running = oracle.start_handler(call, &attempt);
        let mut polls = 0;
        let mut handler = pin!(self.run_steps(running, attempt, process));
        poll_fn(|cx| {
            if self.panics_at == Some(polls) {
                // `resume_unwind` does not call the panic hook, which would print a message for each of thousands of
                // panics.
                resume_unwind(Box::new("a handler of the sweep panics"));
            }
            polls += 1;
            handler.as_mut().poll(cx)
        })
        .await
    }

    async fn run_steps(self, running: RunningHandler, attempt: Attempt, process: Arc<Process>) -> HandlerResult {
        self.wait(self.before, &process).await;
        if self.careful && attempt.cancelled().now_or_never().is_some() {
            return running.finish(HandlerOutcome::NotApplied);
        }
        if self.effect {
            running.apply_effect(self.careful);
        }
        self.wait(self.after, &process).await;
        match self.outcome {
            Some(outcome) => running.finish(outcome),
            None => std::future::pending().await,
        }
    }

    /// Each turn lets other tasks run, so that a sweep finds a step before and after the wait.
    async fn wait(self, time: Duration, process: &Process) {
        yield_now().await;
        if !time.is_zero() {
            process.sleep(time).await;
        }
        yield_now().await;
    }
}
