//! A source and a sink on a stand-in for SQS, and what surprises users of SQS.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]
#![expect(clippy::disallowed_methods, reason = "the deadline of a test is in real time")]

mod common;
#[path = "common/elasticmq.rs"]
mod elasticmq;
#[path = "common/elasticmq_send.rs"]
mod elasticmq_send;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_brokers::{SqsSink, SqsSinkConfig, SqsSource};
use hapax_core::broker::{DeliveryId, Event, Lane, Position, Room, Settlement, Source};
use hapax_core::outbox::{OutgoingEvent, Published, Sink};
use hapax_core::{ErrorKind, EventId};
use hapax_testkit::servers::{self, ElasticMqServer};
use serde_json::json;

use common::{DEADLINE, closed, is_quiet, room, runtime, settle, some, take, text, texts};
use elasticmq::TestQueue;

fn main() -> ExitCode {
    macro_rules! tests {
        ($($name:ident),* $(,)?) => { [$(servers::test(stringify!($name), "elasticmq", $name)),*] };
    }
    servers::main(tests![
        a_message_arrives_with_its_coordinates_attempt_and_group,
        the_group_of_a_standard_queue_orders_nothing,
        a_call_that_is_dropped_hides_no_message,
        each_receipt_has_the_lease_of_the_url,
        an_extended_delivery_goes_to_nobody_else,
        a_retried_message_arrives_again_not_before_its_delay,
        a_settlement_of_a_delivery_that_is_not_ours_does_nothing,
        a_source_that_closes_gives_back_what_no_worker_got,
        without_room_nothing_is_asked_for,
        a_missing_queue_is_unusable,
        a_service_that_does_not_answer_is_given_up,
        events_of_one_body_are_different_events,
        a_large_binary_event_is_refused_with_its_size,
    ])
}

struct Fixture {
    server: Arc<ElasticMqServer>,
    queue: TestQueue,
}

impl Fixture {
    async fn new(name: &str) -> Self {
        let server = ElasticMqServer::shared().await.unwrap();
        let queue = TestQueue::named(&server, name);
        queue.create().await;
        Self { server, queue }
    }

    async fn source(&self, parameters: &str) -> SqsSource {
        let url = format!("sqs+http://{}/{}?wait=1{parameters}", self.server.address(), self.queue.name);
        SqsSource::connect(&url.parse().unwrap(), runtime()).await.unwrap()
    }

    async fn sink(&self) -> SqsSink {
        let config: SqsSinkConfig = format!("sqs+http://{}", self.server.address()).parse().unwrap();
        SqsSink::open(config, runtime()).await.unwrap()
    }

    async fn send(&self, bodies: &[&str]) {
        for (number, body) in bodies.iter().enumerate() {
            self.queue.send(body, &[("x-own".into(), "v".into())], "g", number).await;
        }
    }

    /// How many messages are visible, and how many are hidden.
    async fn counts(&self) -> (u64, u64) {
        let asked = self.queue.call("GetQueueAttributes", json!({ "AttributeNames": ["All"] })).await;
        let count = |name: &str| asked["Attributes"][name].as_str().unwrap().parse().unwrap();
        (count("ApproximateNumberOfMessages"), count("ApproximateNumberOfMessagesNotVisible"))
    }

    fn event(&self, number: u8, payload: Vec<u8>) -> Arc<OutgoingEvent> {
        Arc::new(OutgoingEvent::new(EventId::from_bytes([number; 16]), &self.queue.name, payload))
    }
}

async fn a_message_arrives_with_its_coordinates_attempt_and_group() {
    let fixture = Fixture::new("arrives.fifo").await;
    fixture.send(&["a"]).await;
    let mut source = fixture.source("").await;
    assert_eq!(&**source.name(), "sqs/arrives.fifo");
    let delivery = take(&mut source, 1).await.remove(0);
    let message = &delivery.message;
    assert_eq!((text(&delivery).as_str(), delivery.attempt), ("a", Some(1)));
    assert_eq!(message.ordering_key.as_deref(), Some(&b"g"[..]));
    assert_eq!(message.headers.all("x-own").collect::<Vec<_>>(), ["v"]);
    let coordinates = message.coordinates.clone().unwrap();
    assert_eq!(&*coordinates.origin, "sqs/000000000000/arrives.fifo");
    settle(&source.settler(), &delivery.id, Settlement::Retry(Duration::ZERO)).await;
    let again = take(&mut source, 1).await.remove(0);
    assert_eq!(again.attempt, Some(2));
    assert!(matches!(&coordinates.position, Position::Id(_)));
    assert_eq!(again.message.coordinates.as_ref().unwrap().position, coordinates.position);
    assert_ne!(again.id, delivery.id);
    settle(&source.settler(), &again.id, Settlement::Ack).await;
    assert_eq!(fixture.counts().await, (0, 0));
    source.close().await.unwrap();
}

