//! Losses of the connection. One message that the driver cannot read makes it drop the connection each time the server
//! sends that message, and what the server sends behind it is lost with it.

use std::time::Duration;

use async_nats::jetstream::consumer;
use hapax_core::Error;
use tracing::error;

/// How much longer a redelivery may take than the server waits for an acknowledgement.
pub(super) const SLACK: Duration = Duration::from_secs(5);

/// How long the server waits for an acknowledgement at most before it sends a message again.
pub(super) fn comes_again(config: &consumer::Config) -> Duration {
    config.backoff.iter().max().copied().unwrap_or(config.ack_wait)
}

/// The losses of the connection while messages were asked for.
pub(super) struct Losses {
    /// How often the connection had been made at the last look.
    connects: u64,
    /// Whether nothing has arrived since the last loss.
    has_lost: bool,
    lost_at: Option<Duration>,
    /// The first sequence that the consumer had not finished at the last loss.
    suspect: Option<u64>,
    alone_until: Duration,
}

impl Losses {
    /// For a client that has connected so often.
    pub(super) fn new(connects: u64) -> Self {
        Self { connects, has_lost: false, lost_at: None, suspect: None, alone_until: Duration::ZERO }
    }

    pub(super) fn arrived(&mut self) {
        self.has_lost = false;
    }

    /// Whether to ask for one message at a time, so that one that cannot be read takes no others with it.
    pub(super) fn asks_alone(&self, now: Duration) -> bool {
        self.has_lost || now < self.alone_until
    }

    /// Notes a new loss, and logs the message that may be the cause, if it could not be read.
    pub(super) fn check(&mut self, connects: u64, now: Duration, info: &consumer::Info, unread: Option<&Error>) {
        let is_busy = info.num_ack_pending > 0 || info.num_pending > 0;
        let unfinished = is_busy.then_some(info.ack_floor.stream_sequence + 1);
        let suspect = self.note(connects, now, comes_again(&info.config), unfinished);
        if let (Some(sequence), Some(error)) = (suspect, unread) {
            let (stream, durable) = (&info.stream_name, &info.name);
            error!(
                stream,
                durable,
                sequence,
                ?error,
                "the connection to NATS is lost again and again while messages arrive, and the first unfinished one \
                 stays the same: perhaps its headers are broken, and the worker cannot read it. It becomes a dead \
                 letter if this user may publish to `$JS.API.STREAM.MSG.GET.{stream}`. Or look at it with `nats stream \
                 get {stream} {sequence}`, and if its headers are broken, delete it with `nats stream rmm {stream} \
                 {sequence}`. Until then the worker asks for one message at a time"
            );
        }
    }

    /// The suspect, if the connection is lost again and again. The server sends a message again after `comes_again`.
    fn note(&mut self, connects: u64, now: Duration, comes_again: Duration, unfinished: Option<u64>) -> Option<u64> {
        if connects == self.connects {
            return None;
        }
        let is_soon = self.lost_at.is_some_and(|at| now.saturating_sub(at) <= 2 * (comes_again + SLACK));
        let is_repeated = is_soon || connects > self.connects + 1;
        self.connects = connects;
        self.has_lost = true;
        self.lost_at = Some(now);
        let is_same = unfinished == self.suspect;
        self.suspect = unfinished;
        if !is_repeated {
            return None;
        }
        // The messages that were lost arrive again together with it.
        self.alone_until = now + 2 * (comes_again + SLACK);
        unfinished.filter(|_| is_same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACK_WAIT: Duration = Duration::from_secs(30);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn after_one_loss_one_message_is_asked_for_until_something_arrives() {
        let mut losses = Losses::new(1);
        assert_eq!(losses.note(1, seconds(1), ACK_WAIT, Some(1)), None);
        assert!(!losses.asks_alone(seconds(1)), "the connection was not lost");
        assert_eq!(losses.note(2, seconds(2), ACK_WAIT, Some(1)), None);
        assert!(losses.asks_alone(seconds(2)));
        losses.arrived();
        assert!(!losses.asks_alone(seconds(2)));
    }

    #[test]
    fn a_message_that_is_unfinished_at_loss_after_loss_is_named_and_asked_for_alone_when_it_comes_again() {
        let mut losses = Losses::new(1);
        assert_eq!(losses.note(2, seconds(100), ACK_WAIT, Some(7)), None);
        assert_eq!(losses.note(3, seconds(132), ACK_WAIT, Some(7)), Some(7));
        losses.arrived();
        assert!(losses.asks_alone(seconds(132 + 35)), "its neighbours would be lost again");
        assert!(!losses.asks_alone(seconds(132 + 90)));
    }

    #[test]
    fn several_losses_during_one_request_count_as_repeated() {
        let mut losses = Losses::new(1);
        assert_eq!(losses.note(4, seconds(10), ACK_WAIT, Some(7)), None, "nothing is suspected yet");
        losses.arrived();
        assert!(losses.asks_alone(seconds(50)));
    }

    #[test]
    fn two_restarts_of_a_server_name_no_message_that_was_finished_meanwhile() {
        for (first, second) in [(Some(7), Some(10)), (Some(7), None), (None, None)] {
            let mut losses = Losses::new(1);
            assert_eq!(losses.note(2, seconds(100), ACK_WAIT, first), None);
            assert_eq!(losses.note(3, seconds(110), ACK_WAIT, second), None);
        }
    }
}
