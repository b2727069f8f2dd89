//! A source and a sink on the emulator of Pub/Sub, and what surprises users of Pub/Sub.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]
#![expect(clippy::disallowed_methods, reason = "the deadline of a test is in real time")]

mod common;
#[path = "common/pubsub.rs"]
#[allow(dead_code, reason = "each test needs another part")]
mod emulator;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hapax_brokers::{PubSubSink, PubSubSinkConfig, PubSubSource};
use hapax_core::broker::{DeliveryId, Lane, Position, Room, Settlement, Source};
use hapax_core::outbox::{OutgoingEvent, Published, Sink};
use hapax_core::{ErrorKind, EventId};
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{self, PsTestServer, PubSubServer, Trial};
use http::Method;
use serde_json::{Value, json};

use common::{closed, is_quiet, room, runtime, settle, some, take, text, texts};
use emulator::{Emulator, ask, http_client};

fn main() -> ExitCode {
    macro_rules! tests {
        ($($name:ident),* $(,)?) => { [$(servers::test(stringify!($name), "pubsub", $name)),*] };
    }
    let mut tests: Vec<Trial> = tests![
        a_message_arrives_with_its_coordinates_key_and_headers,
        the_key_of_a_subscription_without_ordering_orders_nothing,
        the_deadline_of_the_url_counts_and_not_that_of_the_subscription,
        a_retried_message_arrives_again_not_before_its_delay,
        a_settlement_of_a_delivery_that_is_not_ours_does_nothing,
        a_stale_acknowledgement_says_nothing_without_exactly_once_and_is_named_with_it,
        attempts_are_counted_only_with_a_dead_letter_policy,
        a_source_that_closes_gives_back_what_no_worker_got,
        without_room_a_closed_lane_gets_nothing,
        a_missing_subscription_is_unusable,
        events_that_are_published_twice_arrive_twice_under_one_id,
    ]
    .into();
    // The emulator goes on to deliver messages to a stream that was cut, each for the length of a lease.
    let name = "a_stream_that_is_cut_goes_on_and_loses_nothing";
    tests.push(servers::test(name, "pstest", a_stream_that_is_cut_goes_on_and_loses_nothing));
    servers::main(tests)
}

/// Room for one of the messages that the stream may bring.
fn one() -> Room {
    Room { bytes: 1, ..room(10) }
}

struct Fixture {
    server: Arc<PubSubServer>,
    emulator: Emulator,
    name: &'static str,
}

impl Fixture {
    /// A topic with a subscription of its name.
    async fn new(name: &'static str, settings: Value) -> Self {
        let server = PubSubServer::shared().await.unwrap();
        let emulator = Emulator::at(server.address());
        emulator.create_topic(name).await;
        emulator.subscribe(name, name, settings).await;
        Self { server, emulator, name }
    }

    async fn ordered(name: &'static str) -> Self {
        Self::new(name, json!({ "enableMessageOrdering": true, "ackDeadlineSeconds": 600 })).await
    }

    async fn source(&self) -> PubSubSource {
        let url = format!("{}&deadline=10", self.server.named(self.name));
        PubSubSource::connect(&url.parse().unwrap(), runtime()).await.unwrap()
    }

    fn sink(&self) -> PubSubSink {
        let config: PubSubSinkConfig = self.server.named("").parse().unwrap();
        PubSubSink::open(config, runtime()).unwrap()
    }

    async fn publish(&self, texts: &[&str]) {
        for text in texts {
            self.emulator.publish(self.name, text.as_bytes(), &[("x-own".into(), "v".into())], "k").await;
        }
    }
}

async fn a_message_arrives_with_its_coordinates_key_and_headers() {
    let fixture = Fixture::ordered("arrives").await;
    fixture.publish(&["a"]).await;
    let mut source = fixture.source().await;
    assert_eq!(&**source.name(), "pubsub/shop/arrives");
    let delivery = take(&mut source, 1).await.remove(0);
    let message = &delivery.message;
    assert_eq!((text(&delivery).as_str(), delivery.attempt), ("a", None));
    assert_eq!(message.ordering_key.as_deref(), Some(&b"k"[..]));
    assert_eq!(message.headers.all("x-own").collect::<Vec<_>>(), ["v"]);
    let coordinates = message.coordinates.clone().unwrap();
    assert_eq!(&*coordinates.origin, "pubsub/shop/arrives");
    settle(&source.settler(), &delivery.id, Settlement::Retry(Duration::ZERO)).await;
    let again = take(&mut source, 1).await.remove(0);
    assert!(matches!(&coordinates.position, Position::Id(_)));
    assert_eq!(again.message.coordinates.as_ref().unwrap().position, coordinates.position);
    assert_eq!(again.message.timestamp, message.timestamp, "it is the time of the publication");
    assert_ne!(again.id, delivery.id);
    settle(&source.settler(), &again.id, Settlement::Ack).await;
    source.close().await.unwrap();
    assert!(fixture.emulator.pull(fixture.name).await.is_empty());
}

