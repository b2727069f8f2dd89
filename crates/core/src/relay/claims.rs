//! Which relay publishes which bucket. A claim is a record in the store of the same database, held by the lease engine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::key::{Call, Identity, Key, RecordKey, Scope};
use crate::lease::{
    Cancellation, GiveBack, Granted, Heartbeat, HeldLease, LeaseEngine, LeaseEvent, LeaseTerms, PendingClaim, Renew,
};
use crate::machine::{Begin, Begun, Claim, Grant, Lapse, Renewed};
use crate::outbox::BUCKETS;
use crate::record::{Millis, Seconds};
use crate::relay::buckets::OwnedBuckets;
use crate::relay::calls::RelayReport;
use crate::relay::engine::{Loan, RelayNote};
use crate::relay::share::{MEMBERS, share};
use crate::runtime::{Runtime, timeout};
use crate::store::Store;
use crate::telemetry;

/// How long the store may take for one call.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the record of a claim lives that nobody holds.
const KEPT: Seconds = Seconds(3600);

/// How often a relay balances its claims with the other relays, at most. It decides how soon the buckets of a dead
/// relay flow again after their leases have ended.
const BALANCE_EVERY: Duration = Duration::from_millis(500);

/// How long a store may take to confirm that a claim is given back, when the relay stops.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(5);

/// The result of balancing the claims.
pub(super) type ClaimsReport = Result<ClaimsSeen>;

/// Takes buckets for this relay, and gives them back.
pub(super) struct RelayClaims {
    claims: Arc<BucketClaims>,
    lease: Duration,
    /// The record that says that this relay lives.
    membership: Option<HeldClaim>,
    is_balancing: bool,
    due: Duration,
}

impl RelayClaims {
    pub(super) fn start_engine(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>, lease: Millis) -> Result<Self> {
        let claims = Arc::new(BucketClaims::start(store, runtime, lease)?);
        Ok(Self { claims, lease: lease.into(), membership: None, is_balancing: false, due: Duration::ZERO })
    }

    /// Whether no claim may come that would have to be given back.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_balancing
    }

    pub(super) fn wake(&self) -> Option<Duration> {
        (!self.is_balancing).then_some(self.due)
    }

    /// Forgets what is lost or about to lapse. Another relay may have it.
    pub(super) fn drop_lost(&mut self, now: Duration, buckets: &mut OwnedBuckets) {
        self.membership.take_if(|membership| !membership.is_held(now));
        buckets.drop_lost(now);
    }

    pub(super) fn start(&mut self, now: Duration, loan: &mut Loan<'_>) {
        if self.is_balancing || now < self.due {
            return;
        }
        self.is_balancing = true;
        self.due = now + BALANCE_EVERY.min(self.lease / 6);
        let (claims, is_member) = (Arc::clone(&self.claims), self.membership.is_some());
        let held: BTreeSet<u8> = loan.buckets.numbers().collect();
        loan.calls.start(async move { RelayReport::Claims(claims.balance(is_member, &held).await) });
    }

    pub(super) fn take(&mut self, seen: ClaimsReport, loan: &mut Loan<'_>) {
        self.is_balancing = false;
        let seen = match seen {
            Ok(seen) => seen,
            Err(error) => return telemetry::claims_failed(&error),
        };
        self.membership = self.membership.take().or(seen.membership);
        if !seen.gained.is_empty() {
            loan.notes.push(RelayNote::ReadSoon);
        }
        for (number, claim) in seen.gained {
            loan.buckets.gain(number, claim, loan.calls.now());
        }
        if let Some(share) = seen.share {
            loan.buckets.leave_one_above(share);
        }
        telemetry::relay_buckets(loan.buckets.len());
    }

    /// Gives the membership back, and waits a while until the store has confirmed all that is given back.
    pub(super) async fn close(mut self, runtime: &dyn Runtime) {
        if let Some(membership) = self.membership.take() {
            membership.give_back();
        }
        timeout(runtime, GIVE_BACK_WITHIN, self.claims.engine.wait_until_idle()).await;
    }
}

/// Claims buckets, and a membership among the relays.
#[derive(Debug)]
struct BucketClaims {
    engine: Arc<LeaseEngine>,
    lease: Millis,
}

/// What balancing the claims has brought.
pub(super) struct ClaimsSeen {
    /// The membership of this relay, if it got one now.
    membership: Option<HeldClaim>,
    /// How many buckets this relay is to have. None if the members could not be counted.
    share: Option<usize>,
    /// Buckets that this relay got now.
    gained: Vec<(u8, HeldClaim)>,
}

impl BucketClaims {
    fn start(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>, lease: Millis) -> Result<Self> {
        let limit = STORE_TIMEOUT.min(Duration::from(lease) / 3);
        Ok(Self { engine: LeaseEngine::start(store, runtime, limit, lease)?, lease })
    }

    /// Becomes a member if this relay is none, counts the members, and claims buckets up to the share of one relay.
    ///
    /// # Cancel safety
    /// If dropped, a claim that it just got lapses after the lease.
    async fn balance(&self, is_member: bool, held: &BTreeSet<u8>) -> Result<ClaimsSeen> {
        let membership = if is_member { None } else { self.become_member().await? };
        let mut seen = ClaimsSeen { membership, share: None, gained: Vec::new() };
        if !is_member && seen.membership.is_none() {
            // More relays than members: this one stands by.
            return Ok(seen);
        }
        // An error now must not drop the claims that were just taken.
        let Ok(members) = self.count_members().await else { return Ok(seen) };
        let share = share(members);
        seen.share = Some(share);
        for bucket in self.shuffled_buckets().filter(|bucket| !held.contains(bucket)) {
            if held.len() + seen.gained.len() >= share {
                break;
            }
            match self.claim(bucket_call(bucket)?).await {
                Ok(Some(claim)) => seen.gained.push((bucket, claim)),
                Ok(None) => {}
                Err(error) => {
                    telemetry::claims_failed(&error);
                    break;
                }
            }
        }
        Ok(seen)
    }

