//! A source on real servers of NATS.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]
#![expect(clippy::disallowed_methods, reason = "the deadline of a test is in real time")]

#[path = "common/authority.rs"]
mod authority;
mod common;
#[path = "common/nats_logins.rs"]
mod logins;
#[path = "common/nats_order.rs"]
mod order;
#[path = "common/nats_sink.rs"]
mod sink;
#[path = "common/tls.rs"]
mod tls;
#[path = "common/nats_unreadable.rs"]
mod unreadable;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context, consumer, stream};
use hapax_brokers::{NatsSource, NatsUrl};
use hapax_core::ErrorKind;
use hapax_core::broker::{Acknowledges, DeliveryId, Lane, Position, Room, Settlement, Source};
use hapax_testkit::proxy::{CutPoint, NetworkFault, Proxy};
use hapax_testkit::servers::{self, NatsServer};

use common::{DEADLINE, is_quiet, room, runtime, settle, some, take, text, texts};
use logins::{
    a_token_a_seed_and_credentials_come_from_files, a_user_without_the_rights_of_a_worker_learns_it_at_once,
    two_logins_and_files_without_a_login_are_refused,
};
use order::{
    a_long_message_keeps_nothing_back_after_a_cut, the_order_holds_when_a_connection_breaks_with_messages_on_the_way,
    the_order_holds_when_a_worker_dies_with_messages, the_order_holds_when_the_lease_of_an_earlier_message_ends_later,
    what_is_given_back_at_a_stop_arrives_again_in_its_order,
};
use sink::{a_sink_whose_driver_has_died_publishes_again, the_window_of_a_sink_is_the_shortest_of_its_streams};
use tls::a_server_with_a_private_authority_is_trusted_and_sees_the_client;
use unreadable::{
    a_message_that_may_not_be_looked_at_keeps_no_others_back, a_message_that_the_driver_cannot_read_arrives_as_damaged,
    a_stored_message_with_a_status_line_is_a_delivery, an_unreadable_message_shows_its_place_and_its_bytes,
};

fn main() -> ExitCode {
    macro_rules! tests {
        ($($name:ident),* $(,)?) => { [$(servers::test(stringify!($name), "nats", $name)),*] };
    }
    servers::main(tests![
        a_message_arrives_with_headers_ordering_key_coordinates_and_attempt,
        a_missing_durable_is_created_and_an_existing_one_stays_as_it_is,
        a_stream_or_a_consumer_that_cannot_be_used_is_refused,
        an_unacknowledged_message_arrives_again_at_another_source,
        an_acknowledged_message_never_arrives_again_and_is_acknowledged_once,
        an_extended_delivery_goes_to_nobody_else,
        a_retried_message_arrives_again_not_before_its_delay,
        a_settlement_for_another_generation_or_an_unknown_delivery_does_nothing,
        no_more_arrives_than_there_is_room_for,
        a_message_larger_than_the_room_arrives_alone,
        a_message_that_the_driver_cannot_read_arrives_as_damaged,
        an_unreadable_message_shows_its_place_and_its_bytes,
        a_message_that_may_not_be_looked_at_keeps_no_others_back,
        a_sink_whose_driver_has_died_publishes_again,
        the_window_of_a_sink_is_the_shortest_of_its_streams,
        a_stored_message_with_a_status_line_is_a_delivery,
        what_is_given_back_at_a_stop_arrives_again_in_its_order,
        the_order_holds_when_a_connection_breaks_with_messages_on_the_way,
        the_order_holds_when_a_worker_dies_with_messages,
        the_order_holds_when_the_lease_of_an_earlier_message_ends_later,
        a_long_message_keeps_nothing_back_after_a_cut,
        nothing_is_lost_when_a_call_for_the_next_event_is_dropped,
        a_settlement_that_fails_is_sent_again,
        a_waiting_message_whose_lease_has_ended_is_not_handed_out,
        messages_that_wait_for_room_stay_with_their_source,
        a_source_that_closes_gives_back_what_no_worker_got,
        a_deleted_consumer_ends_the_worker,
        a_restart_of_the_server_loses_nothing,
        the_death_of_a_cluster_member_loses_nothing,
        a_wrong_password_is_refused_and_one_from_a_file_is_used,
        a_token_a_seed_and_credentials_come_from_files,
        two_logins_and_files_without_a_login_are_refused,
        a_server_with_a_private_authority_is_trusted_and_sees_the_client,
        a_user_without_the_rights_of_a_worker_learns_it_at_once,
    ])
}