async fn the_key_of_a_subscription_without_ordering_orders_nothing() {
    let fixture = Fixture::new("unordered", json!({})).await;
    fixture.publish(&["a"]).await;
    let mut source = fixture.source().await;
    assert_eq!(take(&mut source, 1).await[0].message.ordering_key, None);
}

async fn the_deadline_of_the_url_counts_and_not_that_of_the_subscription() {
    let fixture = Fixture::ordered("deadline").await;
    fixture.publish(&["a"]).await;
    let mut first = fixture.source().await;
    let delivery = take(&mut first, 1).await.remove(0);
    first.stop_reading().await;
    let until = delivery.leased_until.unwrap();
    assert!(until <= runtime().boottime_now() + Duration::from_secs(10));
    let begun = Instant::now();
    // A lease of ten minutes would outlast the test.
    let mut second = fixture.source().await;
    assert_eq!(texts(&take(&mut second, 1).await), ["a"]);
    assert!(begun.elapsed() > Duration::from_secs(5), "the lease has ended");
    assert!(!first.settler().is_ours(&delivery.id));
}

async fn a_retried_message_arrives_again_not_before_its_delay() {
    const DELAY: Duration = Duration::from_secs(3);
    let fixture = Fixture::ordered("retried").await;
    fixture.publish(&["a"]).await;
    let mut source = fixture.source().await;
    let delivery = take(&mut source, 1).await.remove(0);
    let begun = Instant::now();
    settle(&source.settler(), &delivery.id, Settlement::Retry(DELAY)).await;
    assert_eq!(texts(&take(&mut source, 1).await), ["a"]);
    assert!(begun.elapsed() + Duration::from_millis(200) > DELAY);
}

async fn a_settlement_of_a_delivery_that_is_not_ours_does_nothing() {
    let fixture = Fixture::ordered("foreign").await;
    fixture.publish(&["a"]).await;
    let mut source = fixture.source().await;
    let delivery = take(&mut source, 1).await.remove(0);
    let lane = Lane { generation: 7, ..delivery.id.lane.clone() };
    settle(&source.settler(), &DeliveryId { lane, ..delivery.id.clone() }, Settlement::Ack).await;
    settle(&source.settler(), &DeliveryId { number: 99, ..delivery.id.clone() }, Settlement::Ack).await;
    let results = source.settler().settle(vec![(delivery.id.clone(), Settlement::UpTo)]).await;
    assert_eq!(results[0].as_ref().unwrap_err().kind(), ErrorKind::Invalid);
    settle(&source.settler(), &delivery.id, Settlement::Retry(Duration::ZERO)).await;
    assert_eq!(texts(&take(&mut source, 1).await), ["a"], "nothing was acknowledged");
    let settler = source.settler();
    source.close().await.unwrap();
    let results = settler.settle(vec![(delivery.id, Settlement::Ack)]).await;
    assert_eq!(results[0].as_ref().unwrap_err().kind(), ErrorKind::NotApplied);
}

/// With exactly-once delivery the service names the id, and the source forgets the delivery. Without it `OK` is no
/// proof: the ledger of the worker is.
async fn a_stale_acknowledgement_says_nothing_without_exactly_once_and_is_named_with_it() {
    for (name, exactly_once) in [("stale", false), ("stale-once", true)] {
        let settings = json!({ "enableExactlyOnceDelivery": exactly_once, "ackDeadlineSeconds": 10 });
        let fixture = Fixture::new(name, settings).await;
        fixture.publish(&["a"]).await;
        let (mut first, mut second) = (fixture.source().await, fixture.source().await);
        let stale = take(&mut first, 1).await.remove(0);
        first.stop_reading().await;
        // Its lease ends, and another worker gets the message.
        let again = take(&mut second, 1).await.remove(0);
        settle(&first.settler(), &stale.id, Settlement::Ack).await;
        settle(&second.settler(), &again.id, Settlement::Retry(Duration::ZERO)).await;
        drop(first);
        assert_eq!(texts(&take(&mut second, 1).await), ["a"], "the stale acknowledgement did nothing");
    }
}

