use super::*;

/// The clock of the service at the start of a test.
const START: u64 = 1_800_000_000_000_000;

const HOUR: i64 = 3600 * SECOND;

/// The time of a request and its reply.
const TRIP: Duration = Duration::from_millis(5);

/// Replies of a service whose clock runs with ours, from a moment at which ours is at 100 s.
struct Replies {
    clock: ServiceClock,
    now: Duration,
}

impl Replies {
    fn new() -> Self {
        Self { clock: ServiceClock::default(), now: Duration::from_secs(100) }
    }

    /// The right time.
    fn truth(&self) -> Timestamp {
        Timestamp(START).plus(self.now)
    }

    /// A reply of a host whose clock is so far ahead, over this connection.
    fn reply(&mut self, ahead: i64, port: u16) {
        let sent = self.now;
        self.now += TRIP;
        let shown = self.truth().0.checked_add_signed(ahead).unwrap();
        let date = Timestamp(shown / 1_000_000 * 1_000_000);
        let connection = Some(SocketAddr::from(([127, 0, 0, 1], port)));
        self.clock.judge(&DatedReply { date, sent, received: self.now, connection });
    }

    /// Replies over two connections during two seconds.
    fn settle(&mut self, ahead: i64) {
        for n in 0..40 {
            self.reply(ahead, 1 + n % 2);
            self.now += Duration::from_millis(47);
        }
    }

    fn range(&self) -> ClockRange {
        self.clock.range(self.now).unwrap()
    }

    /// How far the range begins and ends behind the right time, in microseconds.
    fn bounds(&self) -> (i64, i64) {
        let (range, truth) = (self.range(), self.truth());
        let ahead = |time: Timestamp| time.0.cast_signed() - truth.0.cast_signed();
        (ahead(range.earliest), ahead(range.latest))
    }

    fn is_near(&self, ahead: i64) -> bool {
        let (least, most) = self.bounds();
        least <= ahead && ahead <= most && ahead - least < 2 * SECOND && most - ahead < 2 * SECOND
    }
}

#[test]
fn the_clock_is_known_to_a_round_trip_after_two_seconds_of_replies() {
    let mut replies = Replies::new();
    assert_eq!(replies.clock.range(replies.now), None);
    assert_eq!(replies.clock.stamp(replies.now), None);
    replies.reply(0, 1); // K1
    assert!(replies.is_near(0) && replies.range().width() >= SECOND);
    replies.settle(0); // K2
    assert!(replies.is_near(0) && replies.range().width() < SECOND / 5, "{:?}", replies.bounds());
}

#[test]
fn a_clock_is_settled_when_three_replies_over_two_connections_agree() {
    let mut replies = Replies::new();
    for (port, is_settled) in [(1, false), (1, false), (1, false), (2, true)] {
        replies.reply(0, port);
        assert_eq!(replies.clock.is_settled(replies.now), is_settled);
    }
    let mut replies = Replies::new();
    for (port, is_settled) in [(1, false), (2, false), (1, true)] {
        replies.reply(0, port);
        assert_eq!(replies.clock.is_settled(replies.now), is_settled);
    }
}

#[test]
fn one_host_that_is_an_hour_fast_makes_nothing_lapse() {
    let mut replies = Replies::new();
    replies.settle(0);
    replies.reply(HOUR, 1); // K5
    let (least, most) = replies.bounds();
    assert!(least < 0 && -least < SECOND, "what is judged by the earliest reading does not lapse: {least}");
    assert!(most >= HOUR - SECOND, "what is written lasts also by the other clock: {most}");
    assert!(!replies.clock.is_settled(replies.now));
    replies.reply(0, 2); // K2
    assert!(replies.is_near(0) && replies.clock.is_settled(replies.now), "{:?}", replies.bounds());
}

#[test]
fn a_host_that_lies_at_every_other_reply_is_never_believed() {
    let mut replies = Replies::new();
    replies.settle(0);
    for n in 0..20 {
        replies.reply(HOUR, 1 + n % 2);
        assert!(replies.bounds().0 < 0, "{n}");
        replies.reply(0, 3 + n % 2);
        assert!(replies.is_near(0), "{n}");
    }
}

