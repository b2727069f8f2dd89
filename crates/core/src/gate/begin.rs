//! The gate's policy for a begin: wait for another process, ask a probe, or run without a record while the store is
//! down.

use std::time::Duration;

use crate::chaos::Mutant;
use crate::error::{ErrorKind, Result};
use crate::gate::reason::Reason;
use crate::gate::{ArrivedCall, Gate};
use crate::key::Call;
use crate::lease::{Granted, LeaseTerms, PendingClaim, is_unavailable};
use crate::machine::{Begin, Begun, Verdict};
use crate::record::Completion;
use crate::runtime::timeout;
use crate::settings::{Found, Probe};
use crate::telemetry;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Whether the handler may run.
pub(super) enum BeginOutcome {
    /// It may, under this grant.
    Granted(Granted),
    /// It may, without a record: the store is down and the policy allows it.
    Unprotected,
    /// It may not: the answer is recorded.
    Replay(Completion),
    /// It may not, for this reason.
    Refused(Reason),
}

impl Gate {
    /// Begins, and waits for another process if the policy says so.
    pub(super) async fn begin(&self, ArrivedCall { call, wait_until }: ArrivedCall) -> Result<BeginOutcome> {
        // One owner for all begins of this attempt, so that a repeated one finds its own grant (row B4).
        let request = Begin {
            call,
            owner: self.shared.leases.mint_owner(),
            lease: self.terms.lease,
            unknown_retention: self.terms.unknown_retention,
            on_lapse: self.terms.on_lapse,
        };
        let mut claim = PendingClaim::new(&self.shared.leases, request);
        let mut begun = claim.begin().await;
        // The rare paths are boxed, so that the future of a begin that is granted at once stays small.
        if let (Ok(Begun::Busy(retry_after)), Some(deadline)) = (&begun, wait_until) {
            let busy = Begun::Busy(*retry_after);
            begun = Box::pin(self.wait_and_begin(&mut claim, call, deadline)).await.unwrap_or(Ok(busy));
        }
        if let (Ok(Begun::Indeterminate(_)), Some(probe)) = (&begun, &self.terms.probe)
            && Box::pin(self.ask_probe(call, &**probe)).await
        {
            begun = claim.begin().await;
        }
        match claim.check_reply(begun, &LeaseTerms::from(&*self.terms)) {
            Ok(Begun::Granted(grant) | Begun::Mine(grant)) => {
                if grant.takeover {
                    telemetry::taken_over(&grant);
                }
                Ok(BeginOutcome::Granted(claim.to_granted(grant)))
            }
            // A failed fetch says nothing about the store. The handler must not run: the effect has happened.
            Ok(Begun::Replay(completion)) => {
                Ok(BeginOutcome::Replay(Box::pin(self.shared.leases.fetch(completion)).await?))
            }
            Ok(Begun::Busy(retry_after)) => Ok(BeginOutcome::Refused(Reason::Busy { retry_after })),
            Ok(Begun::Mismatch) => Ok(BeginOutcome::Refused(Reason::Mismatch)),
            Ok(Begun::Indeterminate(since)) => Ok(BeginOutcome::Refused(Reason::Indeterminate { since })),
            Ok(Begun::Dead) => Ok(BeginOutcome::Refused(Reason::Dead)),
            Err(error) if Mutant::PassIgnoresFull.is_on() && error.kind() == ErrorKind::Full => Err(error),
            Err(error) if (self.terms.pass || Mutant::ErrorIsAbsent.is_on()) && is_unavailable(&error) => {
                telemetry::unprotected(call.record_key(), &error);
                Ok(BeginOutcome::Unprotected)
            }
            Err(error) => Err(error),
        }
    }

    /// Asks the probe whether the effect happened, and records what it found. Returns whether a new begin may succeed.
    async fn ask_probe(&self, call: Call, probe: &dyn Probe) -> bool {
        let (rk, terms, leases) = (call.record_key(), &*self.terms, &self.shared.leases);
        let asked_early = if Mutant::ProbeBeforeToken.is_on() { Some(probe.probe(rk.operation()).await) } else { None };
        let Ok(seen) = leases.call_store(|protocol| protocol.read(rk)).await else {
            return false;
        };
        let Some(expected) = seen.live().map(|record| record.token) else {
            // The record expired after the begin.
            return true;
        };
        let found = async {
            match asked_early {
                Some(found) => found,
                None => probe.probe(rk.operation()).await,
            }
        };
        // Bounded, because the attempt keeps its permit while the probe runs.
        let verdict = match timeout(&**leases.runtime(), terms.lease.into(), found).await {
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
        // `Stale` counts as success: another process or an operator resolved the record, and the next begin returns the
        // result.
        leases.call_store(|protocol| protocol.resolve(&rk, expected, &verdict)).await.is_ok()
    }

    /// Reads the record until the attempt of the other process has ended or the time is up, then begins again. None if
    /// waits end before: nothing new should begin then.
    async fn wait_and_begin(
        &self,
        claim: &mut PendingClaim<'_>,
        call: Call,
        deadline: Duration,
    ) -> Option<Result<Begun>> {
        let leases = &self.shared.leases;
        let mut pause = FIRST_PAUSE;
        loop {
            let left = deadline.saturating_sub(leases.runtime().boottime_now());
            if left.is_zero() {
                // The time is up. The reply to this last begin, most often `Busy`, is the result.
                return Some(claim.begin().await);
            }
            let waits_end = self.shared.end_of_waits.wait();
            if timeout(&**leases.runtime(), pause.min(left), waits_end).await.is_some() {
                return None;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
            let seen = leases.call_store(|protocol| protocol.read(call.record_key())).await;
            // Polls with reads: a begin may write. A failed read is ignored, because the next one may succeed in time.
            if seen.is_ok_and(|seen| !seen.is_running()) {
                let begun = claim.begin().await;
                if !matches!(begun, Ok(Begun::Busy(_))) {
                    return Some(begun);
                }
            }
        }
    }
}
