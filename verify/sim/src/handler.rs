//! The handlers of a simulation. Each reports its true outcome.

use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select;
use hapax_core::gate::Attempt;
use hapax_core::runtime::Runtime;
use hapax_testkit::{Process, yield_now};

use crate::dice::Dice;
use crate::oracle::{Oracle, RunningHandler};
use crate::outcome::{HandlerOutcome, HandlerResult};
use crate::plan::{FaultClass, Plan, RoutePlan};

/// What one handler does: it waits, has its effect or not, waits again, and returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandlerPlan {
    before: Duration,
    after: Duration,
    /// Whether it checks for cancellation just before its effect, and then does nothing.
    careful: bool,
    /// Whether it stops waiting when it is cancelled.
    attentive: bool,
    ending: HandlerEnding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandlerEnding {
    Applied,
    Final,
    NotApplied,
    UnknownBefore,
    UnknownAfter,
    PanicBefore,
    PanicAfter,
}

impl HandlerPlan {
    pub(crate) const APPLIES: Self = Self {
        before: Duration::ZERO,
        after: Duration::ZERO,
        careful: true,
        attentive: false,
        ending: HandlerEnding::Applied,
    };

    pub(crate) fn draw(dice: &Dice, plan: &Plan, route: RoutePlan) -> Self {
        let long = plan.allows(FaultClass::LongHandler);
        let takes = || match dice.below(10) {
            0..4 => Duration::ZERO,
            4..6 => dice.up_to(route.lease / 10),
            6..8 => dice.up_to(route.lease),
            _ if long => dice.up_to(4 * route.lease),
            _ => dice.up_to(route.lease / 2),
        };
        let unsure = dice.percent(plan.unsure_percent);
        let ending = match dice.below(100) {
            0..40 if unsure => HandlerEnding::UnknownBefore,
            40..80 if unsure => HandlerEnding::UnknownAfter,
            80..90 if unsure && plan.allows(FaultClass::Panic) => HandlerEnding::PanicBefore,
            90..100 if unsure && plan.allows(FaultClass::Panic) => HandlerEnding::PanicAfter,
            number if number < plan.vain_percent => HandlerEnding::NotApplied,
            90..100 => HandlerEnding::Final,
            _ => HandlerEnding::Applied,
        };
        Self { before: takes(), after: takes(), careful: dice.percent(70), attentive: dice.percent(30), ending }
    }

    /// How long it takes if it is not cancelled.
    pub(crate) fn duration(&self) -> Duration {
        self.before + self.after
    }

    /// Runs as the handler of a call.
    pub(crate) async fn run(
        self,
        call: usize,
        attempt: Attempt,
        oracle: Arc<Oracle>,
        process: Arc<Process>,
    ) -> HandlerResult {
        let running = oracle.start_handler(call, &attempt);
        self.wait(self.before, &attempt, &process).await;
        if self.careful && attempt.cancelled().now_or_never().is_some() || self.ending == HandlerEnding::NotApplied {
            return report(running, HandlerOutcome::NotApplied, String::new());
        }
        if self.ending == HandlerEnding::UnknownBefore {
            return report(running, HandlerOutcome::Unknown, String::new());
        }
        panic_if(self.ending == HandlerEnding::PanicBefore, &running);
        let answer = running.decide(self.ending != HandlerEnding::Final, self.careful);
        self.wait(self.after, &attempt, &process).await;
        panic_if(self.ending == HandlerEnding::PanicAfter, &running);
        let word = match self.ending {
            HandlerEnding::Final => HandlerOutcome::Final,
            HandlerEnding::UnknownAfter => HandlerOutcome::Unknown,
            HandlerEnding::Applied
            | HandlerEnding::NotApplied
            | HandlerEnding::UnknownBefore
            | HandlerEnding::PanicBefore
            | HandlerEnding::PanicAfter => HandlerOutcome::Applied,
        };
        report(running, word, answer)
    }

    async fn wait(self, time: Duration, attempt: &Attempt, process: &Process) {
        yield_now().await;
        if !time.is_zero() {
            let sleep = process.sleep(time);
            if self.attentive {
                select(sleep, pin!(attempt.cancelled())).await;
            } else {
                sleep.await;
            }
        }
        yield_now().await;
    }
}

fn panic_if(panics: bool, running: &RunningHandler) {
    if panics {
        running.announce_panic();
        // `resume_unwind` does not call the panic hook, which would print a message for each panic.
        resume_unwind(Box::new("a handler of the simulation panics"));
    }
}

fn report(running: RunningHandler, word: HandlerOutcome, answer: String) -> HandlerResult {
    running.report(word, &answer);
    word.into_result(answer)
}