#[test]
fn a_step_is_believed_after_three_replies_over_two_connections() {
    for ahead in [HOUR, -HOUR, 5 * SECOND, -5 * SECOND] {
        let mut replies = Replies::new();
        replies.settle(0);
        for (port, is_believed) in [(1, false), (1, false), (1, false), (1, false), (2, true)] {
            replies.reply(ahead, port); // K5, K6
            let (least, most) = replies.bounds();
            assert!(least < ahead.min(0) + SECOND && most > ahead.max(0) - SECOND || is_believed, "{least} {most}");
            assert_eq!(replies.is_near(ahead) && replies.clock.is_settled(replies.now), is_believed, "{ahead} {port}");
        }
    }
}

#[test]
fn the_first_reply_is_not_believed_against_the_next_ones() {
    let mut replies = Replies::new();
    replies.reply(HOUR, 1);
    for port in [2, 3] {
        replies.reply(0, port);
        let (least, most) = replies.bounds();
        assert!(least <= 0 && most >= HOUR - SECOND && !replies.clock.is_settled(replies.now), "{least} {most}");
        assert!(!replies.clock.is_proven());
    }
    replies.reply(0, 2);
    assert!(replies.is_near(0) && replies.clock.is_settled(replies.now), "{:?}", replies.bounds());
}

#[test]
fn hosts_whose_clocks_differ_a_little_widen_the_range() {
    let mut replies = Replies::new();
    replies.settle(0);
    // At the end of a second of ours, the other host has begun the next one.
    let apart = 200_000;
    let left = 1_000_000 - replies.truth().0 % 1_000_000;
    replies.now += Duration::from_micros(left - 100_000);
    replies.reply(apart, 2); // K4
    let (least, most) = replies.bounds();
    assert!(least <= 0 && most >= apart && replies.clock.is_settled(replies.now), "{least} {most}");
}

#[test]
fn a_reply_that_agrees_with_both_clocks_ends_no_rival() {
    let mut replies = Replies::new();
    replies.settle(0);
    replies.reply(2 * SECOND, 1); // K5
    // It took so long that it says nothing.
    let (sent, truth) = (replies.now, replies.truth());
    replies.now += Duration::from_secs(4);
    let date = Timestamp(truth.0 / 1_000_000 * 1_000_000 + 3_000_000);
    replies.clock.judge(&DatedReply { date, sent, received: replies.now, connection: None }); // K3
    assert!(!replies.clock.is_settled(replies.now));
    assert!(replies.bounds().1 > SECOND, "{:?}", replies.bounds());
}

#[test]
fn the_range_grows_while_nothing_is_asked() {
    let mut replies = Replies::new();
    replies.settle(0);
    let before = replies.range().width();
    replies.now += Duration::from_secs(1000);
    // 200 ppm in both directions.
    assert_eq!(replies.range().width() - before, 400_000);
    assert!(replies.clock.is_settled(replies.now));
    replies.now += Duration::from_secs(4000);
    assert!(!replies.clock.is_settled(replies.now), "it is read again before a write");
    // The clock of the service has gone wrong by half of that meanwhile.
    replies.reply(-500_000, 1);
    assert!(replies.is_near(-500_000), "{:?}", replies.bounds());
}

#[test]
fn no_stamp_comes_twice_and_none_is_earlier_than_the_clock_may_be() {
    let mut replies = Replies::new();
    replies.settle(0);
    let mut last = Timestamp(0);
    for _ in 0..5 {
        let stamp = replies.clock.stamp(replies.now).unwrap();
        assert!(stamp > last && stamp >= replies.range().latest, "{stamp:?}");
        last = stamp;
    }
    for port in [1, 2, 1] {
        replies.reply(-HOUR, port);
    }
    let stamp = replies.clock.stamp(replies.now).unwrap();
    assert!(stamp.since(replies.range().latest) < Duration::from_secs(1), "stamps follow a clock that stepped back");
}
