//! Which relay publishes which bucket. A claim is a record in the store of the same database, held by the lease engine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::chaos;
use crate::error::{Error, ErrorKind, Result};
use crate::key::{Call, Identity, Key, RecordKey, Scope};
use crate::lease::{
    Cancellation, GiveBack, Granted, Heartbeat, HeldLease, LeaseEngine, LeaseEvent, LeaseTerms, PendingClaim, Renew,
};
use crate::machine::{Begin, Begun, Claim, Grant, Lapse, Renewed};
use crate::outbox::BUCKETS;
use crate::record::{Millis, Seconds};
use crate::relay::share::{MEMBERS, share};
use crate::runtime::Runtime;
use crate::store::Store;
use crate::telemetry;

/// How long the store may take for one call.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the record of a claim lives that nobody holds.
const KEPT: Seconds = Seconds(3600);

/// Claims buckets, and the place of this relay among its members.
#[derive(Debug)]
pub(super) struct BucketClaims {
    engine: Arc<LeaseEngine>,
    lease: Millis,
}

/// What a look at the claims found.
pub(super) struct ClaimsSeen {
    /// The place of this relay, if it got one now.
    pub(super) place: Option<HeldClaim>,
    /// How many buckets this relay is to have. None if the members could not be counted.
    pub(super) share: Option<usize>,
    /// Buckets that this relay got now.
    pub(super) gained: Vec<(u8, HeldClaim)>,
}

impl BucketClaims {
    pub(super) fn start(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>, lease: Millis) -> Result<Self> {
        let limit = STORE_TIMEOUT.min(Duration::from(lease) / 3);
        Ok(Self { engine: LeaseEngine::start(store, runtime, limit, lease)?, lease })
    }

    /// Takes a place if this relay has none, counts the members, and claims buckets up to the share of one relay.
    ///
    /// # Cancel safety
    /// If dropped, a claim that it just got lapses after the lease.
    pub(super) async fn look(&self, has_place: bool, held: &BTreeSet<u8>) -> Result<ClaimsSeen> {
        let place = if has_place { None } else { self.take_place().await? };
        let mut seen = ClaimsSeen { place, share: None, gained: Vec::new() };
        if !has_place && seen.place.is_none() {
            // More relays than places: this one stands by.
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

    /// Waits until everything is given back.
    pub(super) async fn wait_until_idle(&self) {
        self.engine.wait_until_idle().await;
    }

    async fn take_place(&self) -> Result<Option<HeldClaim>> {
        for place in 0..MEMBERS {
            if let Some(claim) = self.claim(place_call(place)?).await? {
                return Ok(Some(claim));
            }
        }
        Ok(None)
    }

    async fn count_members(&self) -> Result<usize> {
        let mut members = 0;
        for place in 0..MEMBERS {
            let rk: RecordKey = place_call(place)?.record_key();
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
    (0..MEMBERS).map(|place| Ok(place_call(place)?.record_key())).collect()
}

fn bucket_call(bucket: u8) -> Result<Call> {
    call_of("bucket", bucket)
}

fn place_call(place: u8) -> Result<Call> {
    call_of("member", place)
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

/// The grant of a bucket or of a place.
struct RelayGrant(Grant);

#[async_trait]
impl Renew for RelayGrant {
    /// A record that is gone is lost: another relay may claim it.
    async fn renew(&self, store: &dyn Store) -> Result<Renewed> {
        let renewed = store.renew(&self.0.rk, &Claim::from(&self.0)).await?;
        Ok(match renewed {
            Renewed::Gone if !chaos::on("gone_claim_is_held") => Renewed::Lost,
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
