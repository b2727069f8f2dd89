//! From the handler's return value to the record: complete, release or abandon. Only then does the caller get its
//! result.

use std::sync::Arc;
use std::time::Duration;

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::outcome::{Answer, Failure, Provenance, Recorded, Refused, RunResult};
use crate::gate::reason::Reason;
use crate::gate::renewal::AttemptGrant;
use crate::gate::spill::is_permanent;
use crate::gate::{Gate, bugs};
use crate::journal::Spilled;
use crate::lease::{Cancellation, GiveBack, Granted, Heartbeat, HeldLease, LeaseTerms};
use crate::machine::{self, Claim, Complete, Completed};
use crate::record::{Record, Seconds, Timestamp};
use crate::runtime::timeout;
use crate::telemetry;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

const NOT_CONFIRMED: &str = "the store did not confirm the answer in time";

/// The shortest lifetime of the record of a denied caller.
const MIN_DENIED_LIFETIME: Seconds = Seconds(10);

/// Owns a grant. If it is dropped before it is settled, the grant is abandoned: a dropped handler means *unknown*.
pub(super) struct GrantGuard {
    gate: Gate,
    granted: Granted,
    terms: LeaseTerms,
    heartbeat: Option<Heartbeat>,
    /// How long the answer is replayed.
    retention: Seconds,
    is_settled: bool,
}

impl GrantGuard {
    pub(super) fn new(gate: Gate, granted: Granted, cancellation: Arc<Cancellation>) -> Self {
        let terms = LeaseTerms::from(&*gate.terms);
        let held = HeldLease {
            claim: AttemptGrant(granted.grant),
            sent_at: granted.sent_at,
            lease: terms.lease.into(),
            max_execution: Some(gate.terms.max_execution),
        };
        let heartbeat = Heartbeat::start(&gate.shared.leases, held, cancellation);
        let retention = gate.terms.retention;
        Self { gate, granted, terms, heartbeat: Some(heartbeat), retention, is_settled: false }
    }