async fn attempts_are_counted_only_with_a_dead_letter_policy() {
    let server = PubSubServer::shared().await.unwrap();
    Emulator::at(server.address()).create_topic("attempts-dead").await;
    let policy = json!({ "deadLetterTopic": "projects/shop/topics/attempts-dead", "maxDeliveryAttempts": 20 });
    let fixture = Fixture::new("attempts", json!({ "deadLetterPolicy": policy })).await;
    fixture.publish(&["a"]).await;
    let mut source = fixture.source().await;
    for attempt in 1..=3 {
        let delivery = take(&mut source, 1).await.remove(0);
        assert_eq!(delivery.attempt, Some(attempt));
        settle(&source.settler(), &delivery.id, Settlement::Retry(Duration::ZERO)).await;
    }
}

async fn a_source_that_closes_gives_back_what_no_worker_got() {
    let fixture = Fixture::ordered("closes").await;
    fixture.publish(&["a", "b"]).await;
    let mut source = fixture.source().await;
    let taken = some(&mut source, one()).await;
    source.close().await.unwrap();
    let mut other = fixture.source().await;
    assert_eq!(texts(&take(&mut other, 1).await), ["b"]);
    assert_eq!(texts(&taken), ["a"]);
}

async fn without_room_a_closed_lane_gets_nothing() {
    let fixture = Fixture::ordered("no-room").await;
    fixture.publish(&["a", "b"]).await;
    let mut source = fixture.source().await;
    let lane = some(&mut source, one()).await.remove(0).id.lane;
    let full = Room { closed: closed(&lane), ..room(10) };
    let waited = tokio::time::timeout(Duration::from_millis(300), source.next(full)).await;
    assert!(waited.is_err(), "{waited:?}");
    assert_eq!(texts(&some(&mut source, one()).await), ["b"]);
}

async fn a_missing_subscription_is_unusable() {
    let server = PubSubServer::shared().await.unwrap();
    let url = server.named("no-such-subscription").parse().unwrap();
    let error = PubSubSource::connect(&url, runtime()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unusable);
    assert!(error.to_string().contains("no-such-subscription"), "{error}");
    let config: PubSubSinkConfig = server.named("no-such-topic").parse().unwrap();
    let sink = PubSubSink::open(config, runtime()).unwrap();
    assert_eq!(sink.check().await.unwrap_err().kind(), ErrorKind::Unusable);
    let event = Arc::new(OutgoingEvent::new(EventId::from_bytes([1; 16]), "x", "x"));
    let published = sink.publish(&event).await;
    assert!(matches!(&published, Published::NotPublished { after, .. } if !after.is_zero()), "{published:?}");
}

async fn a_stream_that_is_cut_goes_on_and_loses_nothing() {
    const MESSAGES: usize = 20;
    let (server, http) = (PsTestServer::shared().await.unwrap(), http_client());
    let send = async |question: &str, body: Value| {
        let url = format!("http://{}/{question}?topic=cut", server.test_address());
        assert!(ask(&http, Method::POST, &url, &body).await.0.is_success());
    };
    send("create", Value::Null).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let url = format!("pubsub://shop/cut?deadline=10&endpoint=http://{}", proxy.address());
    let mut source = PubSubSource::connect(&url.parse().unwrap(), runtime()).await.unwrap();
    let mut seen = BTreeSet::new();
    for number in 0..MESSAGES {
        let name = format!("m{number}");
        send("publish", json!({ "data": BASE64_STANDARD.encode(&name) })).await;
        while !seen.contains(&name) {
            for delivery in some(&mut source, room(10)).await {
                // The broker may not have got it: then it comes again.
                let _ = source.settler().settle(vec![(delivery.id.clone(), Settlement::Ack)]).await;
                seen.insert(text(&delivery));
            }
        }
        if number % 5 == 0 {
            proxy.reset();
        }
    }
    assert_eq!(seen.len(), MESSAGES);
    source.close().await.unwrap();
}

async fn events_that_are_published_twice_arrive_twice_under_one_id() {
    let fixture = Fixture::ordered("twice").await;
    let sink = fixture.sink();
    assert_eq!(sink.window(), None);
    let mut event = OutgoingEvent::new(EventId::from_bytes([1; 16]), fixture.name, "x");
    event.ordering_key = Some("k".into());
    let event = Arc::new(event);
    for _ in 0..2 {
        let published = sink.publish(&event).await;
        assert!(matches!(published, Published::Yes { caught: false }), "{published:?}");
    }
    let mut source = fixture.source().await;
    let taken = take(&mut source, 2).await;
    let ids: Vec<_> = taken.iter().flat_map(|delivery| delivery.message.headers.all("Idempotency-Key")).collect();
    assert_eq!(ids, [event.id.to_string().as_bytes(); 2]);
    let coordinates: Vec<_> = taken.iter().map(|delivery| &delivery.message.coordinates).collect();
    assert_ne!(coordinates[0], coordinates[1], "for Pub/Sub they are two messages");
    assert!(is_quiet(&mut source, Duration::from_millis(200)).await);
}
