//! Gives a grant back without an answer: release, bury, abandon or cancel, repeated until the store replies, its error
//! is permanent, or the record has expired.

use std::sync::Arc;
use std::time::Duration;

use crate::chaos::Mutant;
use crate::error::{ErrorKind, Result};
use crate::key::RecordKey;
use crate::lease::claim::StrayBegin;
use crate::lease::heartbeat::Heartbeat;
use crate::lease::{LeaseEngine, LeaseTerms};
use crate::machine::{Claim, Grant};
use crate::record::{Owner, Seconds};
use crate::store::Protocol;
use crate::telemetry;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A grant to give back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GiveBack {
    rk: RecordKey,
    action: GiveBackAction,
    /// The lifetime of the record. After that the record has expired, and there is no grant to give back.
    give_up_after: Duration,
}

/// The operation that gives the grant back. The seconds are the lifetime of the released or dead record.
#[derive(Clone, Copy, Debug)]
enum GiveBackAction {
    Release(Claim, Seconds),
    Bury(Claim, Seconds),
    Abandon(Claim),
    Cancel(Owner, Seconds),
}

impl LeaseEngine {
    /// Gives the grant back after the renewal in progress has ended. Awaits the first try; a background task repeats it
    /// if the store does not confirm it.
    pub(crate) async fn give_back(self: &Arc<Self>, give_back: GiveBack, heartbeat: Option<Heartbeat>) {
        if let Some(heartbeat) = heartbeat {
            heartbeat.stop().await;
        }
        if give_back.send(self).await.is_err() {
            let engine = Arc::clone(self);
            self.spawn_give_back(async move { give_back.repeat(&engine).await });
        }
    }

    /// As [`give_back`](Self::give_back), for a caller that cannot wait.
    pub(crate) fn give_back_in_background(self: &Arc<Self>, give_back: GiveBack, heartbeat: Option<Heartbeat>) {
        let engine = Arc::clone(self);
        self.spawn_give_back(async move {
            if let Some(heartbeat) = heartbeat {
                heartbeat.stop().await;
            }
            give_back.repeat(&engine).await;
        });
    }

    /// Cancels a begin that got, or may still get, a grant that no handler uses.
    pub(crate) fn cancel(self: &Arc<Self>, begin: StrayBegin, terms: &LeaseTerms) {
        if !Mutant::NoCancel.is_on() {
            let (engine, terms) = (Arc::clone(self), *terms);
            self.spawn_give_back(async move { engine.cancel_twice(begin, terms).await });
        }
    }

    /// The store may carry the begin out after the first cancellation, so a second one follows when the begin can no
    /// longer arrive. A request is assumed to die in the network within one lease. The last request of a begin is a
    /// swap, which is sent within the store timeout.
    async fn cancel_twice(&self, begin: StrayBegin, terms: LeaseTerms) {
        let cancel = GiveBack {
            rk: begin.rk,
            action: GiveBackAction::Cancel(begin.owner, terms.released_retention),
            give_up_after: terms.unknown_retention.into(),
        };
        // The first one frees the key at once if the begin has arrived already.
        cancel.repeat(self).await;
        if Mutant::CancelOnce.is_on() {
            return;
        }
        let elapsed = self.runtime.boottime_now().saturating_sub(begin.sent_at);
        let arrives_within = Duration::from(terms.lease) + self.store_timeout;
        self.runtime.sleep(arrives_within.saturating_sub(elapsed)).await;
        cancel.repeat(self).await;
    }
}

impl GiveBack {
    /// The effect is known not applied; `lifetime` is that of the released record.
    pub(crate) fn release(grant: &Grant, lifetime: Seconds, terms: &LeaseTerms) -> Self {
        let action = GiveBackAction::Release(Claim::from(grant), lifetime);
        Self { rk: grant.rk, action, give_up_after: terms.unknown_retention.into() }
    }

    /// The effect is known not applied, and nobody may try again. The record is kept as long as one of an unknown
    /// outcome.
    pub(crate) fn bury(grant: &Grant, terms: &LeaseTerms) -> Self {
        let action = GiveBackAction::Bury(Claim::from(grant), terms.unknown_retention);
        Self { rk: grant.rk, action, give_up_after: terms.unknown_retention.into() }
    }

    /// The outcome is unknown.
    pub(crate) fn abandon(grant: &Grant, terms: &LeaseTerms) -> Self {
        let action = GiveBackAction::Abandon(Claim::from(grant));
        Self { rk: grant.rk, action, give_up_after: terms.unknown_retention.into() }
    }

    async fn send(&self, engine: &LeaseEngine) -> Result<()> {
        let rk = &self.rk;
        match &self.action {
            GiveBackAction::Release(claim, lifetime) => {
                engine.call_store(|protocol: Protocol<'_>| protocol.release(rk, claim, *lifetime)).await.map(drop)
            }
            GiveBackAction::Bury(claim, lifetime) => {
                engine.call_store(|protocol: Protocol<'_>| protocol.bury(rk, claim, *lifetime)).await.map(drop)
            }
            GiveBackAction::Abandon(claim) => {
                engine.call_store(|protocol: Protocol<'_>| protocol.abandon(rk, claim)).await.map(drop)
            }
            GiveBackAction::Cancel(owner, lifetime) => {
                engine.call_store(|protocol: Protocol<'_>| protocol.cancel(rk, *owner, *lifetime)).await.map(drop)
            }
        }
    }

    /// Repeats until the store replies, its error is permanent, or the record has expired.
    async fn repeat(&self, engine: &LeaseEngine) {
        let give_up_at = engine.runtime.boottime_now() + self.give_up_after;
        let mut pause = FIRST_PAUSE;
        while let Err(error) = self.send(engine).await {
            // `Unusable` is repeated too: the store may accept us again, for example after a password change.
            let is_permanent = matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Invalid)
                || Mutant::GiveBackGivesUp.is_on() && matches!(error.kind(), ErrorKind::Unusable | ErrorKind::Full);
            let has_expired = engine.runtime.boottime_now() >= give_up_at && !Mutant::GiveBackNeverEnds.is_on();
            if is_permanent || has_expired {
                if error.kind() == ErrorKind::Damaged {
                    telemetry::damaged();
                }
                telemetry::not_given_back(self.rk, &error);
                return;
            }
            engine.runtime.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
