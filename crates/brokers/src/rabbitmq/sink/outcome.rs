//! The rows of `outcomes.md` that begin with a reply of the broker.

use std::collections::BTreeMap;
use std::time::Duration;

use hapax_core::outbox::Published;
use lapin::Confirmation;

use crate::errors::{not_applied, unknown};
use crate::rabbitmq::connect::code;

/// How long to wait after an event that only an operator can help.
const OPERATOR_PAUSE: Duration = Duration::from_secs(1);

/// How the broker names the default exchange.
const DEFAULT_EXCHANGE: &str = "amq.default";

/// An event that was sent on a channel and is not confirmed.
#[derive(Clone, Debug)]
pub(super) struct UnconfirmedEvent {
    pub(super) exchange: String,
    pub(super) size: usize,
}

/// The events of a channel that are not confirmed, in the order in which they were sent.
#[derive(Debug, Default)]
pub(super) struct UnconfirmedEvents {
    last: u64,
    sent: BTreeMap<u64, UnconfirmedEvent>,
    /// The event that ended the channel, once it has ended.
    cause: Option<Option<u64>>,
}

impl UnconfirmedEvents {
    pub(super) fn add(&mut self, event: UnconfirmedEvent) -> u64 {
        self.last += 1;
        self.sent.insert(self.last, event);
        self.last
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.sent.remove(&number);
    }

    /// Whether this event ended the channel. The broker names none: it tells the exchange, or the size.
    fn is_cause(&mut self, number: u64, error: &lapin::Error) -> bool {
        let said = error.to_string();
        let is_meant = |event: &UnconfirmedEvent| match code(error) {
            Some(403 | 404) => {
                let name = if event.exchange.is_empty() { DEFAULT_EXCHANGE } else { &event.exchange };
                said.contains(&format!("exchange '{name}'"))
            }
            Some(406) => said.contains(&format!("message size {} ", event.size)),
            _ => false,
        };
        let found = || self.sent.iter().find(|(_, event)| is_meant(event)).map(|(number, _)| *number);
        let cause = self.cause.unwrap_or_else(found);
        self.cause = Some(cause);
        cause == Some(number)
    }
}

/// What the broker's reply means: P4 to P6.
pub(super) fn of_confirmation(confirmation: Confirmation, target: &str) -> Published {
    match confirmation {
        Confirmation::Ack(None) => Published::Yes { caught: false }, // P4
        Confirmation::Ack(Some(_)) => Published::NotPublished {
            after: OPERATOR_PAUSE,
            cause: not_applied(format!("no queue takes an event for {target}: bind one")), // P5
        },
        Confirmation::Nack(_) => Published::Unknown(unknown(format!(
            "the broker rejected an event for {target}: a queue is full or has no leader, and others may have the event"
        ))), // P6
        // The channel asks for confirmations.
        Confirmation::NotRequested => Published::Unknown(unknown("the broker confirms nothing")),
    }
}

/// What the end of a channel means for an event on it: P7 to P9.
pub(super) fn of_end(events: &mut UnconfirmedEvents, number: u64, error: lapin::Error, target: &str) -> Published {
    if !events.is_cause(number, &error) {
        let message = format!("the channel ended before an event for {target} was confirmed");
        return Published::Unknown(unknown(message).caused_by(error)); // P9
    }
    if code(&error) == Some(406) {
        return Published::Refused(format!("the event for {target} is larger than the broker takes: {error}")); // P8
    }
    let cause = not_applied(format!("the broker takes no event for {target}")).caused_by(error);
    Published::NotPublished { after: OPERATOR_PAUSE, cause } // P7
}

/// No reply: P9.
pub(super) fn silent(target: &str) -> Published {
    Published::Unknown(unknown(format!("the broker did not confirm an event for {target} in time")))
}

#[cfg(test)]
mod tests {
    use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPSoftError};

    use super::*;

    fn word(published: &Published) -> &'static str {
        match published {
            Published::Yes { .. } => "yes",
            Published::NotPublished { .. } => "not published",
            Published::Unknown(_) => "unknown",
            Published::Refused(_) => "refused",
        }
    }

    fn ended(kind: AMQPSoftError, said: &str) -> lapin::Error {
        lapin::ErrorKind::ProtocolError(AMQPError::new(AMQPErrorKind::Soft(kind), said.into())).into()
    }

    fn sent(events: &[(&str, usize)]) -> UnconfirmedEvents {
        let mut unconfirmed = UnconfirmedEvents::default();
        for (exchange, size) in events {
            unconfirmed.add(UnconfirmedEvent { exchange: (*exchange).to_owned(), size: *size });
        }
        unconfirmed
    }

    /// The outcomes of all events of a channel that has ended, asked for from the last one to the first.
    fn outcomes(mut events: UnconfirmedEvents, error: &lapin::Error) -> Vec<&'static str> {
        let numbers: Vec<u64> = events.sent.keys().rev().copied().collect();
        let mut words = Vec::new();
        for number in numbers {
            words.insert(0, word(&of_end(&mut events, number, error.clone(), "t")));
            events.remove(number);
        }
        words
    }

    #[test]
    fn p4_p6_a_confirmation_counts_and_a_rejection_is_unknown() {
        assert_eq!(word(&of_confirmation(Confirmation::Ack(None), "t")), "yes");
        assert_eq!(word(&of_confirmation(Confirmation::Nack(None), "t")), "unknown");
        assert_eq!(word(&of_confirmation(Confirmation::NotRequested, "t")), "unknown");
    }

    #[test]
    fn p7_only_the_first_event_of_a_missing_exchange_is_not_published() {
        let missing = ended(AMQPSoftError::NOTFOUND, "NOT_FOUND - no exchange 'b' in vhost '/'");
        let events = [("a", 1), ("b", 2), ("b", 3), ("c", 4)];
        assert_eq!(outcomes(sent(&events), &missing), ["unknown", "not published", "unknown", "unknown"]);
        let denied =
            ended(AMQPSoftError::ACCESSREFUSED, "ACCESS_REFUSED - write access to exchange 'amq.default' refused");
        assert_eq!(outcomes(sent(&[("a", 1), ("", 2)]), &denied), ["unknown", "not published"]);
        let other = ended(AMQPSoftError::NOTFOUND, "NOT_FOUND - no exchange 'x' in vhost '/'");
        assert_eq!(outcomes(sent(&events), &other), ["unknown"; 4]);
    }

    #[test]
    fn p8_the_event_that_is_too_large_is_refused() {
        let said = "PRECONDITION_FAILED - message size 30 is larger than configured max size 20";
        let error = ended(AMQPSoftError::PRECONDITIONFAILED, said);
        assert_eq!(outcomes(sent(&[("a", 3), ("a", 30), ("a", 300)]), &error), ["unknown", "refused", "unknown"]);
    }

    #[test]
    fn p9_another_end_of_a_channel_is_unknown_for_all() {
        let error: lapin::Error = std::io::Error::from(std::io::ErrorKind::ConnectionReset).into();
        assert_eq!(outcomes(sent(&[("a", 1), ("b", 2)]), &error), ["unknown"; 2]);
        assert_eq!(word(&silent("t")), "unknown");
    }
}