/// A stream of its own on the shared server.
struct Fixture {
    context: Context,
    url: String,
    name: String,
}

impl Fixture {
    async fn new(name: &str) -> Self {
        let server = NatsServer::shared().await.unwrap();
        Self::on(&server.url(), name, 1).await
    }

    async fn on(url: &str, name: &str, replicas: usize) -> Self {
        let hosts: Vec<&str> = url.split(',').collect();
        let options = async_nats::ConnectOptions::new().user_and_password("me".into(), "open".into());
        let context = jetstream::new(options.connect(hosts).await.unwrap());
        let config = stream::Config {
            name: name.into(),
            subjects: vec![format!("{name}.>")],
            num_replicas: replicas,
            ..Default::default()
        };
        let begun = Instant::now();
        // A cluster chooses a leader first.
        while let Err(error) = context.create_stream(config.clone()).await {
            assert!(begun.elapsed() < DEADLINE, "{error}");
            hapax_testkit::pause().await;
        }
        Self { context, url: url.into(), name: name.into() }
    }

    async fn send(&self, payload: impl Into<String>) {
        let begun = Instant::now();
        let payload: bytes::Bytes = payload.into().into();
        let subject = format!("{}.x", self.name);
        loop {
            let sent = self.context.publish(subject.clone(), payload.clone()).await;
            if let Ok(sent) = sent
                && sent.await.is_ok()
            {
                return;
            }
            assert!(begun.elapsed() < DEADLINE, "the server takes no message");
            hapax_testkit::pause().await;
        }
    }

    fn url(&self, parameters: &str) -> NatsUrl {
        format!("{}/{}?durable=d{parameters}", self.url, self.name).parse().unwrap()
    }

    async fn source(&self, parameters: &str) -> NatsSource {
        NatsSource::connect(&self.url(parameters), runtime()).await.unwrap()
    }

    async fn consumer(&self) -> consumer::Info {
        let stream = self.context.get_stream(&self.name).await.unwrap();
        stream.consumer_info("d").await.unwrap()
    }
}

async fn a_message_arrives_with_headers_ordering_key_coordinates_and_attempt() {
    let fixture = Fixture::new("arrives").await;
    let mut headers = HeaderMap::new();
    headers.append("Idempotency-Key", "k-1");
    headers.append("Account", "a-7");
    let subject = "arrives.x";
    fixture.context.publish_with_headers(subject, headers, "hello".into()).await.unwrap().await.unwrap();
    let mut source = fixture.source("&order=header:account").await;
    assert_eq!(&**source.name(), "nats/arrives/d");
    let capability = source.capability();
    assert_eq!(capability.acknowledges, Acknowledges::Each);
    assert!(capability.redelivers && capability.delays && !capability.keeps_order);
    assert_eq!(capability.lease.unwrap().length, Duration::from_secs(30));
    let delivery = take(&mut source, 1).await.remove(0);
    let message = &delivery.message;
    assert_eq!(&message.payload[..], b"hello");
    assert_eq!(message.headers.all("idempotency-key").collect::<Vec<_>>(), ["k-1"]);
    assert_eq!(message.ordering_key.as_deref(), Some(&b"a-7"[..]));
    let coordinates = message.coordinates.clone().unwrap();
    assert!(coordinates.origin.starts_with("nats/arrives/"), "{coordinates:?}");
    assert_eq!((coordinates.partition, coordinates.position), (0, Position::Number(1)));
    assert!(message.timestamp.is_some());
    assert_eq!(delivery.attempt, Some(1));
    assert!(delivery.leased_until.unwrap() > runtime().boottime_now());
    settle(&source.settler(), &delivery.id, Settlement::Ack).await;
}