    async fn become_member(&self) -> Result<Option<HeldClaim>> {
        for member in 0..MEMBERS {
            if let Some(claim) = self.claim(member_call(member)?).await? {
                return Ok(Some(claim));
            }
        }
        Ok(None)
    }

    async fn count_members(&self) -> Result<usize> {
        let mut members = 0;
        for member in 0..MEMBERS {
            let rk: RecordKey = member_call(member)?.record_key();
            let seen = self.engine.call_store(|protocol| protocol.read(rk)).await?;
            members += usize::from(seen.is_running());
        }
        Ok(members)
    }

    /// Claims a record. None if another relay holds it.
    async fn claim(&self, call: Call) -> Result<Option<HeldClaim>> {
        let request = Begin {
            call,
            owner: self.engine.mint_owner(),
            lease: self.lease,
            unknown_retention: KEPT,
            on_lapse: Lapse::Retry,
        };
        let terms = LeaseTerms { lease: self.lease, released_retention: KEPT, unknown_retention: KEPT };
        let mut pending = PendingClaim::new(&self.engine, request);
        let begun = pending.begin().await;
        match pending.check_reply(begun, &terms)? {
            Begun::Granted(grant) | Begun::Mine(grant) => {
                Ok(Some(HeldClaim::hold(&self.engine, pending.to_granted(grant), terms)))
            }
            Begun::Busy(_) => Ok(None),
            // Nobody but relays writes these records, and no relay completes, holds or buries one.
            Begun::Replay(_) | Begun::Mismatch | Begun::Indeterminate(_) | Begun::Dead => Err(Error::new(
                ErrorKind::Unusable,
                "the record of a bucket is not one of a relay; remove the records of the namespace hapax/relay",
            )),
        }
    }

    /// All buckets, from a random one on, so that relays that start together do not ask for the same ones.
    fn shuffled_buckets(&self) -> impl Iterator<Item = u8> + use<> {
        let mut first = [0];
        self.engine.runtime().fill_random(&mut first);
        (0..BUCKETS).map(move |bucket| (bucket + first[0] % BUCKETS) % BUCKETS)
    }
}

/// The records of the buckets, in their order: who publishes which one. They are in the store of the outbox's database.
///
/// # Errors
/// None in practice: the keys are valid.
pub fn bucket_records() -> Result<Vec<RecordKey>> {
    (0..BUCKETS).map(|bucket| Ok(bucket_call(bucket)?.record_key())).collect()
}

/// The records of the relays that live. They are in the store of the outbox's database.
///
/// # Errors
/// None in practice: the keys are valid.
pub fn member_records() -> Result<Vec<RecordKey>> {
    (0..MEMBERS).map(|member| Ok(member_call(member)?.record_key())).collect()
}

fn bucket_call(bucket: u8) -> Result<Call> {
    call_of("bucket", bucket)
}

fn member_call(member: u8) -> Result<Call> {
    call_of("member", member)
}

fn call_of(what: &str, number: u8) -> Result<Call> {
    Ok(Identity::plain().call(&Scope::tenant("hapax/relay", what)?, &Key::new(number.to_string())?))
}

/// A record that this relay holds until it is given back or lost.
pub(super) struct HeldClaim {
    engine: Arc<LeaseEngine>,
    granted: Granted,
    terms: LeaseTerms,
    heartbeat: Heartbeat,
}

impl HeldClaim {
    fn hold(engine: &Arc<LeaseEngine>, granted: Granted, terms: LeaseTerms) -> Self {
        let held = HeldLease {
            claim: RelayGrant(granted.grant),
            sent_at: granted.sent_at,
            lease: terms.lease.into(),
            max_execution: None,
        };
        let heartbeat = Heartbeat::start(engine, held, Arc::new(Cancellation::default()));
        Self { engine: Arc::clone(engine), granted, terms, heartbeat }
    }

    /// Whether this relay may start a publication under the claim.
    pub(super) fn is_held(&self, now: Duration) -> bool {
        self.heartbeat.is_held(now)
    }

    /// Gives the record back in the background, so that another relay can have it at once.
    pub(super) fn give_back(self) {
        let give_back = GiveBack::release(&self.granted.grant, KEPT, &self.terms);
        self.engine.give_back_in_background(give_back, Some(self.heartbeat));
        if let Some(begin) = self.granted.stray_begin() {
            self.engine.cancel(begin, &self.terms);
        }
    }
}

/// The grant of a bucket or of a membership.
struct RelayGrant(Grant);

#[async_trait]
impl Renew for RelayGrant {
    /// A record that is gone is lost: another relay may claim it.
    async fn renew(&self, store: &dyn Store) -> Result<Renewed> {
        let renewed = store.renew(&self.0.rk, &Claim::from(&self.0)).await?;
        Ok(match renewed {
            Renewed::Gone if !Mutant::GoneClaimIsHeld.is_on() => Renewed::Lost,
            Renewed::Yes | Renewed::Lost | Renewed::Gone => renewed,
        })
    }

    fn report(&self, event: LeaseEvent<'_>) {
        match event {
            LeaseEvent::Lost => telemetry::claim_lost(),
            LeaseEvent::NotConfirmed(error) => telemetry::claim_not_confirmed(error),
            // A renewal returns Lost instead, and there is no longest time.
            LeaseEvent::Forgotten | LeaseEvent::RanTooLong => {}
        }
    }
}
