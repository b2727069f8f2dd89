//! The buckets that a relay has. The engine owns them, and lends them to its parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::chaos::Mutant;
use crate::outbox::{EventTopic, OutgoingEvent};
use crate::relay::RelaySettings;
use crate::relay::bucket::{BucketRows, FailingRoom};
use crate::relay::claims::HeldClaim;
use crate::relay::publisher::{FailedPublication, SentRow};
use crate::relay::topics::{FailingTopics, TopicFailure};
use crate::telemetry;

/// How many rows that have failed each bucket holds at least.
const MIN_FAILING: usize = 8;

/// The buckets of a relay, by their numbers.
#[derive(Default)]
pub(super) struct OwnedBuckets {
    buckets: BTreeMap<u8, OwnedBucket>,
    /// The number of buckets that this relay ever had.
    ownerships: u64,
    topics: FailingTopics,
}

/// A bucket that this relay has.
pub(super) struct OwnedBucket {
    /// Distinguishes this bucket from the same one at another time.
    pub(super) ownership: u64,
    claim: HeldClaim,
    pub(super) rows: BucketRows,
    /// When it was last read from its first row on.
    pub(super) restarted: Duration,
    /// Nothing new of it is published: it is given back as soon as what was started is marked.
    pub(super) is_leaving: bool,
    /// How many times as many rows are read as there is room for.
    pub(super) limit_factor: usize,
}

impl OwnedBuckets {
    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    pub(super) fn has(&self, number: u8) -> bool {
        self.buckets.contains_key(&number)
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u8> {
        self.buckets.keys().copied()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u8, &mut OwnedBucket)> {
        self.buckets.iter_mut().map(|(number, bucket)| (*number, bucket))
    }

    /// Those that are not to be given back.
    pub(super) fn kept(&self) -> impl Iterator<Item = &OwnedBucket> {
        self.buckets.values().filter(|bucket| !bucket.is_leaving)
    }

    /// A bucket that is not to be given back.
    pub(super) fn kept_mut(&mut self, number: u8) -> Option<&mut OwnedBucket> {
        self.buckets.get_mut(&number).filter(|bucket| !bucket.is_leaving)
    }

    /// The bucket with this number, whenever it was taken.
    pub(super) fn current(&mut self, number: u8) -> Option<&mut OwnedBucket> {
        self.buckets.get_mut(&number)
    }

    /// The bucket with this number, if it is the same as it was at that time.
    pub(super) fn same(&mut self, number: u8, ownership: u64) -> Option<&mut OwnedBucket> {
        self.buckets.get_mut(&number).filter(|bucket| bucket.ownership == ownership)
    }

    pub(super) fn gain(&mut self, number: u8, claim: HeldClaim, now: Duration) {
        self.ownerships += 1;
        let bucket = OwnedBucket {
            ownership: self.ownerships,
            claim,
            rows: BucketRows::default(),
            restarted: now,
            is_leaving: false,
            limit_factor: 1,
        };
        self.buckets.insert(number, bucket);
    }

    /// Leaves one bucket, if more are kept than this.
    pub(super) fn leave_one_above(&mut self, share: usize) {
        if self.kept().count() > share
            && let Some(bucket) = self.buckets.values_mut().find(|bucket| !bucket.is_leaving)
        {
            bucket.is_leaving = true;
        }
    }

    /// Forgets the buckets whose claims are lost or about to lapse. Another relay may have them.
    pub(super) fn drop_lost(&mut self, now: Duration) {
        let count = self.buckets.len();
        self.buckets.retain(|_, bucket| bucket.claim.is_held(now));
        if self.buckets.len() < count {
            telemetry::buckets_lost(count - self.buckets.len());
        }
    }

    /// Gives back the buckets that are to go to another relay, once everything that was started is marked.
    pub(super) fn give_back_left(&mut self) {
        let is_done = |bucket: &mut OwnedBucket| bucket.is_leaving && bucket.rows.is_settled();
        for (_, bucket) in self.buckets.extract_if(.., |_, bucket| is_done(bucket)) {
            bucket.claim.give_back();
        }
    }

    /// Gives all buckets back. One with events in flight is left to lapse instead. Returns how many rows were started
    /// and not marked.
    pub(super) fn give_back_all(&mut self) -> usize {
        let mut unconfirmed = 0;
        for bucket in std::mem::take(&mut self.buckets).into_values() {
            unconfirmed += bucket.rows.unconfirmed();
            if bucket.rows.in_flight() == 0 || Mutant::BucketLeftEarly.is_on() {
                bucket.claim.give_back();
            }
        }
        unconfirmed
    }

    /// Reads everything again, because rows behind the cursors may be open. What was started goes on.
    pub(super) fn rewind(&mut self) {
        self.buckets.values_mut().for_each(|bucket| bucket.rows.rewind());
    }

    /// The topics whose rows without a key the next read leaves out.
    pub(super) fn topics_left_out(&mut self, now: Duration) -> Vec<EventTopic> {
        if self.topics.end(now) {
            self.buckets.values_mut().for_each(|bucket| bucket.rows.restart());
        }
        self.topics.left_out()
    }

    /// The sink has this row. Returns whether rows are to be read again.
    pub(super) fn publish(&mut self, sent: &SentRow) -> bool {
        if let Some(event) = self.event(sent) {
            self.topics.succeed(&event);
        }
        let bucket = self.same(sent.bucket, sent.ownership);
        bucket.is_some_and(|bucket| bucket.rows.publish(sent.row.id))
    }

    /// The sink did not take this row.
    pub(super) fn fail(&mut self, failed: &FailedPublication, room: FailingRoom) {
        let (sent, due) = (&failed.sent, failed.again_at(1));
        let (Some(event), Some(bucket)) = (self.event(sent), self.same(sent.bucket, sent.ownership)) else { return };
        let failure = TopicFailure { now: failed.now, due, is_full: bucket.rows.is_full_of_failing(room) };
        if self.topics.fail(&event, failure) {
            self.buckets.values_mut().for_each(|bucket| bucket.rows.leave_out(&event));
        }
        let room = FailingRoom { is_left_out: self.topics.is_left_out(&event), ..room };
        if let Some(bucket) = self.same(sent.bucket, sent.ownership) {
            bucket.rows.fail(sent.row.id, room, |failures| failed.again_at(failures));
        }
    }

    fn event(&mut self, sent: &SentRow) -> Option<Arc<OutgoingEvent>> {
        self.same(sent.bucket, sent.ownership)?.rows.event(sent.row.id)
    }

    /// The rows and bytes that are held.
    pub(super) fn held(&self) -> (usize, usize) {
        let held = self.buckets.values().map(|bucket| (bucket.rows.len(), bucket.rows.bytes()));
        held.fold((0, 0), |(rows, bytes), (more_rows, more_bytes)| (rows + more_rows, bytes + more_bytes))
    }

    /// The number of held rows that have failed.
    pub(super) fn failing(&self) -> usize {
        self.buckets.values().map(|bucket| bucket.rows.failing()).sum()
    }

    /// The room of one bucket for rows that have failed: together half of the room. What is left of deferred rows may
    /// take as many bytes.
    pub(super) fn failing_room(&self, settings: &RelaySettings, until: Duration) -> FailingRoom {
        let share = 2 * self.buckets.len().max(1);
        let rows = (settings.max_held / share).max(MIN_FAILING);
        FailingRoom { rows, bytes: settings.max_held_bytes / share, until, is_left_out: false }
    }
}
