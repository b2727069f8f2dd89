//! From a call to a grant, or to the reason why not.

use std::time::Duration;

use crate::chaos;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::coalesce::LeaderOutcome;
use crate::gate::{Gate, heartbeat, settle};
use crate::key::Call;
use crate::machine::{Begin, Begun, Grant, Verdict};
use crate::runtime::timeout;
use crate::settings::{Found, OnBusy, Probe};
use crate::telemetry;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Whether the handler may run.
pub(super) enum BeginOutcome {
    /// It may, under this grant.
    Granted(Granted),
    /// It may, without a record: the store is down and the policy says so.
    Unprotected,
    /// It may not; this is the end of the call.
    Ended(LeaderOutcome),
}

/// A grant, and how it was got.
#[derive(Clone, Copy)]
pub(super) struct Granted {
    pub(super) grant: Grant,
    /// When the begin was sent that got it, on the boot clock.
    pub(super) sent: Duration,
    /// Whether an earlier begin of the same attempt may still be under way.
    pub(super) ambiguous: bool,
}

impl Gate {
    /// Begins, and waits for another process if the policy says so.
    pub(super) async fn begin(&self, call: Call) -> Result<BeginOutcome> {
        let ask = Begin {
            call,
            owner: self.shared.owner(),
            lease: self.terms.lease,
            unknown_retention: self.terms.unknown_retention,
            on_lapse: self.terms.on_lapse,
        };
        let mut begins = SentBegins::default();
        let mut begun = self.ask_to_begin(&ask, &mut begins).await;
        if let (Ok(Begun::Busy(_)), OnBusy::Wait(budget)) = (&begun, self.terms.on_busy) {
            begun = Box::pin(self.wait_and_begin(&ask, &mut begins, budget)).await;
        }
        if let (Ok(Begun::Indeterminate(_)), Some(probe)) = (&begun, &self.terms.probe)
            && Box::pin(self.find_out(call, &**probe)).await
        {
            begun = self.ask_to_begin(&ask, &mut begins).await;
        }
        let granted = matches!(begun, Ok(Begun::Granted(_) | Begun::Mine(_)));
        let in_time = self.shared.runtime.boottime_now() < heartbeat::deadline(begins.sent, ask.lease.into());
        if granted && !in_time || !granted && begins.ambiguous {
            settle::cancel(self.clone(), call.record_key(), ask.owner, begins.sent);
        }
        match begun {
            Ok(Begun::Granted(_) | Begun::Mine(_)) if !in_time => {
                Err(Error::new(ErrorKind::NotApplied, "the store took so long to grant that the grant was over"))
            }
            Ok(Begun::Granted(grant) | Begun::Mine(grant)) => {
                if grant.takeover {
                    telemetry::taken_over(&grant);
                }
                Ok(BeginOutcome::Granted(Granted { grant, sent: begins.sent, ambiguous: begins.ambiguous }))
            }
            Ok(Begun::Replay(completion)) => Ok(BeginOutcome::Ended(LeaderOutcome::Recorded(completion))),
            Ok(Begun::Busy(retry_after)) => Ok(BeginOutcome::Ended(LeaderOutcome::Busy(retry_after))),
            Ok(Begun::Mismatch) => Ok(BeginOutcome::Ended(LeaderOutcome::Mismatch)),
            Ok(Begun::Indeterminate(since)) => Ok(BeginOutcome::Ended(LeaderOutcome::Indeterminate(since))),
            Ok(Begun::Dead) => Ok(BeginOutcome::Ended(LeaderOutcome::Dead)),
            Err(error) if (self.terms.pass || chaos::on("error_is_absent")) && is_store_unavailable(&error) => {
                telemetry::unprotected(call.record_key(), &error);
                Ok(BeginOutcome::Unprotected)
            }
            Err(error) => Err(error),
        }
    }

