//! What arrives.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{join_all, poll_immediate};
use hapax_core::ledger::Event;
use hapax_core::outbox::{OutgoingEvent, Published};

use super::setup::SinkOptions;
use super::world::{SinkWorld, ordered, patient};

/// Of any bytes, and longer than one read.
fn payload() -> Bytes {
    (0..50_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

pub(super) async fn an_event_arrives_as_it_was_emitted(world: &SinkWorld) {
    let sink = world.open().await;
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut event = world.event(1);
    event.payload = payload();
    event.ordering_key = Some(Bytes::from_static(b"account-7"));
    event.kind = Some("com.example.paid".into());
    event.source = Some("/orders".into());
    event.content_type = Some("application/octet-stream".into());
    event.headers = [("traceparent", traceparent), ("X-Own", "a value; with = signs")].into_iter().collect();
    let event = Arc::new(event);
    world.deliver(&*sink, &event).await;
    let arrived = world.arrived(1).await.remove(0);
    let id = event.id.to_string();
    assert_eq!((&arrived.id, &arrived.name), (&id, &world.setup.topic()));
    assert_eq!(arrived.ordering_key, event.ordering_key);
    assert!(arrived.payload == event.payload, "the payload is another one");
    let one = |name: &str| {
        let values: Vec<_> = arrived.headers.all(name).collect();
        assert_eq!(values.len(), 1, "{name} in {:?}", arrived.headers);
        String::from_utf8_lossy(values[0]).into_owned()
    };
    assert_eq!((one("traceparent"), one("x-own")), (traceparent.into(), "a value; with = signs".into()));
    assert_eq!((one("idempotency-key"), one("content-type")), (id.clone(), "application/octet-stream".into()));
    let attribute = |name: &str| {
        let has = |prefix: &&str| arrived.headers.all(&format!("{prefix}{name}")).next().is_some();
        let prefix = ["ce-", "ce_", "cloudEvents:"].into_iter().find(has);
        one(&format!("{}{name}", prefix.unwrap_or_else(|| panic!("no {name} in {:?}", arrived.headers))))
    };
    assert_eq!((attribute("id"), attribute("specversion")), (id, "1.0".into()));
    assert_eq!((attribute("source"), attribute("type")), ("/orders".into(), "com.example.paid".into()));
    assert_eq!(attribute("time"), "2023-11-14T22:13:20.000000Z");
}

pub(super) async fn a_name_comes_from_the_template(world: &SinkWorld) {
    let (topic, word) = world.setup.split_topic();
    let sink = world.setup.open(SinkOptions { topic, ..patient() }).await;
    let event = Arc::new(OutgoingEvent { topic: word, ..world.event(1) });
    world.deliver(&*sink, &event).await;
    assert_eq!(world.arrived(1).await[0].name, world.setup.topic());
}

/// Once where the broker deduplicates, and otherwise twice under one id.
pub(super) async fn a_repeated_event_arrives_under_one_id(world: &SinkWorld) {
    let sink = world.open().await;
    let event = ordered(world.event(1), "a");
    let last = Arc::new(world.event(2));
    let mut caught = Vec::new();
    for event in [&event, &event, &last] {
        caught.push(world.deliver(&*sink, event).await);
    }
    let deduplicates = sink.window().is_some();
    assert_eq!(caught, [false, deduplicates, false], "the sink knows what its broker recognized");
    let copies = if deduplicates { 1 } else { 2 };
    let expected = BTreeMap::from([(event.id.to_string(), copies), (last.id.to_string(), 1)]);
    assert_eq!(world.copies(copies + 1).await, expected);
}

/// The broker may have lost the event, and remember its id. Consumers recognize it all the same.
pub(super) async fn a_republished_event_arrives_again_under_the_same_event_id(world: &SinkWorld) {
    let sink = world.open().await;
    let of = |republications| {
        let event = OutgoingEvent { republications, ..world.event(1) };
        ordered(event, "a")
    };
    let mut caught = Vec::new();
    for event in [of(0), of(1), of(1), of(2)] {
        caught.push(world.deliver(&*sink, &event).await);
    }
    let deduplicates = sink.window().is_some();
    assert_eq!(caught, [false, false, deduplicates, false], "a further republication is a new one for the broker");
    let copies = if deduplicates { 3 } else { 4 };
    let (id, arrived) = (of(0).id.to_string(), world.arrived(copies).await);
    assert_eq!(arrived.len(), copies);
    for event in arrived {
        assert_eq!(event.id, id);
        assert_eq!(event.headers.all("idempotency-key").collect::<Vec<_>>(), [id.as_bytes()]);
    }
}

pub(super) async fn events_of_a_key_keep_their_order(world: &SinkWorld) {
    const EVENTS: u32 = 40;
    let sink = world.open().await;
    let keys = ["a", "b", "c", "d"];
    let publish_all = keys.iter().zip(0..).map(|(key, index)| {
        let sink = Arc::clone(&sink);
        async move {
            for number in 0..EVENTS {
                world.deliver(&*sink, &ordered(world.event(index * EVENTS + number), key)).await;
            }
        }
    });
    join_all(publish_all).await;
    let arrived = world.arrived(keys.len() * EVENTS as usize).await;
    for (key, index) in keys.iter().zip(0..) {
        let of_key = arrived.iter().filter(|event| event.ordering_key.as_deref() == Some(key.as_bytes()));
        let ids: Vec<&str> = of_key.map(|event| event.id.as_str()).collect();
        let expected: Vec<String> = (0..EVENTS).map(|n| world.event(index * EVENTS + n).id.to_string()).collect();
        assert_eq!(ids, expected, "the events of {key}");
    }
}

pub(super) async fn a_large_event_arrives_and_a_larger_one_is_refused(world: &SinkWorld) {
    let sink = world.open().await;
    assert!(sink.max_len() <= Event::MAX_LEN, "no event is larger");
    let of = |number, len| Arc::new(OutgoingEvent { payload: vec![b'x'; len].into(), ..world.event(number) });
    let largest = of(1, sink.max_len());
    world.deliver(&*sink, &largest).await;
    // A dead letter has more headers than its message had.
    let letter = of(4, Event::MAX_LEN + 10_000);
    world.deliver(&*sink, &letter).await;
    let published = world.publish(&*sink, &of(2, 17 * 1024 * 1024)).await;
    assert!(matches!(published, Published::Refused(_)), "{published:?}");
    world.deliver(&*sink, &of(3, 1)).await;
    let arrived = world.arrived(3).await;
    let mut lengths: Vec<usize> = arrived.iter().map(|event| event.payload.len()).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [1, largest.payload.len(), letter.payload.len()]);
}

pub(super) async fn a_topic_that_cannot_be_used_is_refused_and_others_go_on(world: &SinkWorld) {
    let sink = world.open().await;
    let topic = world.setup.invalid_topic();
    let refused = Arc::new(OutgoingEvent { topic: topic.clone(), ..world.event(1) });
    let published = world.publish(&*sink, &refused).await;
    let is_told = |reason: &str| reason.contains(topic.get(..5).unwrap_or(&topic));
    assert!(matches!(&published, Published::Refused(reason) if is_told(reason)), "{published:?}");
    world.deliver(&*sink, &Arc::new(world.event(2))).await;
    assert_eq!(world.copies(1).await, BTreeMap::from([(world.event(2).id.to_string(), 1)]));
}

/// Some of the futures are dropped after their first steps.
pub(super) async fn dropped_publications_disturb_no_other(world: &SinkWorld) {
    const EVENTS: u32 = 100;
    let sink = world.open().await;
    let events: Vec<_> = (0..EVENTS).map(|number| Arc::new(world.event(number))).collect();
    let is_dropped = |number: usize| number.is_multiple_of(5);
    let publish_all = events.iter().enumerate().map(|(number, event)| {
        let sink = Arc::clone(&sink);
        async move {
            if is_dropped(number) {
                drop(poll_immediate(sink.publish(event)).await);
            } else {
                world.deliver(&*sink, event).await;
            }
        }
    });
    join_all(publish_all).await;
    sink.close().await;
    let kept = events.iter().enumerate().filter(|(number, _)| !is_dropped(*number));
    let kept: Vec<String> = kept.map(|(_, event)| event.id.to_string()).collect();
    let copies = world.copies(kept.len()).await;
    assert!(kept.iter().all(|id| copies.contains_key(id)), "a confirmed event did not arrive: {copies:?}");
    assert!(copies.values().all(|copies| *copies == 1), "{copies:?}");
}

pub(super) async fn close_waits_for_what_is_in_flight(world: &SinkWorld) {
    let sink = world.open().await;
    // The sink has a connection and knows the topic.
    world.deliver(&*sink, &Arc::new(world.event(0))).await;
    let events: Vec<_> = (1..=20).map(|number| Arc::new(world.event(number))).collect();
    let mut publications: Vec<_> = events.iter().map(|event| Box::pin(sink.publish(event))).collect();
    let mut ended = Vec::new();
    for publication in &mut publications {
        ended.push(poll_immediate(publication.as_mut()).await);
    }
    let rest = async {
        for (publication, ended) in publications.iter_mut().zip(&mut ended) {
            if ended.is_none() {
                *ended = Some(publication.as_mut().await);
            }
        }
    };
    futures_util::future::join(sink.close(), rest).await;
    let are_confirmed = ended.iter().all(|published| matches!(published, Some(Published::Yes { .. })));
    assert!(are_confirmed, "{ended:?}");
    assert_eq!(world.copies(21).await.len(), 21);
    let late = world.publish(&*sink, &Arc::new(world.event(99))).await;
    assert!(matches!(late, Published::NotPublished { .. }), "{late:?}");
}
