//! From what a handler said to what the store is told: complete, release or abandon.

use std::sync::Arc;
use std::time::Duration;

use crate::chaos;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::attempt::Cancellation;
use crate::gate::begin::Granted;
use crate::gate::heartbeat::Heartbeat;
use crate::gate::outcome::{Answer, Failure, Provenance, Recorded, Refused, RunResult};
use crate::gate::{Gate, Shared};
use crate::journal::Spilled;
use crate::key::RecordKey;
use crate::machine::{Claim, Complete, Completed};
use crate::record::{Owner, Record, Seconds, State};
use crate::store::Protocol;
use crate::telemetry;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The least that a record lives whose caller was denied.
const DENIED_LIVES: Seconds = Seconds(10);

/// A grant that this process holds. Dropped before it was settled, it is abandoned: a dropped handler means *unknown*.
pub(super) struct GrantGuard {
    gate: Gate,
    granted: Granted,
    heartbeat: Option<Heartbeat>,
    settled: bool,
}

impl GrantGuard {
    pub(super) fn new(gate: Gate, granted: Granted, cancellation: Arc<Cancellation>) -> Self {
        let heartbeat = Heartbeat::start(&gate, granted.grant, cancellation, granted.sent);
        Self { gate, granted, heartbeat: Some(heartbeat), settled: false }
    }

    /// Tells the store what the handler said, and only then the caller.
    pub(super) async fn settle<A: Answer>(mut self, said: Result<A, Failure<A>>) -> Result<RunResult<A>, Refused<A>> {
        if chaos::on("heartbeat_stops_early") {
            self.heartbeat = None;
        }
        let told = match said {
            Ok(answer) | Err(Failure::Final(answer)) => self.complete(answer).await,
            Err(Failure::NotApplied(detail)) => {
                self.release(self.gate.terms.released_retention).await;
                Err(Refused::NotApplied { detail, unrecorded: false })
            }
            Err(Failure::Denied(detail)) => {
                self.release(Seconds::covering(self.gate.terms.lease).max(DENIED_LIVES)).await;
                Err(Refused::NotApplied { detail, unrecorded: false })
            }
            Err(Failure::Unknown(detail)) => {
                let wrong = chaos::on("release_on_unknown").then(|| self.released(self.gate.terms.released_retention));
                Box::pin(self.give_back(wrong.unwrap_or(self.abandoned()))).await;
                Err(Refused::Unknown { detail, unrecorded: false })
            }
        };
        self.settled = true;
        told
    }

    /// Gives the key back for good. `lifetime` is that of the released record.
    async fn release(&mut self, lifetime: Seconds) {
        Box::pin(self.give_back(self.released(lifetime))).await;
        if self.granted.ambiguous && !chaos::on("release_without_cancel") {
            // The earlier begin may come after this release, and would be granted to nobody.
            cancel(self.gate.clone(), self.granted.grant.rk, self.granted.grant.owner, self.granted.sent);
        }
    }

    fn released(&self, lifetime: Seconds) -> GiveBack {
        GiveBack::Release(Claim::from(&self.granted.grant), lifetime)
    }

    fn abandoned(&self) -> GiveBack {
        GiveBack::Abandon(Claim::from(&self.granted.grant))
    }

    /// Records the answer. What the store does not confirm within a lease, and while it is known to believe the grant, is spilled.
    async fn complete<A: Answer>(&mut self, answer: A) -> Result<RunResult<A>, Refused<A>> {
        let shared = Arc::clone(&self.gate.shared);
        let (ended, ended_at) = (shared.runtime.boottime_now(), shared.runtime.wall_now());
        let mut ask = Complete {
            claim: Claim::from(&self.granted.grant),
            fingerprint: self.granted.grant.fingerprint,
            answer: answer.encode(),
            retention: self.gate.terms.retention,
            age: Duration::ZERO,
        };
        if chaos::on("answer_before_record") {
            let (gate, rk) = (self.gate.clone(), self.granted.grant.rk);
            shared.spawn(async move {
                gate.shared.runtime.sleep(FIRST_PAUSE).await;
                drop(gate.shared.ask(|protocol| protocol.complete(&rk, &ask)).await);
            });
            return Ok(self.fresh(answer, Recorded::Yes));
        }
        let mut pause = FIRST_PAUSE;
        loop {
            if chaos::on("breaker_blocks_completion") && !shared.breaker.admits(shared.runtime.boottime_now()) {
                return Err(Refused::Unrecorded(Error::new(ErrorKind::NotApplied, "the breaker is open")));
            }
            let error = match shared.ask(|protocol| protocol.complete(&self.granted.grant.rk, &ask)).await {
                Ok(completed) => return self.completed(answer, completed),
                Err(error) => error,
            };
            let now = shared.runtime.boottime_now();
            let waited_for_a_lease = now >= ended + Duration::from(self.gate.terms.lease);
            if is_permanent(&error) || waited_for_a_lease || self.lease_may_be_over(now) {
                let spilled = Spilled {
                    rk: self.granted.grant.rk,
                    complete: ask,
                    unknown_retention: self.gate.terms.unknown_retention,
                    ended: ended_at,
                };
                return Box::pin(self.spill(answer, spilled, error)).await;
            }
            telemetry::completion_retried(self.granted.grant.rk, &error);
            shared.runtime.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            ask.age = shared.runtime.boottime_now().saturating_sub(ended);
        }
    }

