//! The rows of `outcomes.md` that begin with a reply of the broker.

use std::time::Duration;

use hapax_core::outbox::Published;

use super::unconfirmed::{EventEnd, ReplyWord};
use crate::errors::{not_applied, unknown};
use crate::rabbitmq::connect::code;
use crate::sinks::not_published;

/// How long to wait after an event that only an operator can help.
const OPERATOR_PAUSE: Duration = Duration::from_secs(1);

/// What the end of an event means: P3 to P9.
pub(super) fn of_end(end: EventEnd, target: &str) -> Published {
    match end {
        EventEnd::Unsent(error) => not_published(not_applied("the channel has ended").caused_by(error)), // P3
        EventEnd::Published => Published::Yes { caught: false },                                         // P4
        EventEnd::Returned => Published::NotPublished {
            after: OPERATOR_PAUSE,
            cause: not_applied(format!("no queue takes an event for {target}: bind one")), // P5
        },
        EventEnd::NotConfirmed(ReplyWord::Rejected) => Published::Unknown(unknown(format!(
            "the broker rejected an event for {target}: a queue is full or has no leader, and others may have the event"
        ))), // P6
        // The channel asks for confirmations.
        EventEnd::NotConfirmed(ReplyWord::NotAsked | ReplyWord::Confirmed) => {
            Published::Unknown(unknown("the broker confirms nothing"))
        }
        EventEnd::ChannelEnded { error, is_cause: true } if code(&error) == Some(406) => {
            Published::Refused(format!("the event for {target} is larger than the broker takes: {error}")) // P8
        }
        EventEnd::ChannelEnded { error, is_cause: true } => {
            let cause = not_applied(format!("the broker takes no event for {target}")).caused_by(error);
            Published::NotPublished { after: OPERATOR_PAUSE, cause } // P7
        }
        EventEnd::ChannelEnded { error, is_cause: false } => {
            let message = format!("the channel ended before an event for {target} was confirmed");
            Published::Unknown(unknown(message).caused_by(error)) // P9
        }
        EventEnd::Unclear => Published::Unknown(unknown(format!(
            "the channel ended before it was certain whether a queue took an event for {target}"
        ))), // P9
    }
}

/// No reply: P9.
pub(super) fn silent(target: &str) -> Published {
    Published::Unknown(unknown(format!("the broker did not confirm an event for {target} in time")))
}

#[cfg(test)]
mod tests {
    use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPSoftError};

    use super::*;

    fn word(end: EventEnd) -> &'static str {
        match of_end(end, "t") {
            Published::Yes { .. } => "yes",
            Published::NotPublished { .. } => "not published",
            Published::Unknown(_) => "unknown",
            Published::Refused(_) => "refused",
        }
    }

    fn ended(kind: AMQPSoftError, is_cause: bool) -> EventEnd {
        let error = AMQPError::new(AMQPErrorKind::Soft(kind), "said".into());
        EventEnd::ChannelEnded { error: lapin::ErrorKind::ProtocolError(error).into(), is_cause }
    }

    #[test]
    fn p4_p6_a_confirmation_counts_unless_it_was_returned_and_a_rejection_is_unknown() {
        assert_eq!(word(EventEnd::Published), "yes");
        assert_eq!(word(EventEnd::Returned), "not published");
        assert_eq!(word(EventEnd::NotConfirmed(ReplyWord::Rejected)), "unknown");
        assert_eq!(word(EventEnd::NotConfirmed(ReplyWord::NotAsked)), "unknown");
    }

    #[test]
    fn p7_p9_the_end_of_a_channel_is_unknown_for_all_but_its_cause() {
        assert_eq!(word(ended(AMQPSoftError::NOTFOUND, true)), "not published");
        assert_eq!(word(ended(AMQPSoftError::PRECONDITIONFAILED, true)), "refused");
        assert_eq!(word(ended(AMQPSoftError::NOTFOUND, false)), "unknown");
        assert_eq!(word(EventEnd::Unclear), "unknown");
    }
}
