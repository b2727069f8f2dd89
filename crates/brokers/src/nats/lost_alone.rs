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
