//! What the handlers of a sweep do, and always say truthfully.

use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::gate::{Attempt, Failure};
use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind};
use hapax_testkit::{Process, turn};

use crate::oracle::{Oracle, Running, Word};

pub(crate) type Handled = Result<String, Failure<String>>;

/// One handler: some awaits, perhaps an effect, some more awaits, and a word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Act {
    /// How long it takes until its effect, over and above some turns of the executor.
    pub(crate) before: Duration,
    /// Whether it looks at its cancellation in the moment of its effect, and does nothing then.
    pub(crate) careful: bool,
    pub(crate) effect: bool,
    /// How long it takes from there.
    pub(crate) after: Duration,
    pub(crate) says: Word,
    /// The poll at which it panics.
    pub(crate) panics_at: Option<usize>,
}

impl Act {
    pub(crate) const APPLIES: Self = Self {
        before: Duration::ZERO,
        careful: true,
        effect: true,
        after: Duration::ZERO,
        says: Word::Applied,
        panics_at: None,
    };

    pub(crate) const fn says(self, says: Word) -> Self {
        let effect = matches!(says, Word::Applied | Word::Unknown | Word::Nothing);
        Self { says, effect, ..self }
    }

    /// Without its effect.
    pub(crate) const fn in_vain(self) -> Self {
        Self { effect: false, ..self }
    }

    pub(crate) const fn careless(self) -> Self {
        Self { careful: false, ..self }
    }

    pub(crate) const fn lasting(self, before: Duration, after: Duration) -> Self {
        Self { before, after, ..self }
    }

    /// The handler of a call.
    pub(crate) async fn run(
        self,
        call: usize,
        attempt: Attempt,
        oracle: Arc<Oracle>,
        process: Arc<Process>,
    ) -> Handled {
        let running = oracle.starts(call, &attempt);
        let mut polls = 0;
        let mut handler = pin!(self.run_through(running, attempt, process));
        poll_fn(|cx| {
            if self.panics_at == Some(polls) {
                // Without a word from the panic hook.
                resume_unwind(Box::new("a handler of the sweep panics"));
            }
            polls += 1;
            handler.as_mut().poll(cx)
        })
        .await
    }

    async fn run_through(self, running: Running, attempt: Attempt, process: Arc<Process>) -> Handled {
        self.passes(self.before, &process).await;
        if self.careful && attempt.cancelled().now_or_never().is_some() {
            return running.ends(Word::NotApplied);
        }
        if self.effect {
            running.has_its_effect(self.careful);
        }
        self.passes(self.after, &process).await;
        if self.says == Word::Nothing {
            std::future::pending::<()>().await;
        }
        running.ends(self.says)
    }

    async fn passes(self, time: Duration, process: &Process) {
        turn().await;
        if !time.is_zero() {
            process.sleep(time).await;
        }
        turn().await;
    }
}

/// What a word is to the gate.
pub(crate) fn handled(word: Word, answer: String) -> Handled {
    let told = || Error::new(ErrorKind::Invalid, "the handler says so");
    match word {
        Word::Applied => Ok(answer),
        Word::Final => Err(Failure::finally(answer)),
        Word::NotApplied => Err(Failure::not_applied(told())),
        Word::Unknown | Word::Nothing => Err(Failure::unknown(told())),
    }
}
