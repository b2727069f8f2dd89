//! Whose a return is, whatever confirmation it comes with.

use std::future::{pending, poll_fn, ready};
use std::sync::Arc;

use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPSoftError};
use parking_lot::Mutex;

use super::*;

type Answer = lapin::Result<DriverReply>;

/// Events whose replies a test gives.
#[derive(Default)]
struct Bench {
    events: UnconfirmedEvents,
    answers: BTreeMap<u64, Arc<Mutex<Option<Answer>>>>,
}

impl Bench {
    fn with(events: &[(&str, &str, usize)]) -> Self {
        let mut bench = Self::default();
        for (id, exchange, size) in events {
            let [id, exchange] = [*id, *exchange].map(str::to_owned);
            let event = EventMarks { key: format!("key-{id}"), id, exchange, size: *size };
            let answer: Arc<Mutex<Option<Answer>>> = Arc::default();
            let asked = Arc::clone(&answer);
            let reply = poll_fn(move |_| asked.lock().take().map_or(Poll::Pending, Poll::Ready));
            let number = bench.events.add(event, ready(Ok(reply.boxed())).boxed());
            bench.answers.insert(number, answer);
        }
        bench
    }

    fn sent(ids: &[&str]) -> Self {
        Self::with(&ids.iter().map(|id| (*id, "e", 1)).collect::<Vec<_>>())
    }

    fn confirm(&self, number: u64, returned: Option<&str>) {
        let returned = returned.map(str::to_owned);
        *self.answers[&number].lock() = Some(Ok(DriverReply { word: ReplyWord::Confirmed, returned }));
    }

    fn end(&self, number: u64, error: &lapin::Error) {
        *self.answers[&number].lock() = Some(Err(error.clone()));
    }

    fn look(&mut self, number: u64) -> &'static str {
        match self.events.poll(number, &mut Context::from_waker(Waker::noop())) {
            Poll::Pending => "waits",
            Poll::Ready(EventEnd::Published) => "published",
            Poll::Ready(EventEnd::Returned) => "returned",
            Poll::Ready(EventEnd::NotConfirmed(_)) => "not confirmed",
            Poll::Ready(EventEnd::Unsent(_)) => "unsent",
            Poll::Ready(EventEnd::ChannelEnded { is_cause: true, .. }) => "cause",
            Poll::Ready(EventEnd::ChannelEnded { is_cause: false, .. }) => "ended",
            Poll::Ready(EventEnd::Unclear) => "unclear",
        }
    }

    /// The outcomes of all events of a channel that has ended, asked for from the last one to the first.
    fn outcomes(mut self, error: &lapin::Error) -> Vec<&'static str> {
        let numbers: Vec<u64> = self.answers.keys().rev().copied().collect();
        numbers.iter().for_each(|number| self.end(*number, error));
        let mut words = Vec::new();
        for number in numbers {
            words.insert(0, self.look(number));
            self.events.leave(number);
        }
        words
    }
}

fn ended(kind: AMQPSoftError, said: &str) -> lapin::Error {
    ErrorKind::ProtocolError(AMQPError::new(AMQPErrorKind::Soft(kind), said.into())).into()
}

