//! The events of a channel that have no certain outcome yet, and whose a returned event is.
//!
//! The broker returns an event that no queue takes, and then confirms it. The driver keeps returns in a line, and each
//! confirmation takes the first one, whosever it is. So a return is known by its `message-id`, and a confirmed event is
//! published only once no return can be its own:
//!
//! - Its confirmation came without a return: the line was empty. A return of this event came with an earlier
//!   confirmation, which is ready by now. Only an event that the driver still sends hides its confirmation.
//! - Its confirmation came with the return of another event: the own one may be in the line. Each return in the line is
//!   of an event without a confirmation, and each confirmation takes one. So the line has given everything once each
//!   event has a reply that had been sent by then.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lapin::ErrorKind;

use crate::rabbitmq::connect::code;

/// How the broker names the default exchange.
const DEFAULT_EXCHANGE: &str = "amq.default";

/// What the broker says about an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyWord {
    Confirmed,
    Rejected,
    /// The channel asks for no confirmations.
    NotAsked,
}

/// A reply, as the driver gives it.
#[derive(Debug)]
pub(super) struct DriverReply {
    pub(super) word: ReplyWord,
    /// The `message-id` of the event that was returned with it: this one or another.
    pub(super) returned: Option<String>,
}

/// Waits for the reply to an event.
pub(super) type ReplyFuture = BoxFuture<'static, lapin::Result<DriverReply>>;

/// Sends an event.
pub(super) type SendFuture = BoxFuture<'static, lapin::Result<ReplyFuture>>;

/// How an event has ended.
#[derive(Debug)]
pub(super) enum EventEnd {
    /// Confirmed, and not returned.
    Published,
    /// Returned: nobody has it.
    Returned,
    /// The broker's other word about it.
    NotConfirmed(ReplyWord),
    /// The channel had ended before the event was handed to it.
    Unsent(lapin::Error),
    /// The channel ended without a reply.
    ChannelEnded {
        error: lapin::Error,
        /// Whether this event ended it.
        is_cause: bool,
    },
    /// Confirmed, and the channel ended before it was certain whose the returned events are.
    Unclear,
}

/// The marks of an event by which the words of the broker name it.
#[derive(Clone, Debug)]
pub(super) struct EventMarks {
    /// Its `message-id`.
    pub(super) id: String,
    pub(super) exchange: String,
    /// The routing key.
    pub(super) key: String,
    pub(super) size: usize,
}

enum EventState {
    Sending(SendFuture),
    Waiting(ReplyFuture),
    Replied(DriverReply),
    Unsent(lapin::Error),
    Ended(lapin::Error),
}

struct UnconfirmedEvent {
    event: EventMarks,
    state: EventState,
    /// Wakes the publication. None if it was given up, or has never waited.
    waker: Option<Waker>,
    is_returned: bool,
    /// The last event that had been sent when the reply was seen.
    horizon: u64,
}

/// The events of a channel, in the order in which they were sent.
#[derive(Default)]
pub(super) struct UnconfirmedEvents {
    last: u64,
    sent: BTreeMap<u64, UnconfirmedEvent>,
    has_ended: bool,
    /// The event that ended the channel, once that was asked for.
    cause: Option<Option<u64>>,
}

impl EventState {
    /// Goes on as far as possible. Returns whether it has changed.
    fn advance(&mut self, context: &mut Context<'_>) -> bool {
        let mut has_changed = false;
        loop {
            let next = match self {
                Self::Sending(sending) => match sending.poll_unpin(context) {
                    Poll::Ready(Ok(reply)) => Self::Waiting(reply),
                    Poll::Ready(Err(error)) if is_unsent(&error) => Self::Unsent(error),
                    Poll::Ready(Err(error)) => Self::Ended(error),
                    Poll::Pending => return has_changed,
                },
                Self::Waiting(reply) => match reply.poll_unpin(context) {
                    Poll::Ready(Ok(reply)) => Self::Replied(reply),
                    Poll::Ready(Err(error)) => Self::Ended(error),
                    Poll::Pending => return has_changed,
                },
                Self::Replied(_) | Self::Unsent(_) | Self::Ended(_) => return has_changed,
            };
            *self = next;
            has_changed = true;
        }
    }

    fn is_sending(&self) -> bool {
        matches!(self, Self::Sending(_))
    }

    fn has_reply(&self) -> bool {
        !matches!(self, Self::Sending(_) | Self::Waiting(_))
    }

    /// Whether the broker may have ended the channel because of this event.
    fn is_suspect(&self) -> bool {
        !matches!(self, Self::Replied(_) | Self::Unsent(_))
    }
}

/// Whether the channel had ended before the event was handed to it.
fn is_unsent(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidConnectionState(_))
}

