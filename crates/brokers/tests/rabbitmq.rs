//! What is peculiar to RabbitMQ: its limits, and the errors that end a channel or a connection.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]
#![expect(clippy::disallowed_methods, reason = "the deadline of a test is in real time")]

#[path = "common/rabbitmq.rs"]
#[allow(dead_code, reason = "shared with the suites")]
mod amqp;
#[path = "common/authority.rs"]
mod authority;
#[allow(dead_code, reason = "shared with the tests of other brokers")]
mod common;
#[path = "common/rabbitmq_sink.rs"]
mod sink;

use std::collections::BTreeSet;
use std::future::pending;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use hapax_brokers::RabbitMqSource;
use hapax_core::broker::{DeadReason, Delivery, Event, Job, Pause, Process, Settlement, Source, Verdict};
use hapax_core::worker::{MessageIdentity, Worker};
use hapax_core::{ErrorKind, Result};
use hapax_testkit::MemoryDeadLetters;
use hapax_testkit::servers::{self, RabbitMqServer};
use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection};

use amqp::{QueueKind, connect};
use authority::CertificateAuthority;
use common::{DEADLINE, event, is_quiet, room, runtime, settle, take, text, texts};
use sink::{
    a_blocked_broker_takes_no_event_and_the_sink_says_so_at_once, a_missing_exchange_is_a_finding_and_others_work,
    a_silent_host_is_passed_over, each_event_without_a_queue_is_told_from_those_beside_it,
    what_ends_a_connection_or_a_channel_is_refused_and_others_are_published,
};

fn main() -> ExitCode {
    macro_rules! tests {
        ($($name:ident),* $(,)?) => { [$(servers::test(stringify!($name), "rabbitmq", $name)),*] };
    }
    servers::main(tests![
        a_pause_of_three_timeouts_gives_everything_back_once,
        a_message_is_a_dead_letter_before_its_queue_drops_it,
        a_second_settlement_does_nothing,
        a_worker_that_stops_keeps_the_queue_until_it_has_ended_what_it_holds,
        a_missing_queue_is_refused_and_one_that_goes_away_is_waited_for,
        a_stream_is_refused,
        the_next_host_is_tried,
        a_server_with_a_private_authority_is_trusted_and_sees_the_client,
        a_blocked_broker_takes_no_event_and_the_sink_says_so_at_once,
        a_missing_exchange_is_a_finding_and_others_work,
        a_silent_host_is_passed_over,
        each_event_without_a_queue_is_told_from_those_beside_it,
        what_ends_a_connection_or_a_channel_is_refused_and_others_are_published,
    ])
}

/// A queue of its own.
struct Queue {
    url: String,
    name: &'static str,
    channel: Channel,
    _connection: Connection,
}

impl Queue {
    async fn on(server: &RabbitMqServer, name: &'static str, kind: &str, limit: Option<i32>) -> Self {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        if let Some(limit) = limit {
            arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(limit));
        }
        Self::with(server, name, arguments).await
    }

    async fn with(server: &RabbitMqServer, name: &'static str, arguments: FieldTable) -> Self {
        let (connection, channel) = connect(server).await;
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(name.into(), options, arguments).await.unwrap();
        Self { url: server.url(), name, channel, _connection: connection }
    }

    async fn send(&self, payload: &str) {
        let mut headers = FieldTable::default();
        headers.insert("Idempotency-Key".into(), AMQPValue::LongString(payload.into()));
        let properties = BasicProperties::default().with_headers(headers).with_delivery_mode(2);
        let options = BasicPublishOptions::default();
        let sent = self.channel.basic_publish("".into(), self.name.into(), options, payload.as_bytes(), properties);
        sent.await.unwrap().await.unwrap();
    }

    /// The number of messages that no consumer has.
    async fn ready(&self) -> u32 {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(self.name.into(), options, FieldTable::default()).await.unwrap().message_count()
    }

    async fn source(&self, parameters: &str) -> Result<RabbitMqSource> {
        open(&format!("{}?queue={}{parameters}", self.url, self.name)).await
    }
}

async fn open(url: &str) -> Result<RabbitMqSource> {
    RabbitMqSource::connect(url.parse().unwrap(), runtime()).await
}

/// The deliveries of this many messages, the last one of each. Acknowledges them.
async fn finish(source: &mut RabbitMqSource, count: usize) -> Vec<Delivery> {
    let (mut finished, mut last): (BTreeSet<String>, Vec<Delivery>) = Default::default();
    let begun = Instant::now();
    while finished.len() < count {
        assert!(begun.elapsed() < DEADLINE, "{finished:?}");
        let Event::Deliveries(deliveries) = event(source, room(100)).await else { continue };
        for delivery in deliveries {
            settle(&source.settler(), &delivery.id, Settlement::Ack).await;
            finished.insert(text(&delivery));
            last.push(delivery);
        }
    }
    last
}

