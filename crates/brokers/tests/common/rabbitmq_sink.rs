//! A sink at the limits of RabbitMQ.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hapax_brokers::{RabbitMqSink, RabbitMqSinkConfig};
use hapax_core::EventId;
use hapax_core::outbox::{OutgoingEvent, Published, Sink};
use hapax_testkit::servers::RabbitMqServer;

use crate::Queue;
use crate::common::{DEADLINE, runtime};

async fn open(url: &str) -> RabbitMqSink {
    RabbitMqSink::open(url.parse::<RabbitMqSinkConfig>().unwrap(), runtime()).await.unwrap()
}

fn event(topic: &str, payload: Vec<u8>) -> OutgoingEvent {
    OutgoingEvent::new(EventId::from_bytes([7; 16]), topic, payload)
}

async fn publish(sink: &RabbitMqSink, event: OutgoingEvent) -> Published {
    sink.publish(&Arc::new(event)).await
}

/// The broker reads nothing more of such a connection, and does not answer.
pub(crate) async fn a_blocked_broker_takes_no_event_and_the_sink_says_so_at_once() {
    // Less than the broker needs for itself.
    let server = RabbitMqServer::start(&["vm_memory_high_watermark.absolute = 1MB"]).await.unwrap();
    let sink = open(&format!("{}?timeout=60", server.url())).await;
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < DEADLINE, "the broker blocks nothing");
        // The broker blocks a connection on which something is published.
        let published = publish(&sink, event("none", b"x".to_vec()));
        let Ok(published) = tokio::time::timeout(Duration::from_millis(300), published).await else { continue };
        match published {
            Published::NotPublished { cause, .. } if cause.to_string().contains("memory") => break,
            // Before the alarm, an event without a queue.
            Published::NotPublished { .. } => {}
            Published::Yes { .. } | Published::Unknown(_) | Published::Refused(_) => panic!("{published:?}"),
        }
    }
    let findings = sink.check().await.unwrap();
    assert!(findings.iter().any(|finding| format!("{finding:?}").contains("memory")), "{findings:?}");
}

pub(crate) async fn a_missing_exchange_is_a_finding_and_others_work() {
    let server = RabbitMqServer::shared().await.unwrap();
    let queue = Queue::on(&server, "found", "classic", None).await;
    let sink = open(&format!("{}?exchange=not-declared", server.url())).await;
    let findings = sink.check().await.unwrap();
    assert!(findings.iter().any(|finding| format!("{finding:?}").contains("not-declared")), "{findings:?}");
    let published = publish(&sink, event("found", b"x".to_vec())).await;
    assert!(matches!(published, Published::NotPublished { .. }), "{published:?}");
    let sink = open(&server.url()).await;
    assert!(matches!(publish(&sink, event("found", b"x".to_vec())).await, Published::Yes { .. }));
    assert_eq!(queue.ready().await, 1);
}

pub(crate) async fn what_ends_a_connection_or_a_channel_is_refused_and_others_are_published() {
    let server = RabbitMqServer::start(&["max_message_size = 20000"]).await.unwrap();
    let queue = Queue::on(&server, "small", "quorum", None).await;
    let sink = open(&server.url()).await;
    let mut large = event("small", b"x".to_vec());
    large.headers = [("own", "v".repeat(140_000))].into_iter().collect();
    let refused = publish(&sink, large).await;
    assert!(matches!(refused, Published::Refused(_)), "more than a frame: {refused:?}");
    // The broker tells its limit only by an error.
    let refused = publish(&sink, event("small", vec![0; 30_000])).await;
    assert!(matches!(refused, Published::Refused(_)), "more than the broker takes: {refused:?}");
    assert!(matches!(publish(&sink, event("small", b"x".to_vec())).await, Published::Yes { .. }));
    assert_eq!(queue.ready().await, 1);
}

/// The broker returns an event before it confirms it, and confirmations of other events come in between.
pub(crate) async fn each_event_without_a_queue_is_told_from_those_beside_it() {
    const ROUNDS: u8 = 20;
    const AT_ONCE: u8 = 64;
    let server = RabbitMqServer::shared().await.unwrap();
    let queue = Queue::on(&server, "bound", "quorum", None).await;
    let sink = open(&server.url()).await;
    for round in 0..ROUNDS {
        let publications = (0..AT_ONCE).map(|number| {
            let topic = if number % 2 == 0 { "bound" } else { "unbound" };
            let id = EventId::from_bytes([round, number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            publish(&sink, OutgoingEvent::new(id, topic, "x"))
        });
        for (number, published) in join_all(publications).await.into_iter().enumerate() {
            let is_right = match published {
                Published::Yes { .. } => number % 2 == 0,
                Published::NotPublished { .. } => number % 2 == 1,
                Published::Unknown(_) | Published::Refused(_) => false,
            };
            assert!(is_right, "round {round}, event {number}");
        }
    }
    assert_eq!(queue.ready().await, u32::from(ROUNDS) * u32::from(AT_ONCE) / 2);
}

/// A publication ends before the driver notices that a broker is silent, and before the sink gives up a host that takes
/// connections and says nothing.
pub(crate) async fn a_silent_host_is_passed_over() {
    const HEARTBEAT: Duration = Duration::from_secs(10);
    let (first, second) = (RabbitMqServer::start(&[]).await.unwrap(), RabbitMqServer::shared().await.unwrap());
    let _queue = Queue::on(&second, "second-host", "classic", None).await;
    let sink = open(&format!("amqp://{},{}?timeout=1&heartbeat=10", first.address(), second.address())).await;
    let published = publish(&sink, event("second-host", b"x".to_vec())).await;
    assert!(matches!(published, Published::NotPublished { .. }), "the first host has no such queue: {published:?}");
    first.pause().unwrap();
    let begun = Instant::now();
    let published = publish(&sink, event("second-host", b"x".to_vec())).await;
    assert!(matches!(published, Published::Unknown(_)), "no confirmation: {published:?}");
    assert!(begun.elapsed() < HEARTBEAT, "the publication has a deadline of its own");
    first.kill();
    let begun = Instant::now();
    let _silent = loop {
        assert!(begun.elapsed() < DEADLINE, "the address stays in use");
        match TcpListener::bind(first.address()) {
            Ok(listener) => break listener,
            Err(_) => hapax_testkit::pause().await,
        }
    };
    let begun = Instant::now();
    while !matches!(publish(&sink, event("second-host", b"x".to_vec())).await, Published::Yes { .. }) {
        assert!(begun.elapsed() < DEADLINE, "the second host is not tried");
    }
}
