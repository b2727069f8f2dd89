//! Errors of brokers, from the driver's own mock of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_core::EventId;
use hapax_core::outbox::{OutgoingEvent, Published, Sink};
use hapax_core::runtime::Tokio;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use super::{KafkaSink, KafkaSinkConfig};

const DEADLINE: Duration = Duration::from_secs(60);

type Brokers = MockCluster<'static, DefaultProducerContext>;

fn brokers() -> Brokers {
    let brokers = MockCluster::new(1).unwrap();
    brokers.create_topic("orders", 1, 1).unwrap();
    brokers
}

async fn sink(brokers: &Brokers, timeout: u64) -> KafkaSink {
    let url = format!("kafka://{}?timeout={timeout}", brokers.bootstrap_servers());
    let config: KafkaSinkConfig = url.parse().unwrap();
    KafkaSink::open(config, Arc::new(Tokio::current())).await.unwrap()
}

fn event(len: usize) -> Arc<OutgoingEvent> {
    Arc::new(OutgoingEvent::new(EventId::from_random([7; 16]), "orders", vec![b'x'; len]))
}

#[expect(clippy::disallowed_methods, reason = "the deadline of a test is in real time")]
async fn deliver(sink: &KafkaSink) {
    let begun = Instant::now();
    loop {
        let published = sink.publish(&event(1)).await;
        if matches!(published, Published::Yes { .. }) {
            return;
        }
        assert!(begun.elapsed() < DEADLINE, "{published:?}");
    }
}

fn fail_next(brokers: &Brokers, request: RDKafkaApiKey, error: RDKafkaRespErr) {
    brokers.request_errors(request, &[error]);
}

#[tokio::test]
async fn a_producer_that_ended_for_good_is_replaced() {
    let brokers = brokers();
    fail_next(&brokers, RDKafkaApiKey::InitProducerId, RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED);
    let sink = sink(&brokers, 30).await;
    deliver(&sink).await;
}

/// The brokers recognize what the driver sends again by the id of the producer. Without one nothing may leave.
#[tokio::test]
async fn no_event_leaves_before_the_brokers_have_given_the_producer_an_id() {
    let brokers = brokers();
    let busy = RDKafkaRespErr::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS;
    brokers.request_errors(RDKafkaApiKey::InitProducerId, &[busy; 1000]);
    let sink = sink(&brokers, 1).await;
    let published = sink.publish(&event(1)).await;
    assert!(!matches!(published, Published::Yes { .. }), "{published:?}");
    brokers.clear_request_errors(RDKafkaApiKey::InitProducerId);
    deliver(&sink).await;
}

#[tokio::test]
async fn a_denied_topic_is_not_refused() {
    let brokers = brokers();
    let sink = sink(&brokers, 30).await;
    deliver(&sink).await;
    fail_next(&brokers, RDKafkaApiKey::Produce, RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
    let published = sink.publish(&event(1)).await;
    assert!(matches!(published, Published::NotPublished { .. }), "{published:?}");
    deliver(&sink).await;
}

#[tokio::test]
async fn only_an_event_that_was_alone_in_its_batch_is_refused_as_too_large() {
    let brokers = brokers();
    let sink = sink(&brokers, 30).await;
    let too_large = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    brokers.request_errors(RDKafkaApiKey::Produce, &[too_large]);
    let published = sink.publish(&event(1)).await;
    assert!(matches!(published, Published::Yes { .. }), "{published:?}");
    brokers.request_errors(RDKafkaApiKey::Produce, &[too_large, too_large]);
    let published = sink.publish(&event(1)).await;
    assert!(matches!(published, Published::Refused(_)), "{published:?}");
    deliver(&sink).await;
    sink.close().await;
}

#[tokio::test]
async fn a_check_creates_no_topic_and_needs_no_right_to_another_one() {
    let brokers = brokers();
    brokers.topic_error("hapax", RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED).unwrap();
    let sink = sink(&brokers, 30).await;
    let findings = sink.check().await.unwrap();
    assert!(findings.iter().all(|finding| !finding.message.contains("`hapax`")), "{findings:?}");
    deliver(&sink).await;
}

#[tokio::test]
async fn a_confirmation_that_is_late_is_unknown() {
    let brokers = brokers();
    let sink = sink(&brokers, 1).await;
    deliver(&sink).await;
    brokers.broker_round_trip_time(1, Duration::from_secs(20)).unwrap();
    let published = sink.publish(&event(1)).await;
    assert!(matches!(published, Published::Unknown(_)), "{published:?}");
    brokers.broker_round_trip_time(1, Duration::ZERO).unwrap();
    deliver(&sink).await;
}