async fn a_missing_durable_is_created_and_an_existing_one_stays_as_it_is() {
    let fixture = Fixture::new("created").await;
    drop(fixture.source("&ack-wait=7").await);
    let created = fixture.consumer().await.config;
    assert_eq!((created.max_deliver, created.ack_wait), (-1, Duration::from_secs(7)));
    let source = fixture.source("&ack-wait=9").await;
    assert_eq!(fixture.consumer().await.config.ack_wait, Duration::from_secs(7));
    assert_eq!(source.capability().lease.unwrap().length, Duration::from_secs(7));
}

async fn a_stream_or_a_consumer_that_cannot_be_used_is_refused() {
    let fixture = Fixture::new("unsuited").await;
    let refused = async |url: &str| {
        let url: NatsUrl = format!("{}/{url}", fixture.url).parse().unwrap();
        let error = NatsSource::connect(&url, runtime()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unusable, "{error}");
        error.to_string()
    };
    assert!(refused("nowhere?durable=d").await.contains("no stream `nowhere`"));
    let stream = fixture.context.get_stream("unsuited").await.unwrap();
    let none = consumer::pull::Config {
        durable_name: Some("all".into()),
        ack_policy: consumer::AckPolicy::All,
        ..Default::default()
    };
    stream.create_consumer(none).await.unwrap();
    assert!(refused("unsuited?durable=all").await.contains("each message explicitly"));
    let push = consumer::push::Config {
        durable_name: Some("push".into()),
        deliver_subject: "elsewhere".into(),
        ..Default::default()
    };
    stream.create_consumer(push).await.unwrap();
    assert!(refused("unsuited?durable=push").await.contains("not a pull consumer"));
    // Each delivery counts, also one that is given back at a stop before it began.
    let bounded = consumer::pull::Config { durable_name: Some("bounded".into()), max_deliver: 3, ..Default::default() };
    stream.create_consumer(bounded).await.unwrap();
    assert!(refused("unsuited?durable=bounded").await.contains("set max_deliver to -1"));
}

async fn an_unacknowledged_message_arrives_again_at_another_source() {
    let fixture = Fixture::new("again").await;
    fixture.send("one").await;
    let mut killed = fixture.source("&ack-wait=1").await;
    assert_eq!(take(&mut killed, 1).await[0].attempt, Some(1));
    drop(killed);
    let mut source = fixture.source("").await;
    let again = take(&mut source, 1).await;
    assert_eq!((text(&again[0]), again[0].attempt), ("one".into(), Some(2)));
}

async fn an_acknowledged_message_never_arrives_again_and_is_acknowledged_once() {
    let fixture = Fixture::new("acknowledged").await;
    fixture.send("one").await;
    fixture.send("two").await;
    let mut source = fixture.source("&ack-wait=1").await;
    let settler = source.settler();
    let first = take(&mut source, 2).await;
    assert_eq!(texts(&first), ["one", "two"]);
    assert_eq!(settler.lag().await.unwrap(), Some(2));
    settle(&settler, &first[0].id, Settlement::Ack).await;
    assert_eq!(settler.lag().await.unwrap(), Some(1));
    // A second settlement of any kind changes nothing.
    settle(&settler, &first[0].id, Settlement::Retry(Duration::ZERO)).await;
    settle(&settler, &first[0].id, Settlement::Ack).await;
    let again = take(&mut source, 1).await;
    assert_eq!(texts(&again), ["two"]);
    settle(&settler, &again[0].id, Settlement::Ack).await;
    assert_eq!(settler.lag().await.unwrap(), Some(0));
    assert!(is_quiet(&mut source, Duration::from_millis(1500)).await);
}

async fn an_extended_delivery_goes_to_nobody_else() {
    let fixture = Fixture::new("extended").await;
    fixture.send("one").await;
    let mut source = fixture.source("&ack-wait=1").await;
    let delivery = take(&mut source, 1).await.remove(0);
    let settler = source.settler();
    let mut other = fixture.source("").await;
    for _ in 0..8 {
        settle(&settler, &delivery.id, Settlement::Extend(Duration::from_secs(1))).await;
        assert!(is_quiet(&mut other, Duration::from_millis(300)).await);
    }
    // Without an extension it goes to another source.
    assert_eq!(texts(&take(&mut other, 1).await), ["one"]);
    let too_long = settler.settle(vec![(delivery.id, Settlement::Extend(Duration::from_secs(2)))]).await;
    assert_eq!(too_long[0].as_ref().unwrap_err().kind(), ErrorKind::Invalid);
}

