//! How the counters of this process have grown in each of the last sixty minutes. Without Prometheus, the dashboard
//! shows its charts from these minutes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hapax::telemetry::names as core;
use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;

use crate::serve::metrics::REQUEST_SECONDS;

/// How many minutes are kept, beside the one that runs.
const MINUTES: usize = 60;

const MINUTE: Duration = Duration::from_secs(60);

/// The last hour of a process. A clone shows the same hour.
#[derive(Clone, Debug)]
pub(crate) struct MetricHistory {
    metrics: PrometheusHandle,
    minutes: Arc<Mutex<MinuteRing>>,
}

impl MetricHistory {
    /// Begins the first minute, and ends each one when it is over, in a task of its own.
    pub(crate) fn start(metrics: PrometheusHandle) -> Self {
        let begin = Instantaneous::of(&metrics);
        let own = Self { metrics, minutes: Arc::new(Mutex::new(MinuteRing::new(begin))) };
        let ending = own.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(MINUTE).await;
                let now = Instantaneous::of(&ending.metrics);
                ending.minutes.lock().end_minute(now);
            }
        });
        own
    }

    /// The minutes, the oldest first. The last one still runs.
    pub(crate) fn minutes(&self) -> Vec<CountedMinute> {
        let now = Instantaneous::of(&self.metrics);
        self.minutes.lock().with_present(&now)
    }
}

/// The counts of a minute.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CountedMinute {
    pub(crate) begun: SystemTime,
    /// How long it lasted. The one that runs is shorter.
    pub(crate) length: Duration,
    pub(crate) calls: CallTotals,
    pub(crate) latency: LatencyTotals,
}

/// The totals at an instant.
#[derive(Clone, Debug)]
struct Instantaneous {
    wall: SystemTime,
    at: Instant,
    calls: CallTotals,
    latency: LatencyTotals,
}

impl Instantaneous {
    fn of(metrics: &PrometheusHandle) -> Self {
        let (calls, latency) = read_totals(&metrics.render());
        Self { wall: SystemTime::now(), at: Instant::now(), calls, latency }
    }

    fn until(&self, later: &Self) -> CountedMinute {
        CountedMinute {
            begun: self.wall,
            length: later.at.saturating_duration_since(self.at),
            calls: later.calls.since(self.calls),
            latency: later.latency.since(&self.latency),
        }
    }
}

#[derive(Debug)]
struct MinuteRing {
    ended: VecDeque<CountedMinute>,
    begin: Instantaneous,
}

impl MinuteRing {
    fn new(begin: Instantaneous) -> Self {
        Self { ended: VecDeque::with_capacity(MINUTES + 1), begin }
    }

    fn end_minute(&mut self, now: Instantaneous) {
        self.ended.push_back(self.begin.until(&now));
        self.begin = now;
        if self.ended.len() > MINUTES {
            self.ended.pop_front();
        }
    }

    fn with_present(&self, now: &Instantaneous) -> Vec<CountedMinute> {
        self.ended.iter().cloned().chain([self.begin.until(now)]).collect()
    }
}

/// Ends of calls, or of publications in a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallTotals {
    /// The operation ran, or the event was published for the first time.
    pub(crate) new: u64,
    /// A copy got the recorded answer, or the broker recognized a repetition.
    pub(crate) replayed: u64,
    /// Nothing was applied, or a copy was turned away.
    pub(crate) refused: u64,
    /// The outcome is unknown.
    pub(crate) unknown: u64,
}

impl CallTotals {
    fn since(self, before: Self) -> Self {
        let rise = |count: fn(&Self) -> u64| count(&self).saturating_sub(count(&before));
        Self {
            new: rise(|totals| totals.new),
            replayed: rise(|totals| totals.replayed),
            refused: rise(|totals| totals.refused),
            unknown: rise(|totals| totals.unknown),
        }
    }

    fn add(&mut self, sample: &MetricLine<'_>) {
        let count = sample.value.parse::<u64>().unwrap_or(0);
        let place = match (sample.name, sample.label("outcome"), sample.label("result")) {
            (core::CALLS, Some("fresh" | "canonical"), _) | (core::RELAY_EVENTS, _, Some("yes")) => &mut self.new,
            (core::CALLS, Some("replayed"), _) => &mut self.replayed,
            (core::CALLS, Some("unknown" | "still_unknown" | "unrecorded"), _) => &mut self.unknown,
            (core::RELAY_EVENTS, _, Some("unknown")) => &mut self.unknown,
            (core::CALLS | core::RELAY_EVENTS, ..) => &mut self.refused,
            (core::CAUGHT, ..) if sample.label("layer") == Some("relay") => &mut self.replayed,
            _ => return,
        };
        *place += count;
    }
}

/// How many calls took how long: for each bucket its upper bound in seconds, and the calls up to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LatencyTotals(Vec<(f64, u64)>);

impl LatencyTotals {
    fn since(&self, before: &Self) -> Self {
        let earlier = |place: usize| before.0.get(place).map_or(0, |(_, count)| *count);
        let rise = |(place, (bound, count)): (usize, &(f64, u64))| (*bound, count.saturating_sub(earlier(place)));
        Self(self.0.iter().enumerate().map(rise).collect())
    }

    fn count(&self) -> u64 {
        self.0.last().map_or(0, |(_, count)| *count)
    }

