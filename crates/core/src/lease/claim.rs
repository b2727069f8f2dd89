//! From a begin request to a grant. A begin without a reply is ambiguous: it is repeated once by the same owner.

use std::sync::Arc;
use std::time::Duration;

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::key::RecordKey;
use crate::lease::{LeaseEngine, LeaseTerms, is_unavailable};
use crate::machine::{Begin, Begun, Grant};
use crate::record::Owner;

/// A grant, and how the attempt got it.
#[derive(Clone, Copy)]
pub(crate) struct Granted {
    pub(crate) grant: Grant,
    /// When the begin that got the grant was sent, on the boot-time clock.
    pub(crate) sent_at: Duration,
    /// Whether an earlier begin of the same attempt may still arrive at the store.
    pub(crate) is_ambiguous: bool,
}

impl Granted {
    /// The begin of this attempt that may still arrive after the attempt has released its grant.
    pub(crate) fn stray_begin(&self) -> Option<StrayBegin> {
        let stray = StrayBegin { rk: self.grant.rk, owner: self.grant.owner, sent_at: self.sent_at };
        self.is_ambiguous.then_some(stray)
    }
}

/// A begin that may still arrive at the store after its attempt has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StrayBegin {
    pub(crate) rk: RecordKey,
    pub(crate) owner: Owner,
    /// When the last begin of the attempt was sent, on the boot-time clock.
    pub(crate) sent_at: Duration,
}

/// Until when an attempt may start something new under a grant: the lease, counted from when the confirmed request was
/// *sent*, minus a margin.
pub(super) fn deadline(sent_at: Duration, lease: Duration) -> Duration {
    sent_at + lease - lease / 10
}

/// An attempt that asks for a grant, and the begins it sent so far.
pub(crate) struct PendingClaim<'a> {
    engine: &'a Arc<LeaseEngine>,
    request: Begin,
    /// When the last begin was sent, on the boot-time clock.
    sent_at: Duration,
    /// Whether the outcome of a begin is unknown.
    is_ambiguous: bool,
}

impl<'a> PendingClaim<'a> {
    pub(crate) fn new(engine: &'a Arc<LeaseEngine>, request: Begin) -> Self {
        Self { engine, request, sent_at: Duration::ZERO, is_ambiguous: false }
    }

    /// Sends a begin, and a second one with the same owner if the outcome of the first is unknown.
    pub(crate) async fn begin(&mut self) -> Result<Begun> {
        let request = self.request;
        let first = self.begin_once(&request).await;
        if !matches!(&first, Err(error) if error.kind() == ErrorKind::Unknown) {
            return first;
        }
        self.is_ambiguous = true;
        if Mutant::RetryWithNewOwner.is_on() {
            return self.begin_once(&Begin { owner: self.engine.mint_owner(), ..request }).await;
        }
        self.begin_once(&request).await
    }

    async fn begin_once(&mut self, request: &Begin) -> Result<Begun> {
        let engine = &**self.engine;
        // Read before the request is sent: the store starts the lease later than this, so the deadline is on the safe
        // side.
        self.sent_at = engine.runtime.boottime_now();
        if !engine.breaker.admits(self.sent_at) {
            let message = "the store has not answered several begins in a row; one begin a second still goes to it";
            return Err(Error::new(ErrorKind::NotApplied, message));
        }
        let begun = engine.call_store(|protocol| protocol.begin(request)).await;
        match &begun {
            // A store without room still answers begins of existing records, so it does not open the breaker.
            Err(error) if is_unavailable(error) && error.kind() != ErrorKind::Full => {
                if Mutant::FailedProbeClosesBreaker.is_on() && engine.breaker.is_open() {
                    engine.breaker.record_success();
                }
                engine.breaker.record_failure(engine.runtime.boottime_now());
            }
            Ok(_) | Err(_) => engine.breaker.record_success(),
        }
        begun
    }

    /// Checks the last reply: a grant that arrives so late that its lease may have expired is refused. Cancels what the
    /// begins may leave behind, unless the grant is used.
    pub(crate) fn check_reply(&self, begun: Result<Begun>, terms: &LeaseTerms) -> Result<Begun> {
        let is_granted = matches!(begun, Ok(Begun::Granted(_) | Begun::Mine(_)));
        let is_too_late = self.engine.runtime.boottime_now() >= deadline(self.sent_at, self.request.lease.into());
        if is_granted && is_too_late || !is_granted && self.is_ambiguous {
            let (rk, owner) = (self.request.call.record_key(), self.request.owner);
            self.engine.cancel(StrayBegin { rk, owner, sent_at: self.sent_at }, terms);
        }
        if is_granted && is_too_late {
            return Err(Error::new(
                ErrorKind::NotApplied,
                "the store granted the begin after the lease could have expired",
            ));
        }
        begun
    }

    /// The grant that the last begin got.
    pub(crate) fn to_granted(&self, grant: Grant) -> Granted {
        Granted { grant, sent_at: self.sent_at, is_ambiguous: self.is_ambiguous }
    }
}