fn broken() -> lapin::Error {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

/// The broker returned B and confirmed A, and then B.
#[test]
fn a_return_that_comes_with_another_confirmation_counts_for_its_own_event() {
    let mut bench = Bench::sent(&["a", "b"]);
    bench.confirm(1, Some("b"));
    assert_eq!(bench.look(1), "waits", "a return of A may still come with the reply to B");
    bench.confirm(2, None);
    assert_eq!((bench.look(2), bench.look(1)), ("returned", "published"));
}

/// Nobody has asked for the confirmation of A yet.
#[test]
fn a_confirmation_counts_after_those_before_it_were_looked_at() {
    let mut bench = Bench::sent(&["a", "b"]);
    bench.confirm(1, Some("b"));
    bench.confirm(2, None);
    assert_eq!((bench.look(2), bench.look(1)), ("returned", "published"));
}

#[test]
fn two_returns_that_are_exchanged_count_for_both() {
    let mut bench = Bench::sent(&["a", "b", "c"]);
    bench.confirm(1, Some("b"));
    assert_eq!((bench.look(1), bench.look(3)), ("waits", "waits"));
    bench.confirm(2, Some("a"));
    assert_eq!((bench.look(1), bench.look(2)), ("returned", "returned"));
    bench.confirm(3, None);
    assert_eq!(bench.look(3), "published");
}

#[test]
fn an_event_waits_for_no_event_that_was_sent_after_its_reply() {
    let mut bench = Bench::sent(&["a"]);
    bench.confirm(1, Some("gone"));
    let later = EventMarks { id: "b".into(), exchange: "e".into(), key: "k".into(), size: 1 };
    assert_eq!(bench.look(1), "published");
    bench.events.add(later, pending().boxed());
    assert_eq!(bench.look(1), "published");
}

#[test]
fn an_event_that_the_driver_still_sends_may_hide_a_return() {
    let mut bench = Bench::sent(&["a"]);
    let hidden = EventMarks { id: "b".into(), exchange: "e".into(), key: "k".into(), size: 1 };
    let number = bench.events.add(hidden, pending().boxed());
    bench.confirm(1, None);
    assert_eq!(bench.look(1), "waits");
    bench.events.leave(number);
    assert_eq!(bench.look(1), "waits", "also if its publication was given up");
}

#[test]
fn a_return_that_comes_with_a_reply_which_nobody_waits_for_counts() {
    let mut bench = Bench::sent(&["a", "b"]);
    assert_eq!(bench.look(1), "waits");
    bench.events.leave(1);
    bench.confirm(1, Some("b"));
    bench.confirm(2, None);
    assert_eq!(bench.look(2), "returned");
}

#[test]
fn a_confirmed_event_is_unclear_if_the_channel_ends_before_its_return_can_come() {
    let mut bench = Bench::sent(&["a", "b"]);
    bench.confirm(1, Some("b"));
    bench.end(2, &broken());
    assert_eq!((bench.look(1), bench.look(2)), ("unclear", "ended"));
}

#[test]
fn p7_only_the_first_event_of_a_missing_exchange_is_not_published() {
    let missing = ended(AMQPSoftError::NOTFOUND, "NOT_FOUND - no exchange 'b' in vhost '/'");
    let events = [("1", "a", 1), ("2", "b", 2), ("3", "b", 3), ("4", "c", 4)];
    assert_eq!(Bench::with(&events).outcomes(&missing), ["ended", "cause", "ended", "ended"]);
    let denied = ended(AMQPSoftError::ACCESSREFUSED, "ACCESS_REFUSED - write access to exchange 'amq.default' refused");
    assert_eq!(Bench::with(&[("1", "a", 1), ("2", "", 2)]).outcomes(&denied), ["ended", "cause"]);
    let said = "ACCESS_REFUSED - write access to topic 'key-3' in exchange 'b' in vhost '/' refused for user 'u'";
    let denied = ended(AMQPSoftError::ACCESSREFUSED, said);
    assert_eq!(Bench::with(&events).outcomes(&denied), ["ended", "ended", "cause", "ended"]);
    let other = ended(AMQPSoftError::NOTFOUND, "NOT_FOUND - no exchange 'x' in vhost '/'");
    assert_eq!(Bench::with(&events).outcomes(&other), ["ended"; 4]);
}

#[test]
fn p8_the_event_that_is_too_large_is_the_cause() {
    let said = "PRECONDITION_FAILED - message size 30 is larger than configured max size 20";
    let error = ended(AMQPSoftError::PRECONDITIONFAILED, said);
    let events = [("1", "a", 3), ("2", "a", 30), ("3", "a", 300)];
    assert_eq!(Bench::with(&events).outcomes(&error), ["ended", "cause", "ended"]);
}

#[test]
fn p9_another_end_of_a_channel_has_no_cause() {
    assert_eq!(Bench::with(&[("1", "a", 1), ("2", "b", 2)]).outcomes(&broken()), ["ended"; 2]);
}