const TIMEOUT: Duration = Duration::from_secs(3);

/// Without the tick the broker looks at the timeout once a minute.
const SHORT_TIMEOUT: [&str; 2] = ["consumer_timeout = 3000", "--rabbit={channel_tick_interval,300}"];

async fn a_pause_of_three_timeouts_gives_everything_back_once() {
    let server = RabbitMqServer::start(&SHORT_TIMEOUT).await.unwrap();
    // A queue drops a message after the fourth delivery.
    let (queue, runtime) = (Queue::on(&server, "paused", "quorum", Some(4)).await, runtime());
    for n in 0..20 {
        queue.send(&n.to_string()).await;
    }
    let mut source = queue.source("&consumer-timeout=3").await.unwrap();
    let delivered = runtime.boottime_now();
    let held = take(&mut source, 20).await;
    let since = runtime.boottime_now();
    source.note_pause(Some(Pause { since, until: since + 3 * TIMEOUT }));
    let lost = event(&mut source, room(100)).await;
    assert!(matches!(&lost, Event::Lost { lanes } if lanes[..] == [held[0].id.lane.clone()]), "{lost:?}");
    assert!(runtime.boottime_now() < delivered + TIMEOUT, "before the broker ends the channel");
    assert!(!source.settler().is_ours(&held[0].id));
    let probe = take(&mut source, 1).await;
    assert!(runtime.boottime_now() >= since + 3 * TIMEOUT, "nothing is taken before the end of the pause");
    assert_eq!((probe[0].attempt, queue.ready().await), (Some(2), 19), "one message at a time");
    source.note_pause(None);
    settle(&source.settler(), &probe[0].id, Settlement::Ack).await;
    let rest = finish(&mut source, 19).await;
    let most = rest.iter().filter_map(|delivery| delivery.attempt).max();
    assert!(most <= Some(3), "{most:?}");
    // A message that is held for longer, without a pause, arrives again.
    queue.send("slow").await;
    let held = take(&mut source, 1).await;
    assert!(matches!(event(&mut source, room(100)).await, Event::Lost { .. }));
    settle(&source.settler(), &held[0].id, Settlement::Ack).await;
    assert_eq!(finish(&mut source, 1).await[0].attempt, Some(2));
    source.close().await.unwrap();
    assert_eq!(queue.ready().await, 0);
}

/// Waits for ever.
#[derive(Debug)]
struct Stuck;

#[async_trait]
impl Process for Stuck {
    async fn process(&self, _jobs: Vec<Job>) -> Vec<Verdict> {
        pending().await
    }
}

async fn a_message_is_a_dead_letter_before_its_queue_drops_it() {
    let server = RabbitMqServer::shared().await.unwrap();
    let queue = Queue::on(&server, "limited", "quorum", Some(5)).await;
    queue.send("poison").await;
    for attempt in [None, Some(2)] {
        // As a worker that crashes at the message.
        let mut source = queue.source("&delivery-limit=5").await.unwrap();
        assert_eq!(take(&mut source, 1).await[0].attempt, attempt);
        source.close().await.unwrap();
    }
    let dead = Arc::new(MemoryDeadLetters::new());
    let source = Box::new(queue.source("&delivery-limit=5").await.unwrap());
    let worker = Worker::builder(source, Arc::new(Stuck), Arc::clone(&dead) as _);
    let worker = worker.identity(MessageIdentity::new("limited").unwrap()).runtime(runtime()).build().unwrap();
    let is_dead = async {
        let begun = Instant::now();
        while dead.letters().is_empty() {
            assert!(begun.elapsed() < DEADLINE, "no dead letter");
            hapax_testkit::pause().await;
        }
    };
    worker.run(is_dead).await.unwrap();
    let letters = dead.letters();
    assert_eq!(letters[0].reason, DeadReason::DeliveriesExhausted);
    assert!(letters[0].operation.is_some(), "a redrive finds its record");
    assert_eq!(queue.ready().await, 0, "it is acknowledged");
}

/// The broker would end the channel.
async fn a_second_settlement_does_nothing() {
    let server = RabbitMqServer::shared().await.unwrap();
    let queue = Queue::on(&server, "settled", "classic", None).await;
    queue.send("first").await;
    let mut source = queue.source("").await.unwrap();
    let first = take(&mut source, 1).await.remove(0);
    for settlement in [Settlement::Ack, Settlement::Ack, Settlement::Retry(Duration::ZERO)] {
        settle(&source.settler(), &first.id, settlement).await;
    }
    queue.send("second").await;
    let second = take(&mut source, 1).await.remove(0);
    assert_eq!((text(&second), &second.id.lane), ("second".to_owned(), &first.id.lane), "the channel lives");
    settle(&source.settler(), &second.id, Settlement::Ack).await;
    source.close().await.unwrap();
    assert_eq!(queue.ready().await, 0);
}