impl UnconfirmedEvents {
    /// Adds an event. The caller polls it under the same lock: the driver's numbers must have the order of the frames.
    pub(super) fn add(&mut self, event: EventMarks, sending: SendFuture) -> u64 {
        self.last += 1;
        let state = EventState::Sending(sending);
        self.sent.insert(self.last, UnconfirmedEvent { event, state, waker: None, is_returned: false, horizon: 0 });
        self.last
    }

    /// Waits until the outcome of an event is certain.
    pub(super) fn poll(&mut self, number: u64, context: &mut Context<'_>) -> Poll<EventEnd> {
        if let Some(event) = self.sent.get_mut(&number) {
            event.waker = Some(context.waker().clone());
        }
        self.advance(number, context.waker());
        if !self.sent.get(&number).is_some_and(|event| event.state.has_reply()) {
            return Poll::Pending;
        }
        // Every confirmation before this one is ready.
        let numbers: Vec<u64> = self.sent.keys().copied().collect();
        for other in numbers {
            self.advance(other, context.waker());
        }
        self.decide(number)
    }

    /// The publication has ended or is given up. An event without a reply is kept: a return may come with its reply.
    pub(super) fn leave(&mut self, number: u64) {
        if let Some(event) = self.sent.get_mut(&number) {
            event.waker = None;
            if event.state.has_reply() {
                self.sent.remove(&number);
            }
        }
        // They may have waited for this one, or it for them.
        self.wake_replied();
    }

    fn advance(&mut self, number: u64, poller: &Waker) {
        let horizon = self.last;
        let Some(event) = self.sent.get_mut(&number) else { return };
        let waker = event.waker.clone().unwrap_or_else(|| poller.clone());
        if !event.state.advance(&mut Context::from_waker(&waker)) {
            return;
        }
        match &event.state {
            EventState::Replied(reply) => {
                event.horizon = horizon;
                if let Some(id) = reply.returned.clone() {
                    self.note_return(&id);
                }
            }
            EventState::Ended(_) => self.has_ended = true,
            EventState::Sending(_) | EventState::Waiting(_) | EventState::Unsent(_) => {}
        }
        self.wake_replied();
    }

    fn note_return(&mut self, id: &str) {
        for event in self.sent.values_mut().filter(|event| event.event.id == id) {
            event.is_returned = true;
        }
    }

    fn wake_replied(&self) {
        let replied = self.sent.values().filter(|event| event.state.has_reply());
        replied.filter_map(|event| event.waker.as_ref()).for_each(Waker::wake_by_ref);
    }

    /// The outcome of an event with a reply, after all others went on.
    fn decide(&mut self, number: u64) -> Poll<EventEnd> {
        let Some(event) = self.sent.get(&number) else { return Poll::Ready(EventEnd::Unclear) };
        let reply = match &event.state {
            EventState::Sending(_) | EventState::Waiting(_) => return Poll::Pending,
            EventState::Unsent(error) => return Poll::Ready(EventEnd::Unsent(error.clone())),
            EventState::Ended(error) => {
                let error = error.clone();
                let is_cause = self.is_cause(number, &error);
                return Poll::Ready(EventEnd::ChannelEnded { error, is_cause });
            }
            EventState::Replied(reply) => reply,
        };
        match reply.word {
            ReplyWord::Confirmed => {}
            ReplyWord::Rejected | ReplyWord::NotAsked => return Poll::Ready(EventEnd::NotConfirmed(reply.word)),
        }
        if event.is_returned {
            return Poll::Ready(EventEnd::Returned);
        }
        if self.has_ended {
            return Poll::Ready(EventEnd::Unclear);
        }
        let mut sent = self.sent.range(..=event.horizon).map(|(_, other)| &other.state);
        let is_open = match reply.returned {
            None => sent.any(EventState::is_sending),
            Some(_) => sent.any(|state| !state.has_reply()),
        };
        if is_open { Poll::Pending } else { Poll::Ready(EventEnd::Published) }
    }

    /// Whether this event ended the channel. The broker names none: it tells the exchange, sometimes the
    /// routing key, or the size.
    fn is_cause(&mut self, number: u64, error: &lapin::Error) -> bool {
        let said = error.to_string();
        let is_meant = |event: &EventMarks| match code(error) {
            Some(403 | 404) => {
                let name = if event.exchange.is_empty() { DEFAULT_EXCHANGE } else { &event.exchange };
                let is_of_key = !said.contains("access to topic '")
                    || said.contains(&format!("access to topic '{}' in exchange", event.key));
                is_of_key && said.contains(&format!("exchange '{name}'"))
            }
            Some(406) => said.contains(&format!("message size {} ", event.size)),
            _ => false,
        };
        let found = || {
            let open = self.sent.iter().filter(|(_, event)| event.state.is_suspect());
            let mut meant = open.filter(|(_, event)| is_meant(&event.event)).map(|(number, _)| *number);
            meant.next()
        };
        let cause = self.cause.unwrap_or_else(found);
        self.cause = Some(cause);
        cause == Some(number)
    }
}

#[cfg(test)]
mod tests;