    /// The time in seconds in which this share of the calls ended: the bound of their bucket. None without a call, or
    /// if it is longer than the last bound.
    #[expect(clippy::cast_precision_loss, reason = "a minute has fewer than 2^52 calls")]
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = self.count() as f64 * share;
        let (bound, _) = self.0.iter().find(|(_, count)| *count > 0 && *count as f64 >= wanted)?;
        Some(*bound).filter(|bound| bound.is_finite())
    }
}

/// A line of the page of metrics.
struct MetricLine<'p> {
    name: &'p str,
    labels: &'p str,
    value: &'p str,
}

impl<'p> MetricLine<'p> {
    fn read(line: &'p str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        Some(Self { name, labels, value })
    }

    /// The value of a label. Those that are read here have no quotes.
    fn label(&self, name: &str) -> Option<&'p str> {
        let mut values = self.labels.split(',').filter_map(|label| label.split_once("=\""));
        let (_, value) = values.find(|(found, _)| *found == name)?;
        value.split('"').next()
    }
}

/// The totals of a page of metrics. A gateway shows how long its requests took, and a worker its handlers.
fn read_totals(page: &str) -> (CallTotals, LatencyTotals) {
    let (mut calls, mut requests, mut handlers) = <(CallTotals, LatencyTotals, LatencyTotals)>::default();
    for sample in page.lines().filter_map(MetricLine::read) {
        calls.add(&sample);
        let latency = match sample.name.strip_suffix("_bucket") {
            Some(REQUEST_SECONDS) => &mut requests,
            Some(core::HANDLER_SECONDS) => &mut handlers,
            _ => continue,
        };
        let bound = sample.label("le").and_then(|bound| bound.parse().ok());
        latency.0.extend(bound.zip(sample.value.parse().ok()));
    }
    // A repetition that the broker recognized was confirmed like a first publication.
    if page.contains(core::RELAY_EVENTS) {
        calls.new = calls.new.saturating_sub(calls.replayed);
    }
    (calls, if requests.count() > 0 { requests } else { handlers })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATEWAY: &str = "# TYPE hapax_calls_total counter\n\
        hapax_calls_total{outcome=\"fresh\"} 5\nhapax_calls_total{outcome=\"replayed\"} 2\n\
        hapax_calls_total{outcome=\"busy\"} 1\nhapax_calls_total{outcome=\"mismatch\"} 1\n\
        hapax_calls_total{outcome=\"still_unknown\"} 4\nhapax_caught_total{layer=\"gate\"} 7\n\
        hapax_gateway_request_seconds_bucket{le=\"0.01\"} 6\nhapax_gateway_request_seconds_bucket{le=\"0.1\"} 9\n\
        hapax_gateway_request_seconds_bucket{le=\"+Inf\"} 10\nhapax_handler_seconds_bucket{le=\"0.01\"} 1\n";

    const RELAY: &str = "hapax_relay_events_total{sink=\"nats\",result=\"yes\"} 9\n\
        hapax_relay_events_total{sink=\"nats\",result=\"refused\"} 1\n\
        hapax_relay_events_total{sink=\"nats\",result=\"unknown\"} 3\nhapax_caught_total{layer=\"relay\"} 2\n";

    fn at(page: &str) -> Instantaneous {
        let (calls, latency) = read_totals(page);
        Instantaneous { wall: SystemTime::UNIX_EPOCH, at: Instant::now(), calls, latency }
    }

    #[test]
    fn a_page_of_metrics_has_the_totals() {
        let (calls, latency) = read_totals(GATEWAY);
        assert_eq!(calls, CallTotals { new: 5, replayed: 2, refused: 2, unknown: 4 });
        let bounds = [0.5, 0.6, 0.9, 0.99].map(|share| latency.quantile(share));
        assert_eq!(bounds, [Some(0.01), Some(0.01), Some(0.1), None]);
        let published = read_totals(RELAY);
        assert_eq!(published.0, CallTotals { new: 7, replayed: 2, refused: 1, unknown: 3 });
        assert_eq!(published.1.quantile(0.5), None);
    }

    #[test]
    fn a_ring_has_the_last_sixty_minutes_and_the_one_that_runs() {
        let mut ring = MinuteRing::new(at(""));
        ring.end_minute(at(GATEWAY));
        let more = GATEWAY.replace("\"fresh\"} 5", "\"fresh\"} 8").replace("le=\"0.1\"} 9", "le=\"0.1\"} 11");
        let minutes = ring.with_present(&at(&more.replace("+Inf\"} 10", "+Inf\"} 12")));
        assert_eq!(minutes.len(), 2);
        assert_eq!(minutes[0].calls, CallTotals { new: 5, replayed: 2, refused: 2, unknown: 4 });
        assert_eq!(minutes[1].calls, CallTotals { new: 3, ..CallTotals::default() });
        assert_eq!(minutes[1].latency.quantile(0.99), Some(0.1));
        for _ in 0..2 * MINUTES {
            ring.end_minute(at(GATEWAY));
        }
        let minutes = ring.with_present(&at(GATEWAY));
        assert_eq!(minutes.len(), MINUTES + 1);
        assert!(minutes.iter().all(|minute| minute.calls == CallTotals::default()), "{minutes:?}");
    }
}
