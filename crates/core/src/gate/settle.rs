use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::gate::heartbeat::Heartbeat;
use crate::gate::outcome::{Answer, How, Ran, Refused, Told};
use crate::gate::{Gate, Shared};
use crate::key::RecordKey;
use crate::machine::{Begin, Claim, Complete, Completed, Grant};
use crate::record::{Owner, Record, Seconds, State};
use crate::store::Protocol;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A grant that this process holds. Dropped before it was settled, it is abandoned: a dropped handler means *unknown*.
pub(super) struct Held {
    gate: Gate,
    grant: Grant,
    begun: Duration,
    settled: bool,
}

impl Held {
    /// `begun` is when the begin was sent that got the grant, on the boot clock.
    pub(super) fn new(gate: Gate, grant: Grant, begun: Duration) -> Self {
        Self { gate, grant, begun, settled: false }
    }

    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(super) fn grant(&self) -> Grant {
        self.grant
    }

    pub(super) fn begun(&self) -> Duration {
        self.begun
    }

    /// Records the answer, and only then gives it out. Tries until the store was last known to believe the grant.
    pub(super) async fn complete<A: Answer>(mut self, answer: A, heartbeat: Heartbeat) -> Result<Ran<A>, Refused<A>> {
        let shared = Arc::clone(&self.gate.shared);
        let ended = shared.runtime.boot();
        let mut ask = Complete {
            claim: Claim::from(&self.grant),
            fingerprint: self.grant.fingerprint,
            answer: answer.encode(),
            retention: self.gate.terms.retention,
            age: Duration::ZERO,
        };
        let mut pause = FIRST_PAUSE;
        let completed = loop {
            match shared.ask(|protocol| protocol.complete(&self.grant.rk, &ask)).await {
                Ok(completed) => break completed,
                Err(error) if hopeless(&error) || shared.runtime.boot() >= heartbeat.believed_until() => {
                    self.settled = true;
                    tracing::error!(rk = ?self.grant.rk, ?error, "an answer could not be recorded");
                    return Err(Refused::Unrecorded(error));
                }
                Err(error) => {
                    tracing::warn!(rk = ?self.grant.rk, ?error, "an answer is not recorded yet; trying again");
                }
            }
            shared.runtime.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            ask.age = shared.runtime.boot().saturating_sub(ended);
        };
        self.settled = true;
        match completed {
            Completed::Done | Completed::Already => Ok(Ran { answer, how: How::Fresh }),
            Completed::Recreated => {
                tracing::warn!(rk = ?self.grant.rk, "the store had forgotten a record; its answer is recorded anew");
                Ok(Ran { answer, how: How::Fresh })
            }
            Completed::Lost(record) => self.lost(record),
            Completed::Gone => Err(unknown("the store forgot the record, and the answer is past its retention")),
        }
    }

    fn lost<A: Answer>(&self, record: Record) -> Result<Ran<A>, Refused<A>> {
        tracing::error!(rk = ?self.grant.rk, token = self.grant.token.0, other = record.token.0, "two attempts had an effect");
        match record.state {
            State::Completed(completion) => Ran::recorded(completion, How::Canonical),
            State::InProgress(_) | State::Released(_) | State::Indeterminate(_) | State::Dead(_) => {
                Err(unknown("the grant was lost before the answer could be recorded"))
            }
        }
    }

    /// Known not applied: gives the key back.
    pub(super) async fn release(mut self, heartbeat: Heartbeat) {
        self.settled = true;
        heartbeat.stop().await;
        let how = GiveBack::Release(Claim::from(&self.grant), self.gate.terms.released_retention);
        give_back(&self.gate, self.grant.rk, how).await;
    }

    /// Unknown: ends the lease for good. The renewal under way is awaited first.
    pub(super) async fn abandon(mut self, heartbeat: Heartbeat) {
        self.settled = true;
        heartbeat.stop().await;
        give_back(&self.gate, self.grant.rk, GiveBack::Abandon(Claim::from(&self.grant))).await;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let (gate, rk, how) = (self.gate.clone(), self.grant.rk, GiveBack::Abandon(Claim::from(&self.grant)));
        self.gate.shared.spawn(async move { how.until_definite(&gate, rk).await });
    }
}

/// Cancels an attempt whose begin was ambiguous and whose handler was not started: now, and once more one lease after the
/// begin was sent, because a begin can be carried out after its cancellation, and is taken to die in the network within a lease.
pub(super) fn cancel(gate: Gate, ask: &Begin) {
    let (rk, lease) = (ask.call.record_key(), Duration::from(ask.lease));
    let how = GiveBack::Cancel(ask.owner, gate.terms.released_retention);
    let shared = Arc::clone(&gate.shared);
    shared.spawn(async move {
        let sent = gate.shared.runtime.boot();
        how.until_definite(&gate, rk).await;
        let waited = gate.shared.runtime.boot().saturating_sub(sent);
        gate.shared.runtime.sleep(lease.saturating_sub(waited)).await;
        how.until_definite(&gate, rk).await;
    });
}

/// Awaits the first try; what is not confirmed by then goes on in the background.
async fn give_back(gate: &Gate, rk: RecordKey, how: GiveBack) {
    if how.once(&gate.shared, &rk).await.is_err() {
        let gate_too = gate.clone();
        gate.shared.spawn(async move { how.until_definite(&gate_too, rk).await });
    }
}

/// How a grant is given back without an answer.
#[derive(Clone, Copy, Debug)]
enum GiveBack {
    Release(Claim, Seconds),
    Abandon(Claim),
    Cancel(Owner, Seconds),
}

impl GiveBack {
    async fn once(self, shared: &Shared, rk: &RecordKey) -> Result<()> {
        match self {
            Self::Release(claim, lifetime) => {
                shared.ask(|protocol: Protocol<'_>| protocol.release(rk, &claim, lifetime)).await.map(drop)
            }
            Self::Abandon(claim) => shared.ask(|protocol: Protocol<'_>| protocol.abandon(rk, &claim)).await.map(drop),
            Self::Cancel(owner, lifetime) => {
                shared.ask(|protocol: Protocol<'_>| protocol.cancel(rk, owner, lifetime)).await.map(drop)
            }
        }
    }

    /// Repeats until the store gives a definite answer; after the record's life there is nothing left to give back.
    async fn until_definite(self, gate: &Gate, rk: RecordKey) {
        let shared = &*gate.shared;
        let ends = shared.runtime.boot() + Duration::from(gate.terms.unknown_retention);
        let mut pause = FIRST_PAUSE;
        while let Err(error) = self.once(shared, &rk).await {
            if hopeless(&error) || shared.runtime.boot() >= ends {
                tracing::error!(?rk, ?error, how = ?self, "a grant could not be given back");
                return;
            }
            shared.runtime.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Whether trying again cannot help.
fn hopeless(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Unusable | ErrorKind::Invalid)
}

fn unknown<A>(message: &'static str) -> Refused<A> {
    Refused::Unknown(Told::Error(Error::new(ErrorKind::Unknown, message).into()))
}