async fn the_group_of_a_standard_queue_orders_nothing() {
    let fixture = Fixture::new("standard").await;
    fixture.send(&["a"]).await;
    let mut source = fixture.source("").await;
    assert_eq!(take(&mut source, 1).await[0].message.ordering_key, None);
}

async fn a_call_that_is_dropped_hides_no_message() {
    const MESSAGES: usize = 40;
    let fixture = Fixture::new("dropped").await;
    let bodies: Vec<String> = (0..MESSAGES).map(|number| number.to_string()).collect();
    let mut source = fixture.source("&receivers=4").await;
    let begun = Instant::now();
    let (mut arrived, mut drops) = (Vec::new(), 0);
    let send = async {
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        fixture.send(&bodies).await;
    };
    let receive = async {
        while arrived.len() < MESSAGES || drops < 1000 {
            assert!(begun.elapsed() < DEADLINE, "{} have arrived, after {drops} drops", arrived.len());
            match tokio::time::timeout(Duration::from_millis(1), source.next(room(3))).await {
                Ok(event) => arrived.extend(match event.unwrap() {
                    Event::Deliveries(deliveries) => deliveries,
                    event @ (Event::Revoking { .. } | Event::Lost { .. }) => panic!("{event:?}"),
                }),
                Err(_) => drops += 1,
            }
        }
    };
    tokio::join!(send, receive);
    assert!(arrived.iter().all(|delivery| delivery.attempt == Some(1)), "a receipt is lost");
    let mut found: Vec<usize> = arrived.iter().map(|delivery| text(delivery).parse().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, Vec::from_iter(0..MESSAGES));
}

async fn each_receipt_has_the_lease_of_the_url() {
    let fixture = Fixture::new("lease").await;
    fixture.send(&["a"]).await;
    let mut source = fixture.source("&visibility=2").await;
    let first = take(&mut source, 1).await.remove(0);
    assert!(source.settler().is_ours(&first.id));
    // The queue itself hides a message for 30 s.
    let begun = Instant::now();
    let second = take(&mut source, 1).await.remove(0);
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(second.attempt, Some(2));
    while source.settler().is_ours(&first.id) {
        assert!(begun.elapsed() < DEADLINE, "its lease does not end");
        assert!(is_quiet(&mut source, Duration::from_millis(10)).await);
    }
}

async fn an_extended_delivery_goes_to_nobody_else() {
    let fixture = Fixture::new("extended").await;
    fixture.send(&["a"]).await;
    let mut source = fixture.source("&visibility=2").await;
    let mut other = fixture.source("&visibility=2").await;
    let delivery = take(&mut source, 1).await.remove(0);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        settle(&source.settler(), &delivery.id, Settlement::Extend(Duration::from_secs(4))).await;
        assert!(is_quiet(&mut other, Duration::from_millis(500)).await);
    }
    assert!(source.settler().is_ours(&delivery.id));
}

async fn a_retried_message_arrives_again_not_before_its_delay() {
    let fixture = Fixture::new("retried").await;
    fixture.send(&["a"]).await;
    let mut source = fixture.source("").await;
    let delivery = take(&mut source, 1).await.remove(0);
    let begun = Instant::now();
    settle(&source.settler(), &delivery.id, Settlement::Retry(Duration::from_millis(1500))).await;
    take(&mut source, 1).await;
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
}

async fn a_settlement_of_a_delivery_that_is_not_ours_does_nothing() {
    let fixture = Fixture::new("settled").await;
    fixture.send(&["a"]).await;
    let mut source = fixture.source("&visibility=2").await;
    let delivery = take(&mut source, 1).await.remove(0);
    let settler = source.settler();
    let strange = Lane { topic: "settled".into(), partition: 0, generation: 7 };
    settle(&settler, &DeliveryId { lane: strange, ..delivery.id.clone() }, Settlement::Ack).await;
    settle(&settler, &DeliveryId { number: 99, ..delivery.id.clone() }, Settlement::Ack).await;
    assert_eq!(settler.lag().await.unwrap(), Some(1));
    settle(&settler, &delivery.id, Settlement::Ack).await;
    settle(&settler, &delivery.id, Settlement::Ack).await;
    settle(&settler, &delivery.id, Settlement::Extend(Duration::from_secs(2))).await;
    assert_eq!(settler.lag().await.unwrap(), Some(0));
    // Another consumer has deleted it.
    fixture.send(&["b"]).await;
    let delivery = take(&mut source, 1).await.remove(0);
    let handle = String::from_utf8_lossy(&delivery.id.handle).into_owned();
    fixture.queue.call("DeleteMessage", json!({ "ReceiptHandle": handle })).await;
    settle(&settler, &delivery.id, Settlement::Ack).await;
}