    /// Whether the lease may be over.
    fn lease_may_be_over(&self, now: Duration) -> bool {
        self.heartbeat.as_ref().is_none_or(|heartbeat| now >= heartbeat.believed_until())
    }

    /// This attempt's own answer.
    fn fresh<A>(&self, answer: A, recorded: Recorded) -> RunResult<A> {
        let expiry = self.gate.shared.runtime.wall_now().plus(self.gate.terms.retention.into()).seconds();
        RunResult { answer, provenance: Provenance::Fresh, recorded, expiry: Some(expiry) }
    }

    fn completed<A: Answer>(&self, answer: A, completed: Completed) -> Result<RunResult<A>, Refused<A>> {
        let rk = self.granted.grant.rk;
        match completed {
            Completed::Done | Completed::Already => Ok(self.fresh(answer, Recorded::Yes)),
            Completed::Recreated => {
                telemetry::recreated(rk);
                Ok(self.fresh(answer, Recorded::Yes))
            }
            Completed::Lost(_) if chaos::on("lost_gives_own_answer") => Ok(self.fresh(answer, Recorded::Yes)),
            Completed::Lost(record) => self.lost(record),
            Completed::Gone => Err(unknown("the store forgot the record, and the answer is past its retention")),
        }
    }

    fn lost<A: Answer>(&self, other: Record) -> Result<RunResult<A>, Refused<A>> {
        telemetry::divergent(self.granted.grant.rk, self.granted.grant.token.0, &other);
        match other.state {
            // A store that forgot the record may hold another payload's by now: that answer is not for this caller.
            State::Completed(completion) if other.fingerprint == self.granted.grant.fingerprint => {
                RunResult::recorded(completion, Provenance::Canonical)
            }
            State::Completed(_) | State::Open(..) => {
                Err(unknown("the grant was lost before the answer could be recorded"))
            }
        }
    }

    /// Hands the completion, and the heartbeat with it, to the journal; only what is safe there is answered.
    async fn spill<A: Answer>(
        &mut self,
        answer: A,
        spilled: Spilled,
        cause: Error,
    ) -> Result<RunResult<A>, Refused<A>> {
        match self.gate.shared.spill.take(spilled, &mut self.heartbeat).await {
            Ok(()) => {
                telemetry::spilled(self.granted.grant.rk, &cause);
                Ok(self.fresh(answer, Recorded::Pending))
            }
            Err(error) => {
                telemetry::unrecorded(self.granted.grant.rk, &cause, &error);
                Err(Refused::Unrecorded(cause))
            }
        }
    }

    /// Gives the grant back once the renewal under way has ended. Awaits the first try; what is not confirmed by then goes on in
    /// the background.
    async fn give_back(&mut self, how: GiveBack) {
        if let Some(heartbeat) = self.heartbeat.take() {
            heartbeat.stop().await;
        }
        let rk = self.granted.grant.rk;
        if how.once(&self.gate.shared, &rk).await.is_err() {
            let gate = self.gate.clone();
            self.gate.shared.spawn(async move { how.until_definite(&gate, rk).await });
        }
    }
}

impl Drop for GrantGuard {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let wrong = chaos::on("drop_releases").then(|| self.released(self.gate.terms.released_retention));
        let (gate, rk, how) = (self.gate.clone(), self.granted.grant.rk, wrong.unwrap_or(self.abandoned()));
        let heartbeat = self.heartbeat.take();
        self.gate.shared.spawn(async move {
            if let Some(heartbeat) = heartbeat {
                heartbeat.stop().await;
            }
            how.until_definite(&gate, rk).await;
        });
    }
}

/// Cancels an attempt whose begin was ambiguous and that applied nothing: now, and once more when nothing of the begin can be under
/// way, because it can be carried out after its cancellation. A request is taken to die in the network within one lease, and the
/// last one of a begin, a swap, was sent before the begin's time was up.
pub(super) fn cancel(gate: Gate, rk: RecordKey, owner: Owner, sent: Duration) {
    if chaos::on("no_cancel") {
        return;
    }
    let lease = Duration::from(gate.terms.lease);
    let how = GiveBack::Cancel(owner, gate.terms.released_retention);
    let shared = Arc::clone(&gate.shared);
    shared.spawn(async move {
        how.until_definite(&gate, rk).await;
        if chaos::on("cancel_once") {
            return;
        }
        let waited = gate.shared.runtime.boottime_now().saturating_sub(sent);
        gate.shared.runtime.sleep((lease + gate.shared.store_timeout).saturating_sub(waited)).await;
        how.until_definite(&gate, rk).await;
    });
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
        let ends = shared.runtime.boottime_now() + Duration::from(gate.terms.unknown_retention);
        let mut pause = FIRST_PAUSE;
        while let Err(error) = self.once(shared, &rk).await {
            // A store that refuses us today, for a password that is just being changed, may take us back.
            if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Invalid) || shared.runtime.boottime_now() >= ends
            {
                telemetry::not_given_back(rk, &error);
                return;
            }
            shared.runtime.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Whether trying again cannot help.
pub(super) fn is_permanent(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Unusable | ErrorKind::Invalid)
}

fn unknown<A>(message: &'static str) -> Refused<A> {
    Refused::Unknown { detail: Error::new(ErrorKind::Unknown, message).into(), unrecorded: false }
}