async fn a_retried_message_arrives_again_not_before_its_delay() {
    let fixture = Fixture::new("retried").await;
    fixture.send("one").await;
    let mut source = fixture.source("").await;
    let delivery = take(&mut source, 1).await.remove(0);
    let begun = Instant::now();
    settle(&source.settler(), &delivery.id, Settlement::Retry(Duration::from_millis(700))).await;
    let again = take(&mut source, 1).await.remove(0);
    assert!(begun.elapsed() >= Duration::from_millis(700), "{:?}", begun.elapsed());
    assert_eq!(again.attempt, Some(2));
    assert_ne!(again.id, delivery.id);
    settle(&source.settler(), &again.id, Settlement::Retry(Duration::ZERO)).await;
    assert_eq!(take(&mut source, 1).await[0].attempt, Some(3));
}

async fn a_settlement_for_another_generation_or_an_unknown_delivery_does_nothing() {
    let fixture = Fixture::new("generation").await;
    fixture.send("one").await;
    let mut source = fixture.source("").await;
    let delivery = take(&mut source, 1).await.remove(0);
    let settler = source.settler();
    let lane = Lane { generation: delivery.id.lane.generation - 1, ..delivery.id.lane.clone() };
    settle(&settler, &DeliveryId { lane, ..delivery.id.clone() }, Settlement::Ack).await;
    settle(&settler, &DeliveryId { number: 99, ..delivery.id.clone() }, Settlement::Ack).await;
    assert_eq!(settler.lag().await.unwrap(), Some(1));
    let prefix = settler.settle(vec![(delivery.id.clone(), Settlement::UpTo)]).await;
    assert_eq!(prefix[0].as_ref().unwrap_err().kind(), ErrorKind::Invalid);
    drop(source);
    let late = settler.settle(vec![(delivery.id, Settlement::Ack)]).await;
    assert_eq!(late[0].as_ref().unwrap_err().kind(), ErrorKind::NotApplied);
    assert_eq!(fixture.consumer().await.num_ack_pending, 1);
}

async fn no_more_arrives_than_there_is_room_for() {
    let fixture = Fixture::new("room").await;
    for number in 0..20 {
        fixture.send(format!("{number:010}")).await;
    }
    let mut source = fixture.source("").await;
    let mut arrived = Vec::new();
    for room in [room(3), Room { messages: 10, bytes: 25, closed: Arc::default() }] {
        let most = room.messages.min(room.bytes / 10);
        let deliveries = some(&mut source, room).await;
        assert!((1..=most).contains(&deliveries.len()), "{}", deliveries.len());
        arrived.extend(deliveries);
    }
    let lane = arrived[0].id.lane.clone();
    let none = Duration::from_millis(200);
    for room in [room(0), Room { bytes: 0, ..room(5) }, Room { closed: common::closed(&lane), ..room(5) }] {
        assert!(tokio::time::timeout(none, source.next(room)).await.is_err());
    }
    while arrived.len() < 20 {
        arrived.extend(some(&mut source, room(7)).await);
    }
    let expected: Vec<String> = (0..20).map(|number| format!("{number:010}")).collect();
    assert_eq!(texts(&arrived), expected);
}

async fn a_message_larger_than_the_room_arrives_alone() {
    let fixture = Fixture::new("large").await;
    fixture.send("x".repeat(900_000)).await;
    fixture.send("small").await;
    let mut source = fixture.source("").await;
    let deliveries = some(&mut source, Room { messages: 10, bytes: 1, closed: Arc::default() }).await;
    assert_eq!((deliveries.len(), deliveries[0].message.payload.len()), (1, 900_000));
    assert_eq!(texts(&take(&mut source, 1).await), ["small"]);
}