async fn a_source_that_closes_gives_back_what_no_worker_got() {
    let fixture = Fixture::new("closed.fifo").await;
    fixture.send(&["a", "b", "c"]).await;
    let mut source = fixture.source("").await;
    // All of them arrive. There is room for one, and the others wait with the source.
    let taken = some(&mut source, Room { bytes: 1, ..room(3) }).await;
    assert_eq!(fixture.counts().await, (0, 3));
    assert_eq!(texts(&taken), ["a"]);
    settle(&source.settler(), &taken[0].id, Settlement::Ack).await;
    source.close().await.unwrap();
    assert_eq!(fixture.counts().await, (2, 0));
    let late = source.settler().settle(vec![(taken[0].id.clone(), Settlement::Ack)]).await;
    assert_eq!(late[0].as_ref().unwrap_err().kind(), ErrorKind::NotApplied);
    let mut next = fixture.source("").await;
    assert_eq!(texts(&take(&mut next, 2).await), ["b", "c"]);
}

async fn without_room_nothing_is_asked_for() {
    let fixture = Fixture::new("room").await;
    fixture.send(&["a", "b", "c"]).await;
    let mut source = fixture.source("").await;
    let lane = Lane { topic: "room".into(), partition: 0, generation: 0 };
    for room in [room(0), Room { bytes: 0, ..room(5) }, Room { closed: closed(&lane), ..room(5) }] {
        assert!(tokio::time::timeout(Duration::from_millis(300), source.next(room)).await.is_err());
    }
    assert_eq!(fixture.counts().await, (3, 0));
    assert_eq!(some(&mut source, room(2)).await.len(), 2);
    assert_eq!(fixture.counts().await, (1, 2));
}

async fn a_missing_queue_is_unusable() {
    let server = ElasticMqServer::shared().await.unwrap();
    for parameters in ["", "?account=000000000000"] {
        let url = format!("sqs+http://{}/missing{parameters}", server.address());
        let error = SqsSource::connect(&url.parse().unwrap(), runtime()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unusable, "{error:?}");
    }
}

async fn a_service_that_does_not_answer_is_given_up() {
    let server = ElasticMqServer::start(&[]).await.unwrap();
    let queue = TestQueue::named(&server, "silent");
    queue.create().await;
    let url = format!("sqs+http://{}/silent?wait=0", server.address());
    let mut source = SqsSource::connect(&url.parse().unwrap(), runtime()).await.unwrap();
    server.pause().unwrap();
    let begun = Instant::now();
    let error = source.next(room(1)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::NotApplied && begun.elapsed() < Duration::from_secs(30), "{error:?}");
    server.resume().unwrap();
    queue.send("a", &[], "", 0).await;
    assert_eq!(texts(&take(&mut source, 1).await), ["a"]);
}

async fn events_of_one_body_are_different_events() {
    let fixture = Fixture::new("bodies.fifo").await;
    let sink = fixture.sink().await;
    for number in 1..=2 {
        let published = sink.publish(&fixture.event(number, b"same".to_vec())).await;
        assert!(matches!(published, Published::Yes { caught: false }), "{published:?}");
    }
    assert_eq!(sink.window(), Some(Duration::from_secs(300)));
    assert_eq!(fixture.counts().await, (2, 0));
}

async fn a_large_binary_event_is_refused_with_its_size() {
    let fixture = Fixture::new("large").await;
    let sink = fixture.sink().await;
    // As text it would fit, and in base64 it is a third longer.
    let published = sink.publish(&fixture.event(1, vec![0; 900_000])).await;
    assert!(matches!(&published, Published::Refused(why) if why.contains("takes 1048576")), "{published:?}");
    let published = sink.publish(&fixture.event(2, vec![0; 700_000])).await;
    assert!(matches!(published, Published::Yes { .. }), "{published:?}");
    let mut source = fixture.source("").await;
    let delivery = take(&mut source, 1).await.remove(0);
    assert!(delivery.message.payload[..] == vec![0; 700_000][..], "the payload is another one");
}