    /// Settles the grant in the store, and returns the caller's result.
    pub(super) async fn settle<A: Answer>(
        mut self,
        returned: Result<A, Failure<A>>,
    ) -> Result<RunResult<A>, Refused<A>> {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.set_handler_ended();
        }
        if Mutant::HeartbeatStopsEarly.is_on() {
            self.heartbeat = None;
        }
        let result = match returned {
            Ok(answer) => self.complete(answer).await,
            Err(Failure::Final(answer)) => {
                self.retention = self.gate.terms.final_retention;
                self.complete(answer).await
            }
            Err(Failure::NotApplied(detail)) => {
                self.release(self.terms.released_retention).await;
                Err(Refused::with_detail(Reason::NotApplied { unrecorded: false }, detail))
            }
            Err(Failure::Denied(detail)) => {
                self.release(Seconds::covering(self.gate.terms.lease).max(MIN_DENIED_LIFETIME)).await;
                Err(Refused::with_detail(Reason::NotApplied { unrecorded: false }, detail))
            }
            Err(Failure::GivenUp(detail)) => {
                self.bury().await;
                Err(Refused::with_detail(Reason::NotApplied { unrecorded: false }, detail))
            }
            Err(Failure::Unknown(detail)) => {
                self.abandon().await;
                Err(Refused::with_detail(Reason::Unknown { unrecorded: false }, detail))
            }
        };
        // Set only now: if this future is dropped earlier, the grant is abandoned. After a completion this changes
        // nothing (row A4).
        self.is_settled = true;
        result
    }

    /// Gives the key back: known not applied. `lifetime` is that of the released record.
    async fn release(&mut self, lifetime: Seconds) {
        self.give_back(GiveBack::release(&self.granted.grant, lifetime, &self.terms)).await;
        self.cancel_stray_begin();
    }

    /// Closes the key: known not applied, and not tried again.
    async fn bury(&mut self) {
        self.give_back(GiveBack::bury(&self.granted.grant, &self.terms)).await;
        self.cancel_stray_begin();
    }

    fn cancel_stray_begin(&self) {
        if let Some(begin) = self.granted.stray_begin()
            && !Mutant::ReleaseWithoutCancel.is_on()
        {
            // The earlier begin may arrive after this release. Its grant would have no owner that ends it.
            self.gate.shared.leases.cancel(begin, &self.terms);
        }
    }

    async fn abandon(&mut self) {
        self.give_back(self.abandonment(Mutant::ReleaseOnUnknown.is_on())).await;
    }

    fn abandonment(&self, is_release: bool) -> GiveBack {
        match is_release {
            true => GiveBack::release(&self.granted.grant, self.terms.released_retention, &self.terms),
            false => GiveBack::abandon(&self.granted.grant, &self.terms),
        }
    }

    async fn give_back(&mut self, give_back: GiveBack) {
        // Boxed, so that the future of the usual path, a completion, stays small.
        Box::pin(self.gate.shared.leases.give_back(give_back, self.heartbeat.take())).await;
    }

    /// Records the answer. If the store does not confirm it in time, the journal keeps it. If the journal does not take
    /// it either, the store is asked until the lease may have expired, and then the journal once more.
    async fn complete<A: Answer>(&mut self, answer: A) -> Result<RunResult<A>, Refused<A>> {
        let leases = Arc::clone(&self.gate.shared.leases);
        let mut unrecorded = UnrecordedAnswer {
            request: Complete {
                claim: Claim::from(&self.granted.grant),
                fingerprint: self.granted.grant.fingerprint,
                answer: answer.encode(),
                retention: self.retention,
                ended: leases.runtime().wall_now(),
                age: Duration::ZERO,
            },
            ended_at: leases.runtime().boottime_now(),
        };
        let ended = unrecorded.request.ended;
        if Mutant::AnswerBeforeRecord.is_on() {
            bugs::complete_later(&self.gate, self.granted.grant.rk, unrecorded.request);
            return Ok(self.fresh(answer, ended, Recorded::Yes));
        }
        let mut wait = self.gate.terms.record_patience;
        loop {
            let error = match self.record_within(&mut unrecorded, wait).await {
                Ok(completed) => return self.completed_result((answer, ended), completed).await,
                Err(error) => error,
            };
            if let Some(heartbeat) = &self.heartbeat {
                heartbeat.note_damage(&error);
            }
            let journal_error = match self.spill(&unrecorded).await {
                Ok(()) => {
                    telemetry::spilled(self.granted.grant.rk, &error);
                    return Ok(self.fresh(answer, ended, Recorded::Pending));
                }
                Err(error) => error,
            };
            let lease = Duration::from(self.gate.terms.lease);
            if is_permanent(&error) || wait >= lease || self.lease_may_be_over() {
                telemetry::unrecorded(self.granted.grant.rk, &error, &journal_error);
                return Err(Refused::with_detail(Reason::Unrecorded, error.into()));
            }
            wait = lease;
        }
    }

    /// Sends the completion until the store replies, a retry cannot help, the lease may have expired, or this time has
    /// passed since the handler ended.
    async fn record_within(&self, unrecorded: &mut UnrecordedAnswer, wait: Duration) -> Result<Completed> {
        let runtime = self.gate.shared.leases.runtime();
        let mut pause = FIRST_PAUSE;
        loop {
            unrecorded.request.age = runtime.boottime_now().saturating_sub(unrecorded.ended_at);
            // Safe to repeat after an ambiguous error: the same token and answer give `Already` (row C3). For the same
            // reason a try may be dropped.
            let left = wait.saturating_sub(unrecorded.request.age);
            let tried = timeout(&**runtime, left, self.send_completion(&unrecorded.request)).await;
            let error = match tried.unwrap_or_else(|| Err(Error::new(ErrorKind::Unknown, NOT_CONFIRMED))) {
                Ok(completed) => return Ok(completed),
                Err(error) => error,
            };
            let age = runtime.boottime_now().saturating_sub(unrecorded.ended_at);
            // Not later: a try without time for a reply would tell nothing.
            let is_last = age + pause >= wait;
            if is_permanent(&error) || is_last || self.lease_may_be_over() {
                return Err(error);
            }
            telemetry::completion_retried(self.granted.grant.rk, &error);
            runtime.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn send_completion(&self, request: &Complete) -> Result<Completed> {
        let leases = &self.gate.shared.leases;
        // Without the bug, completions do not ask the breaker.
        if Mutant::BreakerBlocksCompletion.is_on() && !leases.breaker().admits(leases.runtime().boottime_now()) {
            return Err(Error::new(ErrorKind::Unusable, "the breaker is open"));
        }
        leases.call_store(|protocol| protocol.complete(&self.granted.grant.rk, request)).await
    }

    fn lease_may_be_over(&self) -> bool {
        let now = self.gate.shared.leases.runtime().boottime_now();
        self.heartbeat.as_ref().is_none_or(|heartbeat| now >= heartbeat.lease_expires_at())
    }

    /// The result of a caller whose own handler gave the answer.
    fn fresh<A>(&self, answer: A, ended: Timestamp, recorded: Recorded) -> RunResult<A> {
        // As in the record, so that each copy is given the same expiry (`machine/change.rs`).
        let expiry = ended.plus(self.retention.into()).seconds();
        RunResult { answer, provenance: Provenance::Fresh, recorded, expiry: Some(expiry) }
    }

    async fn completed_result<A: Answer>(
        &self,
        (answer, ended): (A, Timestamp),
        completed: Completed,
    ) -> Result<RunResult<A>, Refused<A>> {
        let rk = self.granted.grant.rk;
        match completed {
            Completed::Done | Completed::Already => Ok(self.fresh(answer, ended, Recorded::Yes)),
            Completed::Recreated => {
                telemetry::recreated(rk);
                Ok(self.fresh(answer, ended, Recorded::Yes))
            }
            Completed::Lost(_) if Mutant::LostGivesOwnAnswer.is_on() => Ok(self.fresh(answer, ended, Recorded::Yes)),
            Completed::Lost(record) => Box::pin(self.lost_result(record)).await,
            Completed::Gone => Err(unknown("the store forgot the record, and the answer is older than its retention")),
        }
    }

    /// The handler had its effect, but the record belongs to another attempt.
    async fn lost_result<A: Answer>(&self, other: Record) -> Result<RunResult<A>, Refused<A>> {
        telemetry::divergent(self.granted.grant.rk, self.granted.grant.token.0, &other);
        match machine::recorded_answer(&other, self.granted.grant.fingerprint) {
            Some(completion) => {
                let fetched = self.gate.shared.leases.fetch(completion.clone()).await;
                RunResult::from_record(fetched.map_err(Refused::store)?, Provenance::Canonical)
            }
            None => Err(unknown("the grant was lost before the answer was recorded")),
        }
    }

    /// Moves the completion and its heartbeat to the journal.
    async fn spill(&mut self, unrecorded: &UnrecordedAnswer) -> Result<()> {
        let spilled = Spilled {
            rk: self.granted.grant.rk,
            complete: unrecorded.request.clone(),
            unknown_retention: self.gate.terms.unknown_retention,
        };
        // Boxed, so that the future of a completion that is confirmed stays small.
        Box::pin(self.gate.shared.spill(spilled, &mut self.heartbeat)).await
    }
}

/// The answer of a handler that has ended.
struct UnrecordedAnswer {
    request: Complete,
    /// When the handler ended, on the boot-time clock.
    ended_at: Duration,
}

impl Drop for GrantGuard {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let give_back = self.abandonment(Mutant::DropReleases.is_on());
        self.gate.shared.leases.give_back_in_background(give_back, self.heartbeat.take());
    }
}

fn unknown<A>(message: &'static str) -> Refused<A> {
    let error = Error::new(ErrorKind::Unknown, message);
    Refused::with_detail(Reason::Unknown { unrecorded: false }, error.into())
}
