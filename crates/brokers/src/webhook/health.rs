//! Whether an endpoint is tried now. Pure: it reads no clock.

use std::collections::BTreeSet;
use std::time::Duration;

use hapax_core::EventId;

use crate::webhook::answers::{EndpointSign, EventFate, Meaning};

/// After so many failures in a row an endpoint gets one request at a time.
const FAILURES: u32 = 5;

/// So many events in a row may be the fault of the events. If the endpoint does not take a further one either, it takes
/// nothing.
const DISLIKED: usize = 5;

/// The pauses between the requests of an endpoint that fails.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How long others wait at most before they ask again, while a probe finds out whether the endpoint works again. The
/// probe may succeed at any moment.
const WHILE_PROBED: Duration = Duration::from_secs(1);

/// What the last requests have shown about an endpoint.
#[derive(Debug, Default)]
pub(super) struct EndpointHealth {
    failures: u32,
    /// Set while the endpoint fails.
    breaker: Option<EndpointBreaker>,
    /// The events that it did not take since it last took one.
    disliked: BTreeSet<EventId>,
    /// It gets nothing before.
    held_until: Duration,
}

#[derive(Clone, Copy, Debug)]
struct EndpointBreaker {
    probe_at: Duration,
    pause: Duration,
    /// Whether a probe runs. The next one may start at `probe_at` also if this one never ends.
    is_probed: bool,
}

/// Whether a request may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Start(RequestTicket),
    /// Not before this time has passed.
    Wait(Duration),
}

/// Says of which kind a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestTicket {
    /// Whether it finds out if the endpoint works again.
    is_probe: bool,
}

/// What changed with the end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthChange {
    None,
    /// The endpoint fails: it gets one request at a time.
    Opened,
    /// It works again.
    Closed,
}

impl EndpointHealth {
    /// How long a request has to wait at least; zero if one may start.
    pub(super) fn wait(&self, now: Duration) -> Duration {
        let held = self.held_until.saturating_sub(now);
        let Some(EndpointBreaker { probe_at, is_probed, .. }) = self.breaker else { return held };
        let wait = probe_at.saturating_sub(now);
        held.max(if is_probed { wait.min(WHILE_PROBED) } else { wait })
    }

    /// Lets a request start, or says how long to wait. `time_limit` is that of the request.
    pub(super) fn admit(&mut self, now: Duration, time_limit: Duration) -> Admission {
        let wait = self.wait(now);
        if !wait.is_zero() {
            return Admission::Wait(wait);
        }
        if let Some(breaker) = &mut self.breaker {
            // Until its end is known, and for the case that it never is.
            breaker.probe_at = now + time_limit + breaker.pause;
            breaker.is_probed = true;
        }
        Admission::Start(RequestTicket { is_probe: self.breaker.is_some() })
    }

    /// Takes what the end of a request means, and says what becomes of the event.
    pub(super) fn take(
        &mut self,
        ticket: RequestTicket,
        event: EventId,
        meaning: Meaning,
        now: Duration,
    ) -> (EventFate, HealthChange) {
        let mut fate = meaning.event;
        let change = match meaning.endpoint {
            EndpointSign::Works => self.close(meaning.event == EventFate::Taken),
            // It answers, so it works: it only asks for a pause.
            EndpointSign::Busy => {
                self.hold(now + meaning.after);
                self.close(false)
            }
            EndpointSign::Silent => self.close(false),
            EndpointSign::Fails => {
                self.hold(now + meaning.after);
                self.fail(ticket, now)
            }
            EndpointSign::DislikesEvent if self.takes_nothing(event) => {
                // The endpoint is at fault, not the event: keep the event, and open the breaker at once.
                fate = EventFate::NotTaken;
                self.failures = FAILURES;
                self.fail(ticket, now)
            }
            EndpointSign::DislikesEvent => self.close(false),
        };
        (fate, change)
    }

    /// Whether enough other events were not taken. If not, notes this one.
    fn takes_nothing(&mut self, event: EventId) -> bool {
        if self.disliked.len() >= DISLIKED && !self.disliked.contains(&event) {
            return true;
        }
        self.disliked.insert(event);
        false
    }

    fn hold(&mut self, until: Duration) {
        self.held_until = self.held_until.max(until);
    }

    fn close(&mut self, is_taken: bool) -> HealthChange {
        self.failures = 0;
        // A refusal shows that the endpoint answers, but not that it takes any event.
        if is_taken {
            self.disliked.clear();
        }
        match self.breaker.take() {
            Some(_) => HealthChange::Closed,
            None => HealthChange::None,
        }
    }