    /// One begin, and one more with the same owner if the first one's outcome is unknown.
    async fn ask_to_begin(&self, ask: &Begin, begins: &mut SentBegins) -> Result<Begun> {
        let first = self.ask_once(ask, begins).await;
        if !matches!(&first, Err(error) if error.kind() == ErrorKind::Unknown) {
            return first;
        }
        begins.ambiguous = true;
        if chaos::on("retry_with_new_owner") {
            return self.ask_once(&Begin { owner: self.shared.owner(), ..*ask }, begins).await;
        }
        self.ask_once(ask, begins).await
    }

    async fn ask_once(&self, ask: &Begin, begins: &mut SentBegins) -> Result<Begun> {
        let shared = &*self.shared;
        begins.sent = shared.runtime.boottime_now();
        if !shared.breaker.admits(begins.sent) {
            return Err(Error::new(
                ErrorKind::NotApplied,
                "the store has not answered for a while; it is asked again every second",
            ));
        }
        let begun = shared.ask(|protocol| protocol.begin(ask)).await;
        match &begun {
            // A store without room answers: it still knows what happened.
            Err(error) if is_store_unavailable(error) && error.kind() != ErrorKind::Full => {
                shared.breaker.failed(shared.runtime.boottime_now());
            }
            Ok(_) | Err(_) => shared.breaker.succeeded(),
        }
        begun
    }

    /// Asks the probe, and writes what it found; says whether it is worth beginning again.
    async fn find_out(&self, call: Call, probe: &dyn Probe) -> bool {
        let (rk, terms) = (call.record_key(), &*self.terms);
        let Ok(seen) = self.shared.ask(|protocol| protocol.read(rk)).await else {
            return false;
        };
        let Some(expected) = seen.live().map(|record| record.token) else {
            return true;
        };
        let asked = probe.probe(rk.operation());
        let verdict = match timeout(&*self.shared.runtime, terms.lease.into(), asked).await {
            Some(Ok(Found::Done(answer))) => Verdict::Done { answer, retention: terms.retention },
            Some(Ok(Found::NotDone)) => Verdict::NotDone { lifetime: terms.released_retention },
            Some(Ok(Found::Unknown)) => return false,
            Some(Err(error)) => {
                telemetry::probe_failed(rk, Some(error));
                return false;
            }
            None => {
                telemetry::probe_failed(rk, None);
                return false;
            }
        };
        // Stale means that somebody else knew: the next begin shows what.
        self.shared.ask(|protocol| protocol.resolve(&rk, expected, &verdict)).await.is_ok()
    }

    /// Looks at the record until the other process's attempt is over, or the budget is; then begins again.
    async fn wait_and_begin(&self, ask: &Begin, begins: &mut SentBegins, budget: Duration) -> Result<Begun> {
        let shared = &*self.shared;
        let ends = shared.runtime.boottime_now() + budget;
        let mut pause = FIRST_PAUSE;
        loop {
            let left = ends.saturating_sub(shared.runtime.boottime_now());
            if left.is_zero() {
                return self.ask_to_begin(ask, begins).await;
            }
            shared.runtime.sleep(pause.min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let seen = shared.ask(|protocol| protocol.read(ask.call.record_key())).await;
            // A look that failed is no reason to turn the caller away: the next one may show more.
            if seen.is_ok_and(|seen| !seen.runs()) {
                let begun = self.ask_to_begin(ask, begins).await?;
                if !matches!(begun, Begun::Busy(_)) {
                    return Ok(begun);
                }
            }
        }
    }
}

/// What was sent on the way to a grant.
#[derive(Default)]
struct SentBegins {
    /// When the last begin was sent, on the boot clock.
    sent: Duration,
    /// Whether the outcome of one of them is unknown.
    ambiguous: bool,
}

/// Whether an error means that the store cannot be asked, rather than that it answered.
fn is_store_unavailable(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::NotApplied | ErrorKind::Full | ErrorKind::Unknown | ErrorKind::Unusable => true,
        ErrorKind::Invalid | ErrorKind::Damaged => false,
    }
}
