//! Why no broker can be reached, as the driver reports it.

use std::time::Duration;

use hapax_core::{Error, Result};
use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use tracing::{debug, warn};

use crate::errors::{not_applied, unusable};

/// How long each request for metadata waits for a broker at the start. Together they take less than the ten seconds
/// that a caller may grant.
const TRIES: [Duration; 5] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_millis(2500),
    Duration::from_millis(2500),
];

/// How long a poll waits for a further report of the driver.
const REPORTED_WITHIN: Duration = Duration::from_millis(50);

/// The last failures of connections.
#[derive(Default)]
pub(super) struct ConnectionFailures(Mutex<LastFailures>);

#[derive(Default)]
struct LastFailures {
    /// Why another try would fail, too.
    refusal: Option<Error>,
    /// The driver's own words. They name the address of the broker.
    reason: Option<String>,
    /// Whether metadata was asked for before.
    was_asked: bool,
}

impl ConnectionFailures {
    /// Begins a request for metadata. What was reported since the one before, for instance while a broker started, may
    /// not be true any more. The reports of a new client are kept: the driver says the same thing only once in a while.
    fn begin_request(&self) {
        let mut last = self.0.lock();
        if last.was_asked {
            last.refusal = None;
        }
        last.was_asked = true;
    }

    fn refusal(&self) -> Option<Error> {
        self.0.lock().refusal.take()
    }

    fn unreachable(&self) -> Error {
        match &self.0.lock().reason {
            Some(reason) => not_applied(format!("no Kafka broker can be reached: {reason}")),
            None => not_applied("no Kafka broker can be reached"),
        }
    }
}

impl ClientContext for ConnectionFailures {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        // A listener for TLS ends a connection without TLS like this. The driver reports no error then.
        if text.contains("plaintext://") && text.contains("in state APIVERSION_QUERY") {
            let reason = "the broker ends each connection at once; if this port speaks TLS, add `tls=yes` to the URL";
            self.0.lock().reason = Some(reason.to_owned());
        }
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
                warn!(facility, "the Kafka driver says: {text}");
            }
            RDKafkaLogLevel::Warning | RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
                debug!(facility, "the Kafka driver says: {text}");
            }
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        debug!(%error, "the Kafka driver reports: {reason}");
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
            return;
        }
        let mut last = self.0.lock();
        last.refusal = refusal(&error, reason).or_else(|| last.refusal.take());
        last.reason = Some(reason.to_owned());
    }
}

impl ConsumerContext for ConnectionFailures {}

/// The error of a connection that fails again at each try.
fn refusal(error: &KafkaError, reason: &str) -> Option<Error> {
    if reason.contains("PLAINTEXT broker listener") {
        return Some(unusable(
            "the Kafka broker does not speak TLS on this port; leave out `tls=yes`, `ca`, `cert` and `key` of the URL",
        ));
    }
    if reason.contains("SSL alert") {
        return Some(unusable(
            "the Kafka broker refuses the client's certificate, or demands one; check `cert` and `key` of the URL",
        ));
    }
    #[expect(clippy::wildcard_enum_match_arm, reason = "an enum of the driver")]
    match error.rdkafka_error_code()? {
        RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed => {
            Some(unusable("the Kafka broker refuses the credentials"))
        }
        RDKafkaErrorCode::SSL => {
            Some(unusable("TLS with the Kafka broker fails; check `ca`, `cert` and `key` of the URL"))
        }
        _ => None,
    }
}

/// Asks for the metadata of a topic. Ends early if the broker refuses the credentials or TLS fails, because the driver
/// would connect again and again, and if nobody waits for the reply any more.
pub(super) fn fetch_metadata<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    failures: &ConnectionFailures,
    topic: &str,
    is_awaited: impl Fn() -> bool,
) -> Result<Metadata> {
    take_reports(consumer);
    failures.begin_request();
    let mut last = None;
    for within in TRIES {
        match consumer.fetch_metadata(Some(topic), within) {
            Ok(metadata) => return Ok(metadata),
            Err(error) => last = Some(error),
        }
        if !is_awaited() {
            return Err(not_applied("the start of a client of Kafka was given up"));
        }
        take_reports(consumer);
        if let Some(refusal) = failures.refusal() {
            return Err(refusal);
        }
    }
    let unreachable = failures.unreachable();
    Err(match last {
        Some(error) => unreachable.caused_by(error),
        None => unreachable,
    })
}

/// Lets the context get all that the driver has to report. Nothing is subscribed to yet, so no message is lost.
fn take_reports<C: ConsumerContext>(consumer: &BaseConsumer<C>) {
    while consumer.poll(REPORTED_WITHIN).is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(code: RDKafkaErrorCode, reason: &str) -> ConnectionFailures {
        let failures = ConnectionFailures::default();
        failures.error(KafkaError::Global(code), reason);
        failures.error(KafkaError::Global(RDKafkaErrorCode::AllBrokersDown), "1/1 brokers are down");
        failures
    }

    #[test]
    fn the_last_reason_is_in_the_error_and_that_all_brokers_are_down_is_none() {
        let failures = after(RDKafkaErrorCode::BrokerTransportFailure, "a:9092: Connect failed: Connection refused");
        assert!(failures.refusal().is_none());
        let error = failures.unreachable().to_string();
        assert!(
            error.ends_with("no Kafka broker can be reached: a:9092: Connect failed: Connection refused"),
            "{error}"
        );
        let unknown = ConnectionFailures::default().unreachable();
        assert!(unknown.to_string().ends_with("no Kafka broker can be reached"));
    }

    #[test]
    fn a_refusal_that_a_new_client_has_got_counts_and_an_old_one_does_not() {
        let failures = after(RDKafkaErrorCode::SSL, "certificate verify failed");
        failures.begin_request();
        assert!(failures.refusal().is_some());
        failures.error(KafkaError::Global(RDKafkaErrorCode::SSL), "certificate verify failed");
        failures.begin_request();
        assert!(failures.refusal().is_none());
    }

    #[test]
    fn what_tls_meets_at_the_other_end_is_named() {
        for (reason, named) in [
            ("SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?", "does not speak TLS"),
            ("Receive failed: SSL alert number 116", "refuses the client's certificate, or demands one"),
        ] {
            let refusal = after(RDKafkaErrorCode::BrokerTransportFailure, reason).refusal().expect(reason);
            assert!(refusal.to_string().contains(named), "{refusal}");
        }
        let unknown = after(RDKafkaErrorCode::SSL, "certificate verify failed").refusal().expect("a refusal");
        assert!(unknown.to_string().contains("TLS with the Kafka broker fails"), "{unknown}");
    }

    #[test]
    fn a_connection_without_tls_that_ends_at_once_hints_at_tls() {
        let failures = ConnectionFailures::default();
        let ended = "Disconnected: connection closed by peer (after 2ms in state APIVERSION_QUERY)";
        failures.log(RDKafkaLogLevel::Info, "FAIL", &format!("[thrd:ssl://a:9093/bootstrap]: {ended}"));
        assert!(!failures.unreachable().to_string().contains("tls=yes"));
        failures.log(RDKafkaLogLevel::Info, "FAIL", &format!("[thrd:plaintext://a:9093/bootstrap]: {ended}"));
        assert!(failures.unreachable().to_string().contains("add `tls=yes`"));
    }
}