    fn fail(&mut self, ticket: RequestTicket, now: Duration) -> HealthChange {
        self.failures = self.failures.saturating_add(1);
        match &mut self.breaker {
            Some(breaker) if ticket.is_probe => {
                breaker.pause = (breaker.pause * 2).min(LONGEST_PAUSE);
                breaker.probe_at = now + breaker.pause;
                breaker.is_probed = false;
                HealthChange::None
            }
            // It began before the breaker opened, and shows nothing new.
            Some(_) => HealthChange::None,
            None if self.failures >= FAILURES => {
                let (probe_at, pause) = (now + FIRST_PAUSE, FIRST_PAUSE);
                self.breaker = Some(EndpointBreaker { probe_at, pause, is_probed: false });
                HealthChange::Opened
            }
            None => HealthChange::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMIT: Duration = Duration::from_secs(15);
    const FAILS: Meaning = meaning(EventFate::Unknown, EndpointSign::Fails);
    const WORKS: Meaning = meaning(EventFate::Taken, EndpointSign::Works);
    const DISLIKES: Meaning = meaning(EventFate::NeverTaken, EndpointSign::DislikesEvent);

    const fn meaning(event: EventFate, endpoint: EndpointSign) -> Meaning {
        Meaning { event, endpoint, after: Duration::ZERO }
    }

    fn event(number: u8) -> EventId {
        EventId::from_bytes([number; 16])
    }

    fn start(health: &mut EndpointHealth, now: Duration) -> RequestTicket {
        match health.admit(now, LIMIT) {
            Admission::Start(ticket) => ticket,
            Admission::Wait(wait) => panic!("it has to wait for {wait:?}"),
        }
    }

    fn run(health: &mut EndpointHealth, meaning: Meaning, now: Duration) -> (EventFate, HealthChange) {
        let ticket = start(health, now);
        health.take(ticket, event(0), meaning, now)
    }

    /// Fails until the breaker opens, at this time.
    fn open(now: Duration) -> EndpointHealth {
        let mut health = EndpointHealth::default();
        for _ in 1..FAILURES {
            assert_eq!(run(&mut health, FAILS, now).1, HealthChange::None);
        }
        assert_eq!(run(&mut health, FAILS, now).1, HealthChange::Opened);
        health
    }

    #[test]
    fn five_failures_in_a_row_open_the_breaker_and_one_success_resets_the_count() {
        let mut health = EndpointHealth::default();
        for _ in 1..FAILURES {
            run(&mut health, FAILS, SECOND);
        }
        run(&mut health, WORKS, SECOND);
        for _ in 1..FAILURES {
            assert_eq!(run(&mut health, FAILS, SECOND).1, HealthChange::None);
        }
        assert_eq!(run(&mut health, FAILS, SECOND).1, HealthChange::Opened);
        assert_eq!(health.admit(SECOND * 3 / 2, LIMIT), Admission::Wait(SECOND / 2));
    }

    #[test]
    fn an_open_breaker_lets_one_request_start_after_pauses_that_double_up_to_a_minute() {
        let (mut health, mut now, mut pauses) = (open(Duration::ZERO), Duration::ZERO, Vec::new());
        for _ in 0..8 {
            let pause = health.wait(now);
            pauses.push(pause.as_secs());
            now += pause;
            let probe = start(&mut health, now);
            let almost = now + LIMIT + pause - SECOND / 10;
            assert!(matches!(health.admit(almost, LIMIT), Admission::Wait(_)), "nobody else starts meanwhile");
            health.take(probe, event(0), FAILS, now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        now += Duration::from_secs(60);
        assert_eq!(run(&mut health, WORKS, now).1, HealthChange::Closed);
        assert!(health.wait(now).is_zero());
    }

    #[test]
    fn a_probe_without_an_end_is_followed_by_another_one() {
        let mut health = open(Duration::ZERO);
        start(&mut health, SECOND);
        let later = SECOND + LIMIT + SECOND;
        assert!(matches!(health.admit(later - SECOND / 10, LIMIT), Admission::Wait(_)));
        start(&mut health, later);
    }

    #[test]
    fn others_ask_again_within_a_second_while_a_probe_runs() {
        let (mut health, mut now) = (open(Duration::ZERO), Duration::ZERO);
        for _ in 0..8 {
            now += health.wait(now);
            let probe = start(&mut health, now);
            assert_eq!(health.admit(now, LIMIT), Admission::Wait(SECOND));
            health.take(probe, event(0), FAILS, now);
            assert!(health.wait(now) > SECOND, "the probe has failed");
        }
        now += health.wait(now);
        let probe = start(&mut health, now);
        assert_eq!(health.admit(now, LIMIT), Admission::Wait(SECOND));
        health.take(probe, event(0), WORKS, now + SECOND / 2);
        start(&mut health, now + SECOND);
    }

    #[test]
    fn failures_of_requests_from_before_do_not_lengthen_the_pause() {
        let mut health = EndpointHealth::default();
        let before = start(&mut health, Duration::ZERO);
        for _ in 0..20 {
            health.take(before, event(0), FAILS, Duration::ZERO);
        }
        assert_eq!(health.wait(Duration::ZERO), FIRST_PAUSE);
        assert_eq!(health.take(before, event(0), WORKS, Duration::ZERO).1, HealthChange::Closed);
    }

    #[test]
    fn nothing_starts_before_retry_after() {
        for sign in [EndpointSign::Busy, EndpointSign::Fails] {
            let mut health = EndpointHealth::default();
            let meaning = Meaning { after: SECOND * 30, ..meaning(EventFate::NotTaken, sign) };
            run(&mut health, meaning, SECOND);
            assert_eq!(health.admit(SECOND * 2, LIMIT), Admission::Wait(SECOND * 29), "{sign:?}");
            start(&mut health, SECOND * 31);
        }
    }

    #[test]
    fn an_endpoint_that_takes_no_event_parks_five_keys_and_no_more() {
        let mut health = EndpointHealth::default();
        let ticket = start(&mut health, Duration::ZERO);
        let mut dislike = |number: u8| health.take(ticket, event(number), DISLIKES, Duration::ZERO);
        for number in 0..5 {
            assert_eq!(dislike(number), (EventFate::NeverTaken, HealthChange::None));
        }
        assert_eq!(dislike(0).0, EventFate::NeverTaken, "one of them again");
        assert_eq!(dislike(5), (EventFate::NotTaken, HealthChange::Opened));
        assert_eq!(dislike(6).0, EventFate::NotTaken);
        health.take(ticket, event(7), WORKS, Duration::ZERO);
        assert_eq!(health.take(ticket, event(6), DISLIKES, Duration::ZERO).0, EventFate::NeverTaken, "one was taken");
    }
}