/// The next message. The end of an earlier channel is told before.
async fn take_after_loss(source: &mut RabbitMqSource) -> Delivery {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < DEADLINE, "nothing arrives");
        if let Event::Deliveries(deliveries) = event(source, room(1)).await {
            return deliveries.into_iter().next().unwrap();
        }
    }
}

/// Otherwise another worker would get later messages of a key before the ones that are held here.
async fn a_worker_that_stops_keeps_the_queue_until_it_has_ended_what_it_holds() {
    let server = RabbitMqServer::shared().await.unwrap();
    let queue = Queue::with(&server, "handed-over", QueueKind::Quorum.with_one_consumer()).await;
    for payload in ["1", "2", "3", "4"] {
        queue.send(payload).await;
    }
    let ordered = "&order=routing-key&prefetch=2";
    let mut first = queue.source(ordered).await.unwrap();
    let held = take(&mut first, 2).await;
    let mut second = queue.source(ordered).await.unwrap();
    assert!(is_quiet(&mut second, Duration::from_millis(500)).await, "the first one is active");
    first.stop_reading().await;
    settle(&first.settler(), &held[0].id, Settlement::Ack).await;
    assert!(is_quiet(&mut second, Duration::from_secs(1)).await, "message 2 is held");
    first.close().await.unwrap();
    assert_eq!(texts(&take(&mut second, 2).await), ["2", "3"]);
}

/// The broker ends the channel of a question about a missing queue.
async fn a_missing_queue_is_refused_and_one_that_goes_away_is_waited_for() {
    let server = RabbitMqServer::shared().await.unwrap();
    let url = format!("{}?queue=missing", server.url());
    let error = open(&url).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unusable);
    assert!(error.to_string().contains("no queue `missing`"), "{error}");
    let queue = Queue::on(&server, "missing", "classic", None).await;
    let mut source = open(&url).await.unwrap();
    queue.channel.queue_delete("missing".into(), Default::default()).await.unwrap();
    let begun = Instant::now();
    let error = loop {
        assert!(begun.elapsed() < DEADLINE);
        if let Err(error) = source.next(room(1)).await {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::NotApplied);
    assert!(error.to_string().contains("no queue `missing`"), "{error}");
    let queue = Queue::on(&server, "missing", "classic", None).await;
    queue.send("payload").await;
    assert_eq!(text(&take_after_loss(&mut source).await), "payload");
    let denied = open(&url.replace("amqp://", "amqp://guest:wrong@")).await.map(drop).unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Unusable, "{denied}");
}

async fn a_stream_is_refused() {
    let server = RabbitMqServer::shared().await.unwrap();
    let queue = Queue::on(&server, "stream", "stream", None).await;
    let mut source = queue.source("").await.unwrap();
    // A reader gets what is published after it has begun.
    let publishing = async {
        loop {
            queue.send("payload").await;
        }
    };
    let error = tokio::select! {
        next = tokio::time::timeout(DEADLINE, source.next(room(1))) => next.expect("an error in time").unwrap_err(),
        () = publishing => unreachable!("it goes on"),
    };
    assert_eq!(error.kind(), ErrorKind::Unusable);
    assert!(error.to_string().contains("is a stream"), "{error}");
}

async fn the_next_host_is_tried() {
    let server = RabbitMqServer::shared().await.unwrap();
    let queue = Queue::on(&server, "hosts", "classic", None).await;
    queue.send("payload").await;
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut source = open(&format!("amqp://{unused},{}?queue=hosts", server.address())).await.unwrap();
    assert_eq!(text(&take(&mut source, 1).await[0]), "payload");
}

async fn a_server_with_a_private_authority_is_trusted_and_sees_the_client() {
    let authority = CertificateAuthority::new();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = RabbitMqServer::start(&[
        &format!("listeners.ssl.1 = {address}"),
        &format!("ssl_options.cacertfile = {}", authority.path("ca")),
        &format!("ssl_options.certfile = {}", authority.path("server-cert")),
        &format!("ssl_options.keyfile = {}", authority.path("server-key")),
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = true",
    ])
    .await
    .unwrap();
    let queue = Queue::on(&server, "secret", "classic", None).await;
    queue.send("payload").await;
    let url = |parameters: String| format!("amqps://{address}?queue=secret{parameters}");
    let (ca, cert, key) = (authority.path("ca"), authority.path("client-cert"), authority.path("client-key"));
    let mut source = open(&url(format!("&ca={ca}&cert={cert}&key={key}"))).await.unwrap();
    assert_eq!(text(&take(&mut source, 1).await[0]), "payload");
    // Neither an unknown authority nor a missing certificate of the client is accepted.
    assert!(open(&url(format!("&cert={cert}&key={key}"))).await.is_err());
    assert!(open(&url(format!("&ca={ca}"))).await.is_err());
}
