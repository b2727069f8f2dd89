//! Buckets that come and go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::relay::bucket::BucketRows;
use crate::relay::claims::{ClaimsSeen, HeldClaim};
use crate::relay::engine::{OwnedBucket, RelayEngine, RelayReport};
use crate::telemetry;

/// How often a relay looks at the claims, at most. It decides how soon the buckets of a dead relay flow again after
/// their leases have ended.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl RelayEngine {
    pub(super) fn start_look(&mut self, now: Duration) {
        if self.is_looking || now < self.look_due {
            return;
        }
        self.is_looking = true;
        self.look_due = now + LOOK_EVERY.min(Duration::from(self.settings.lease) / 6);
        let (claims, has_place) = (Arc::clone(&self.claims), self.place.is_some());
        let held: BTreeSet<u8> = self.buckets.keys().copied().collect();
        self.call(async move { RelayReport::Looked(claims.look(has_place, &held).await) });
    }

    pub(super) fn take_claims(&mut self, seen: Result<ClaimsSeen>) {
        self.is_looking = false;
        let seen = match seen {
            Ok(seen) => seen,
            Err(error) => return telemetry::claims_failed(&error),
        };
        self.place = self.place.take().or(seen.place);
        for (number, claim) in seen.gained {
            self.gain(number, claim);
        }
        let kept = self.buckets.values().filter(|bucket| !bucket.is_leaving).count();
        if seen.share.is_some_and(|share| kept > share)
            && let Some(bucket) = self.buckets.values_mut().find(|bucket| !bucket.is_leaving)
        {
            bucket.is_leaving = true;
        }
        telemetry::relay_buckets(self.buckets.len());
    }

    fn gain(&mut self, number: u8, claim: HeldClaim) {
        self.ownerships += 1;
        let now = self.runtime.boottime_now();
        let bucket = OwnedBucket {
            ownership: self.ownerships,
            claim,
            rows: BucketRows::default(),
            restarted: now,
            is_leaving: false,
            growth: 1,
        };
        self.buckets.insert(number, bucket);
        self.reading.hurry();
    }

    /// Forgets the buckets whose claims are lost or about to lapse. Another relay may have them.
    pub(super) fn drop_lost_buckets(&mut self, now: Duration) {
        if self.place.as_ref().is_some_and(|place| !place.is_held(now)) {
            self.place = None;
        }
        let count = self.buckets.len();
        self.buckets.retain(|_, bucket| bucket.claim.is_held(now));
        if self.buckets.len() < count {
            telemetry::buckets_lost(count - self.buckets.len());
        }
    }

    /// Reads everything again, because rows behind the cursors may be open. What was started goes on.
    pub(super) fn rewind(&mut self) {
        self.buckets.values_mut().for_each(|bucket| bucket.rows.rewind());
        self.refused.clear();
        self.aside.clear();
        self.reading.hurry();
    }

    /// Gives back the buckets that are to go to another relay, once everything that was started is marked.
    pub(super) fn give_back_left_buckets(&mut self) {
        let is_done = |bucket: &OwnedBucket| bucket.is_leaving && bucket.rows.is_settled();
        let done = self.buckets.iter().filter(|(_, bucket)| is_done(bucket)).map(|(number, _)| *number);
        for number in done.collect::<Vec<_>>() {
            if let Some(bucket) = self.buckets.remove(&number) {
                bucket.claim.give_back();
            }
        }
    }
}
