//! Brokers that are away, cut off, small or not prepared.

use std::sync::Arc;

use futures_util::future::join_all;
use hapax_core::ledger::Event;
use hapax_core::outbox::{Published, Sink};

use super::setup::SinkOptions;
use super::world::{LIMIT, SHORT, SinkWorld, ordered, patient};
use crate::proxy::{Direction, NetworkFault, Proxy};

fn impatient() -> SinkOptions {
    SinkOptions { timeout: SHORT, ..patient() }
}

pub(super) async fn a_broker_that_can_be_used_passes_the_check(world: &SinkWorld) {
    let sink = world.open().await;
    let findings = sink.check().await.expect("the broker is there");
    assert!(findings.is_empty(), "{findings:?}");
}

pub(super) async fn a_small_limit_is_reported_and_holds(world: &SinkWorld) {
    let sink = world.setup.open(impatient()).await;
    let findings = sink.check().await.expect("the broker is there");
    let is_told = findings.iter().any(|finding| finding.message.contains("1,000,000"));
    assert!(is_told && sink.max_len() < Event::MAX_LEN, "{} bytes: {findings:?}", sink.max_len());
    let mut event = world.event(1);
    event.payload = vec![b'x'; sink.max_len() + 1].into();
    let mut largest = world.event(3);
    largest.payload = vec![b'x'; sink.max_len()].into();
    largest.kind = Some("k".repeat(500));
    largest.source = Some("s".repeat(500));
    world.deliver(&*sink, &ordered(largest, &"o".repeat(500))).await;
    let published = world.publish(&*sink, &Arc::new(event)).await;
    assert!(matches!(published, Published::Refused(_)), "{published:?}");
    world.deliver(&*sink, &Arc::new(world.event(2))).await;
}

pub(super) async fn a_missing_topic_is_not_refused(world: &SinkWorld) {
    let sink = world.setup.open(impatient()).await;
    let event = ordered(world.event(1), "a");
    let published = world.publish(&*sink, &event).await;
    assert!(matches!(published, Published::NotPublished { .. }), "{published:?}");
    world.setup.create_topic().await;
    world.deliver(&*sink, &event).await;
    assert_eq!(world.copies(1).await.into_keys().collect::<Vec<_>>(), [event.id.to_string()]);
}

/// The broker gets the event, and its replies are lost. With a broker that deduplicates, the repetition leaves one.
pub(super) async fn a_lost_confirmation_is_unknown_and_repeated_under_one_id(world: &SinkWorld) {
    let proxy = Proxy::start(world.setup.address()).await.expect("a free port");
    let sink = world.setup.open(SinkOptions { address: Some(proxy.address()), ..impatient() }).await;
    world.deliver(&*sink, &Arc::new(world.event(0))).await;
    proxy.inject(NetworkFault::HalfOpen(Direction::ToClient));
    let event = ordered(world.event(1), "a");
    let published = world.publish(&*sink, &event).await;
    assert!(matches!(published, Published::Unknown(_)), "{published:?}");
    assert_eq!(world.copies(2).await.get(&event.id.to_string()), Some(&1), "the broker has the event");
    proxy.heal().await.expect("the port is still the proxy's");
    proxy.reset();
    world.deliver(&*sink, &event).await;
    world.deliver(&*sink, &Arc::new(world.event(2))).await;
    let copies = if sink.window().is_some() { 1 } else { 2 };
    let arrived = world.copies(2 + copies).await;
    assert_eq!(arrived.get(&event.id.to_string()), Some(&copies), "{arrived:?}");
}

/// Connections break all the time, and every event arrives.
pub(super) async fn broken_connections_lose_nothing(world: &SinkWorld) {
    let proxy = Proxy::start(world.setup.address()).await.expect("a free port");
    let sink = world.setup.open(SinkOptions { address: Some(proxy.address()), ..impatient() }).await;
    world.deliver(&*sink, &Arc::new(world.event(0))).await;
    let keys = ["a", "b", "c"];
    let publish_all = keys.iter().zip(0..).map(|(key, index)| {
        let (sink, proxy) = (Arc::clone(&sink), &proxy);
        async move {
            for number in 0..10 {
                if number % 4 == 2 {
                    proxy.reset();
                }
                world.deliver(&*sink, &ordered(world.event(1 + index * 10 + number), key)).await;
            }
        }
    });
    join_all(publish_all).await;
    let arrived = world.arrived(31).await;
    for (key, index) in keys.iter().zip(0..) {
        // The first arrival of each: copies may follow.
        let mut ids = Vec::new();
        for event in arrived.iter().filter(|event| event.ordering_key.as_deref() == Some(key.as_bytes())) {
            if !ids.contains(&event.id) {
                ids.push(event.id.clone());
            }
        }
        let expected: Vec<String> = (0..10).map(|n| world.event(1 + index * 10 + n).id.to_string()).collect();
        assert_eq!(ids, expected, "the events of {key}");
    }
}

pub(super) async fn a_broker_that_is_away_confirms_nothing_and_loses_nothing(world: &SinkWorld) {
    let sink = world.setup.open(impatient()).await;
    let before = Arc::new(world.event(1));
    world.deliver(&*sink, &before).await;
    world.setup.kill_broker();
    let event = ordered(world.event(2), "a");
    let published = world.publish(&*sink, &event).await;
    let is_open = matches!(published, Published::NotPublished { .. } | Published::Unknown(_));
    assert!(is_open, "{published:?}");
    assert!(sink.check().await.is_err(), "the check finds nothing wrong");
    world.setup.restart_broker().await;
    world.deliver(&*sink, &event).await;
    let arrived = world.copies(2).await;
    assert!([&before, &event].iter().all(|event| arrived.contains_key(&event.id.to_string())), "{arrived:?}");
    pass_check(world, &*sink).await;
}

/// A broker that has just started may not answer every question yet.
async fn pass_check(world: &SinkWorld, sink: &dyn Sink) {
    let runtime = world.setup.runtime();
    let until = runtime.boottime_now() + LIMIT;
    while let Err(error) = sink.check().await {
        assert!(runtime.boottime_now() < until, "{error:?}");
        world.pause().await;
    }
}
