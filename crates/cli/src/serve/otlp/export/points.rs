//! Reads the text of `/metrics` as the metrics of OTLP.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};

/// The time that the values stand for.
pub(super) struct Period {
    pub(super) start: SystemTime,
    pub(super) end: SystemTime,
}

/// One sample of the page.
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
}

/// Returns the metrics on a page. A line that is no sample is left out.
pub(super) fn metrics_of(page: &str, period: &Period) -> Vec<Metric> {
    let (mut metrics, mut help) = (Vec::<Metric>::new(), "");
    for line in page.lines() {
        if let Some(text) = line.strip_prefix("# HELP ") {
            help = text.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|text| text.split_once(' ')) {
            let unit = if name.ends_with("_seconds") { "s" } else { "" };
            let (name, description) = (name.to_owned(), std::mem::take(&mut help).to_owned());
            metrics.push(Metric { name, description, unit: unit.into(), data: data(kind), ..Default::default() });
        } else if let (Some(metric), Some(sample)) = (metrics.last_mut(), sample(line)) {
            add(metric, sample, period);
        }
    }
    metrics.retain(|metric| metric.data.is_some());
    for metric in &mut metrics {
        if let Some(Data::Histogram(histogram)) = &mut metric.data {
            histogram.data_points.iter_mut().for_each(count_each_bucket);
        }
    }
    metrics
}

fn data(kind: &str) -> Option<Data> {
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    match kind {
        "counter" => Some(Data::Sum(Sum { aggregation_temporality, is_monotonic: true, data_points: Vec::new() })),
        "gauge" => Some(Data::Gauge(Gauge::default())),
        "histogram" => Some(Data::Histogram(Histogram { aggregation_temporality, data_points: Vec::new() })),
        _ => None,
    }
}

fn add(metric: &mut Metric, sample: Sample<'_>, period: &Period) {
    match &mut metric.data {
        Some(Data::Sum(sum)) => sum.data_points.push(number(sample, period)),
        Some(Data::Gauge(gauge)) => gauge.data_points.push(number(sample, period)),
        Some(Data::Histogram(histogram)) => {
            add_to_histogram(histogram, sample.name.strip_prefix(&*metric.name).unwrap_or_default(), &sample, period);
        }
        _ => {}
    }
}

fn number(sample: Sample<'_>, period: &Period) -> NumberDataPoint {
    NumberDataPoint {
        attributes: attributes(sample.labels.iter()),
        start_time_unix_nano: nanoseconds(period.start),
        time_unix_nano: nanoseconds(period.end),
        value: Some(Number::AsDouble(sample.value)),
        ..Default::default()
    }
}

/// Adds a line of a histogram. The counts of the buckets are those of the page until all lines are read.
fn add_to_histogram(histogram: &mut Histogram, part: &str, sample: &Sample<'_>, period: &Period) {
    let attributes = attributes(sample.labels.iter().filter(|(name, _)| *name != "le"));
    let points = &mut histogram.data_points;
    if points.last().is_none_or(|point| point.attributes != attributes) {
        points.push(HistogramDataPoint {
            attributes,
            start_time_unix_nano: nanoseconds(period.start),
            time_unix_nano: nanoseconds(period.end),
            ..Default::default()
        });
    }
    let Some(point) = points.last_mut() else { return };
    // Counts are exact up to 2^53.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count is a whole number")]
    let count = sample.value as u64;
    match part {
        "_sum" => point.sum = Some(sample.value),
        "_count" => point.count = count,
        "_bucket" => {
            let bound = sample.labels.iter().find(|(name, _)| *name == "le").and_then(|(_, le)| le.parse().ok());
            point.explicit_bounds.extend(bound.filter(|bound: &f64| bound.is_finite()));
            point.bucket_counts.push(count);
        }
        _ => {}
    }
}

/// On the page, a bucket has the count of all smaller ones, too.
fn count_each_bucket(point: &mut HistogramDataPoint) {
    let mut below = 0;
    for count in &mut point.bucket_counts {
        let all = *count;
        *count = all.saturating_sub(below);
        below = all;
    }
}

fn attributes<'a, 's: 'a>(labels: impl Iterator<Item = &'a (&'s str, String)>) -> Vec<KeyValue> {
    let value = |text: &String| Some(AnyValue { value: Some(Value::StringValue(text.clone())) });
    labels.map(|(name, text)| KeyValue { key: (*name).to_owned(), value: value(text), ..Default::default() }).collect()
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let (series, value) = line.rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
    let value = value.parse().ok()?;
    let Some((name, labels)) = series.split_once('{') else {
        return Some(Sample { name: series, labels: Vec::new(), value });
    };
    Some(Sample { name, labels: read_labels(labels.strip_suffix('}')?)?, value })
}

/// Reads `name="value",name="value"`. In a value, a backslash is before a quote, a backslash and the n of a line break.
fn read_labels(mut text: &str) -> Option<Vec<(&str, String)>> {
    let mut labels = Vec::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"")?;
        let (mut value, mut end, mut is_escaped) = (String::new(), None, false);
        for (place, character) in rest.char_indices() {
            match character {
                'n' if is_escaped => value.push('\n'),
                '\\' if !is_escaped => {}
                '"' if !is_escaped => {
                    end = Some(place);
                    break;
                }
                other => value.push(other),
            }
            is_escaped = character == '\\' && !is_escaped;
        }
        labels.push((name, value));
        text = rest[end? + 1..].trim_start_matches(',');
    }
    Some(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"# HELP calls_total Calls, "by" outcome
# TYPE calls_total counter
calls_total{outcome="a \"b\"\\\n,c}"} 3
calls_total 4

# TYPE in_flight gauge
in_flight -1.5
# HELP begin_seconds Begins
# TYPE begin_seconds histogram
begin_seconds_bucket{le="0.5"} 2
begin_seconds_bucket{le="1"} 2
begin_seconds_bucket{le="+Inf"} 5
begin_seconds_sum 9.5
begin_seconds_count 5
"#;

    #[test]
    fn a_page_becomes_sums_gauges_and_histograms() {
        let period = Period { start: UNIX_EPOCH, end: SystemTime::now() };
        let metrics = metrics_of(PAGE, &period);
        let names: Vec<_> = metrics.iter().map(|metric| (&*metric.name, &*metric.description)).collect();
        assert_eq!(names, [("calls_total", "Calls, \"by\" outcome"), ("in_flight", ""), ("begin_seconds", "Begins")]);
        let [Some(Data::Sum(sum)), Some(Data::Gauge(gauge)), Some(Data::Histogram(histogram))] =
            [0, 1, 2].map(|place| metrics[place].data.clone())
        else {
            panic!("{metrics:?}");
        };
        assert!(sum.is_monotonic);
        let values: Vec<_> = sum.data_points.iter().map(|point| point.value).collect();
        assert_eq!(values, [Some(Number::AsDouble(3.0)), Some(Number::AsDouble(4.0))]);
        let label = &sum.data_points[0].attributes[0];
        let text = Value::StringValue("a \"b\"\\\n,c}".into());
        assert_eq!((&*label.key, label.value.clone().unwrap().value), ("outcome", Some(text)));
        assert_eq!(gauge.data_points[0].value, Some(Number::AsDouble(-1.5)));
        let point = &histogram.data_points[0];
        assert_eq!((&*point.explicit_bounds, &*point.bucket_counts), (&[0.5, 1.0][..], &[2, 0, 3][..]));
        assert_eq!((point.count, point.sum, histogram.data_points.len()), (5, Some(9.5), 1));
        assert_eq!(metrics[2].unit, "s");
    }
}
