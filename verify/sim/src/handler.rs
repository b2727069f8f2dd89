//! What handlers do, and always say truthfully.

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
use crate::oracle::{Oracle, Running};
use crate::outcome::{HandlerOutcome, HandlerResult};
use crate::plan::{Class, Plan, Route};

/// One handler: some time, perhaps an effect, some more time, and a word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Act {
    before: Duration,
    after: Duration,
    /// Whether it looks whether it is to stop, in the moment of its effect, and does nothing then.
    careful: bool,
    /// Whether it stops waiting when it is told to stop.
    attentive: bool,
    ending: Ending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Applied,
    Final,
    NotApplied,
    UnknownBefore,
    UnknownAfter,
    PanicBefore,
    PanicAfter,
}

impl Act {
    pub(crate) const APPLIES: Self = Self {
        before: Duration::ZERO,
        after: Duration::ZERO,
        careful: true,
        attentive: false,
        ending: Ending::Applied,
    };

    pub(crate) fn draw(dice: &Dice, plan: &Plan, route: Route) -> Self {
        let long = plan.may(Class::LongHandler);
        let takes = || match dice.below(10) {
            0..4 => Duration::ZERO,
            4..6 => dice.up_to(route.lease / 10),
            6..8 => dice.up_to(route.lease),
            _ if long => dice.up_to(4 * route.lease),
            _ => dice.up_to(route.lease / 2),
        };
        let unsure = dice.percent(plan.unsure_percent);
        let ending = match dice.below(100) {
            0..40 if unsure => Ending::UnknownBefore,
            40..80 if unsure => Ending::UnknownAfter,
            80..90 if unsure && plan.may(Class::Panic) => Ending::PanicBefore,
            90..100 if unsure && plan.may(Class::Panic) => Ending::PanicAfter,
            number if number < plan.vain_percent => Ending::NotApplied,
            90..100 => Ending::Final,
            _ => Ending::Applied,
        };
        Self { before: takes(), after: takes(), careful: dice.percent(70), attentive: dice.percent(30), ending }
    }

    /// How long it takes when nothing stops it.
    pub(crate) fn lasts(&self) -> Duration {
        self.before + self.after
    }

    /// The handler of a call.
    pub(crate) async fn run(
        self,
        call: usize,
        attempt: Attempt,
        oracle: Arc<Oracle>,
        process: Arc<Process>,
    ) -> HandlerResult {
        let running = oracle.starts(call, &attempt);
        self.passes(self.before, &attempt, &process).await;
        if self.careful && attempt.cancelled().now_or_never().is_some() || self.ending == Ending::NotApplied {
            return says(running, HandlerOutcome::NotApplied, String::new());
        }
        if self.ending == Ending::UnknownBefore {
            return says(running, HandlerOutcome::Unknown, String::new());
        }
        panics_if(self.ending == Ending::PanicBefore, &running);
        let answer = running.decides(self.ending != Ending::Final, self.careful);
        self.passes(self.after, &attempt, &process).await;
        panics_if(self.ending == Ending::PanicAfter, &running);
        let word = match self.ending {
            Ending::Final => HandlerOutcome::Final,
            Ending::UnknownAfter => HandlerOutcome::Unknown,
            Ending::Applied | Ending::NotApplied | Ending::UnknownBefore | Ending::PanicBefore | Ending::PanicAfter => {
                HandlerOutcome::Applied
            }
        };
        says(running, word, answer)
    }

    async fn passes(self, time: Duration, attempt: &Attempt, process: &Process) {
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

fn panics_if(panics: bool, running: &Running) {
    if panics {
        running.is_about_to_panic();
        // Without a word from the panic hook.
        resume_unwind(Box::new("a handler of the simulation panics"));
    }
}

fn says(running: Running, word: HandlerOutcome, answer: String) -> HandlerResult {
    running.says(word, &answer);
    word.into_result(answer)
}
