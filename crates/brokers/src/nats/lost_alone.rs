//! Tells a message that never arrives from one that is late. The connection breaks each time the server sends a message
//! that the driver cannot read. No worker ever gets such a message, so the order need not wait for it.
//!
//! A loss does not tell which message was lost. But the server sends a message again after its lease, and those first
//! whose lease ended first. So if one message was lost alone, none has arrived in its place, and after its lease one is
//! lost alone again, it is the same one.

use std::collections::VecDeque;
use std::time::Duration;

use async_nats::jetstream::consumer;

use super::connect;
use super::losses::{SLACK, comes_again};

/// A message that has not been lost again after this many leases has arrived or is gone.
const FORGOTTEN: u32 = 10;

/// The messages that were lost alone.
pub(super) struct LostAlone {
    /// How many deliveries the server has made, as far as is known here.
    deliveries: u64,
    /// The deliveries that the last request may still bring.
    unanswered: usize,
    /// The earliest loss first.
    losses: VecDeque<LoneLoss>,
}

/// The loss of a message between two times.
struct LoneLoss {
    heard: Duration,
    noted: Duration,
    /// Whether the message was lost before.
    is_again: bool,
}

impl LostAlone {
    pub(super) fn new(info: &consumer::Info) -> Self {
        Self { deliveries: info.delivered.consumer_sequence, unanswered: 0, losses: VecDeque::new() }
    }

    /// Notes a request for at most this many messages. 0: the last request has ended.
    pub(super) fn asked(&mut self, messages: usize) {
        self.unanswered = messages;
    }

    /// Notes the arrival of the delivery with this number.
    pub(super) fn arrived(&mut self, number: u64) {
        self.deliveries = self.deliveries.max(number);
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    /// Notes lost messages that were found in another way.
    pub(super) fn found(&mut self, messages: usize) {
        self.unanswered = self.unanswered.saturating_sub(messages);
    }

    /// Notes the arrival of a message that was missing.
    pub(super) fn came_again(&mut self, at: Duration, lease: Duration) {
        if self.losses.front().is_some_and(|loss| loss.heard + lease <= at) {
            self.losses.pop_front();
        }
    }

    /// Notes that the request was cut off. `heard` is when the server was heard last before. Returns whether only a
    /// message was lost that had been lost alone before.
    pub(super) fn cut(&mut self, info: &consumer::Info, heard: Duration, now: Duration) -> bool {
        let sent = info.delivered.consumer_sequence;
        let lost = sent.saturating_sub(self.deliveries).min(self.unanswered as u64);
        (self.deliveries, self.unanswered) = (sent, 0);
        let longest = FORGOTTEN * (comes_again(&info.config) + SLACK);
        self.losses.retain(|loss| now.saturating_sub(loss.noted) <= longest);
        if lost != 1 {
            return false;
        }
        let lease = connect::lease(&info.config);
        let is_again = self.losses.front().is_some_and(|earlier| earlier.heard + lease <= now);
        if is_again {
            self.losses.pop_front();
        }
        self.losses.push_back(LoneLoss { heard, noted: now, is_again });
        is_again
    }

    /// Notes that nothing is missing.
    pub(super) fn nothing_is_missing(&mut self) {
        self.losses.clear();
    }

    /// How many messages were lost alone more than once.
    pub(super) fn lost_again(&self) -> usize {
        self.losses.iter().filter(|loss| loss.is_again).count()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// After this many deliveries, of a consumer that waits 30 s for an acknowledgement.
    fn info(deliveries: u64) -> consumer::Info {
        let sequences = |consumer| json!({ "consumer_seq": consumer, "stream_seq": 9 });
        serde_json::from_value(json!({
            "stream_name": "s", "name": "d", "created": "2026-01-01T00:00:00Z", "delivered": sequences(deliveries),
            "config": { "deliver_policy": "all", "ack_policy": "explicit", "replay_policy": "instant",
                "ack_wait": 30_000_000_000_u64, "num_replicas": 1 },
            "ack_floor": sequences(0), "num_ack_pending": 1, "num_redelivered": 0, "num_waiting": 0, "num_pending": 0,
        }))
        .unwrap()
    }

    /// Asks for so many, and is cut off after this delivery was sent.
    fn cut(lost: &mut LostAlone, asked: usize, sent: u64, now: u64) -> bool {
        lost.asked(asked);
        lost.cut(&info(sent), seconds(now), seconds(now))
    }

    #[test]
    fn a_message_that_is_lost_alone_again_after_its_lease_never_arrives() {
        let mut lost = LostAlone::new(&info(0));
        assert!(!cut(&mut lost, 10, 10, 0), "among others");
        assert!(!cut(&mut lost, 1, 11, 35));
        lost.arrived(12);
        lost.came_again(seconds(36), seconds(30));
        assert!(cut(&mut lost, 1, 13, 70));
        assert_eq!(lost.lost_again(), 1);
        assert!(cut(&mut lost, 1, 14, 100));
        assert_eq!(lost.lost_again(), 1);
    }

    #[test]
    fn a_message_that_arrives_after_its_lease_was_only_late() {
        let mut lost = LostAlone::new(&info(0));
        assert!(!cut(&mut lost, 1, 1, 0));
        lost.arrived(2);
        lost.came_again(seconds(30), seconds(30));
        assert!(!cut(&mut lost, 1, 3, 70), "it is another one");
    }

    #[test]
    fn a_loss_before_the_lease_or_of_none_or_of_several_is_of_others() {
        let mut lost = LostAlone::new(&info(0));
        assert!(!cut(&mut lost, 1, 1, 0));
        assert!(!cut(&mut lost, 1, 2, 29));
        assert!(!cut(&mut lost, 1, 2, 40), "nothing was sent");
        assert!(!cut(&mut lost, 5, 4, 40));
        assert!(!cut(&mut lost, 0, 5, 40), "another worker got it");
        lost.asked(1);
        lost.found(1);
        assert!(!lost.cut(&info(6), seconds(40), seconds(40)));
        assert!(cut(&mut lost, 1, 7, 40));
    }

    #[test]
    fn several_messages_are_told_apart_by_the_times_of_their_losses() {
        let mut lost = LostAlone::new(&info(0));
        for (sent, now, is_again) in [(1, 0, false), (2, 10, false), (3, 31, true), (4, 41, true)] {
            assert_eq!(cut(&mut lost, 1, sent, now), is_again, "at {now}");
        }
        assert_eq!(lost.lost_again(), 2);
        assert!(!cut(&mut lost, 1, 5, 60));
        lost.nothing_is_missing();
        assert!(!cut(&mut lost, 1, 6, 100));
    }

    #[test]
    fn a_loss_is_forgotten_after_ten_leases() {
        let mut lost = LostAlone::new(&info(0));
        assert!(!cut(&mut lost, 1, 1, 0));
        assert!(!cut(&mut lost, 1, 2, 351));
    }
}