async fn nothing_is_lost_when_a_call_for_the_next_event_is_dropped() {
    let fixture = Fixture::new("dropped").await;
    let mut source = fixture.source("").await;
    let mut arrived = Vec::new();
    for number in 0..200 {
        fixture.send(number.to_string()).await;
        // Dropped at some await, or done.
        if let Ok(Ok(hapax_core::broker::Event::Deliveries(deliveries))) =
            tokio::time::timeout(Duration::from_micros(number * 7), source.next(room(2))).await
        {
            arrived.extend(deliveries);
        }
    }
    let missing = 200 - arrived.len();
    arrived.extend(take(&mut source, missing).await);
    let expected: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    assert_eq!(texts(&arrived), expected);
    assert!(arrived.iter().all(|delivery| delivery.attempt == Some(1)));
}

impl Fixture {
    /// A source that got ten messages and handed out the first ones only. Returns their number.
    async fn with_waiting(&self, parameters: &str) -> (NatsSource, usize) {
        for number in 0..10 {
            self.send(number.to_string()).await;
        }
        let mut source = self.source(parameters).await;
        let taken = some(&mut source, Room { messages: 10, bytes: 1, closed: Arc::default() }).await.len();
        let begun = Instant::now();
        while self.consumer().await.num_ack_pending < 10 {
            assert!(begun.elapsed() < DEADLINE, "the server sends no more");
            hapax_testkit::pause().await;
        }
        (source, taken)
    }
}

async fn messages_that_wait_for_room_stay_with_their_source() {
    let fixture = Fixture::new("waiting").await;
    let (mut source, taken) = fixture.with_waiting("&ack-wait=1").await;
    assert_eq!(taken, 1);
    // Three leases without room. The message that was handed out is not the source's any more.
    assert!(tokio::time::timeout(Duration::from_secs(3), source.next(room(0))).await.is_err());
    let waiting = take(&mut source, 9).await;
    assert_eq!(texts(&waiting), (1..10).map(|number| number.to_string()).collect::<Vec<_>>());
    assert!(waiting.iter().all(|delivery| delivery.attempt == Some(1)), "one of them arrived again");
    assert!(waiting.iter().all(|delivery| delivery.leased_until.unwrap() > runtime().boottime_now()));
}

async fn a_waiting_message_whose_lease_has_ended_is_not_handed_out() {
    let fixture = Fixture::new("ended").await;
    let (mut source, _) = fixture.with_waiting("&ack-wait=1").await;
    // Nobody asks the source meanwhile, so it extends nothing.
    let mut other = fixture.source("").await;
    take(&mut other, 10).await;
    for delivery in some(&mut source, room(100)).await {
        assert!(delivery.attempt > Some(1), "{delivery:?} was handed out to another source meanwhile");
    }
}

async fn a_settlement_that_fails_is_sent_again() {
    let server = NatsServer::shared().await.unwrap();
    let fixture = Fixture::new("failing").await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    for settlement in [Settlement::Ack, Settlement::Retry(Duration::ZERO)] {
        fixture.send("one").await;
        let url: NatsUrl = format!("nats://{}/failing?durable=d&ack-wait=600", proxy.address()).parse().unwrap();
        let mut source = NatsSource::connect(&url, runtime()).await.unwrap();
        let (settler, delivery) = (source.settler(), take(&mut source, 1).await.remove(0));
        proxy.inject(NetworkFault::cut(CutPoint::Unsent, "$JS.ACK").times(1));
        let failed = settler.settle(vec![(delivery.id.clone(), settlement)]).await;
        assert!(failed[0].is_err(), "{failed:?}");
        let begun = Instant::now();
        while let Err(error) = settler.settle(vec![(delivery.id.clone(), settlement)]).await.remove(0) {
            assert!(begun.elapsed() < DEADLINE, "{error}");
            hapax_testkit::pause().await;
        }
        if settlement == Settlement::Ack {
            assert_eq!(fixture.consumer().await.num_ack_pending, 0, "the server has not heard of it");
        } else {
            assert_eq!(take(&mut source, 1).await[0].attempt, Some(2));
        }
    }
}

async fn a_source_that_closes_gives_back_what_no_worker_got() {
    let fixture = Fixture::new("closing").await;
    let (mut source, taken) = fixture.with_waiting("&ack-wait=600").await;
    source.close().await.unwrap();
    let mut other = fixture.source("").await;
    let expected: Vec<String> = (taken..10).map(|number| number.to_string()).collect();
    assert_eq!(texts(&take(&mut other, 10 - taken).await), expected);
}

async fn a_deleted_consumer_ends_the_worker() {
    let fixture = Fixture::new("deleted").await;
    let stream = fixture.context.get_stream("deleted").await.unwrap();
    for is_asked in [true, false] {
        let mut source = fixture.source("").await;
        if is_asked {
            assert!(is_quiet(&mut source, Duration::from_millis(300)).await);
        }
        stream.delete_consumer("d").await.unwrap();
        let begun = Instant::now();
        let error = loop {
            match source.next(room(10)).await {
                Err(error) if error.kind() == ErrorKind::NotApplied => assert!(begun.elapsed() < DEADLINE, "{error}"),
                Err(error) => break error,
                Ok(event) => panic!("{event:?}"),
            }
        };
        assert_eq!(error.kind(), ErrorKind::Unusable);
        assert!(error.to_string().contains("has been deleted"), "{error}");
    }
}

/// Takes and acknowledges until every number has been acknowledged, and calls `disturb` half-way. A server that is
/// killed forgets acknowledgements that it has confirmed a moment before.
async fn consume_through(source: &mut NatsSource, count: usize, disturb: impl AsyncFnOnce()) {
    let (settler, mut done, mut disturb) = (source.settler(), std::collections::BTreeSet::new(), Some(disturb));
    let begun = Instant::now();
    while done.len() < count {
        assert!(begun.elapsed() < DEADLINE, "{} of {count}", done.len());
        for delivery in some(source, room(10)).await {
            let settled = settler.settle(vec![(delivery.id.clone(), Settlement::Ack)]).await.remove(0);
            match settled {
                Ok(()) => _ = done.insert(text(&delivery)),
                // It arrives again.
                Err(error) if error.kind() == ErrorKind::NotApplied => {}
                // It may have been acknowledged.
                Err(_) => _ = done.insert(text(&delivery)),
            }
        }
        if done.len() >= count / 2
            && let Some(disturb) = disturb.take()
        {
            disturb().await;
        }
    }
}

async fn a_restart_of_the_server_loses_nothing() {
    let server = NatsServer::start(&[]).await.unwrap();
    let fixture = Fixture::on(&server.url(), "restart", 1).await;
    for number in 0..100 {
        fixture.send(number.to_string()).await;
    }
    let mut source = fixture.source("&ack-wait=1").await;
    consume_through(&mut source, 100, async || {
        server.kill();
        server.restart().await.unwrap();
    })
    .await;
}

async fn the_death_of_a_cluster_member_loses_nothing() {
    let servers = NatsServer::start_cluster(3).await.unwrap();
    let hosts: Vec<String> = servers.iter().map(|server| server.address().to_string()).collect();
    let fixture = Fixture::on(&format!("nats://{}", hosts.join(",")), "cluster", 3).await;
    for number in 0..100 {
        fixture.send(number.to_string()).await;
    }
    let mut source = fixture.source("&ack-wait=1").await;
    consume_through(&mut source, 100, async || {
        let leader = fixture.consumer().await.cluster.unwrap().leader.unwrap();
        let index: usize = leader.trim_start_matches("node").parse().unwrap();
        servers[index].kill();
    })
    .await;
}

async fn a_wrong_password_is_refused_and_one_from_a_file_is_used() {
    use std::os::unix::fs::PermissionsExt;
    let server = NatsServer::start(&["--user", "me", "--pass", "open"]).await.unwrap();
    let address = server.address();
    let url: NatsUrl = format!("nats://me:wrong@{address}/s?durable=d").parse().unwrap();
    let error = NatsSource::connect(&url, runtime()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unusable, "{error}");
    assert!(!format!("{error:?} {url:?}").contains("wrong"), "{error:?}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("password");
    std::fs::write(&path, "open\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    drop(Fixture::on(&server.url(), "s", 1).await);
    let url: NatsUrl = format!("nats://me@{address}/s?durable=d&password-file={}", path.display()).parse().unwrap();
    NatsSource::connect(&url, runtime()).await.unwrap().close().await.unwrap();
}
