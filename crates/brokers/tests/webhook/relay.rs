use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::Millis;
use hapax_core::outbox::{MemoryOutbox, RowState};
use hapax_core::relay::{Relay, RelaySettings};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::store::{Memory, MemorySettings};
use standardwebhooks::Webhook;
use tokio::sync::oneshot;

use crate::receiver::{Act, Got, Receiver};
use crate::world::{SECRET, event, in_time, local, sink, until};

const KEYS: u32 = 8;
const EVENTS: u32 = 64;
/// The event that the receiver never takes.
const POISON: u32 = 3;

/// Late, with 5xx, 429 and redirects, with drops and closes; every second request is taken.
fn storm(number: usize, got: &Got) -> Act {
    if got.body == format!("event {POISON}").as_bytes() {
        return Act::Answer(422, vec![]);
    }
    match number % 20 {
        _ if number == 11 => Act::Silence,
        1 => Act::Answer(500, vec![]),
        3 => Act::Answer(429, vec!["retry-after: 0".into()]),
        5 => Act::Answer(302, vec!["location: http://127.0.0.1:1/".into()]),
        7 => Act::Close,
        9 => Act::CloseInAnswer,
        13 => Act::Answer(503, vec!["retry-after: 0".into()]),
        15 => Act::Answer(502, vec!["connection: close".into()]),
        _ => Act::Answer(200, vec![]),
    }
}

#[tokio::test]
async fn every_event_arrives_in_the_order_of_its_key_through_every_failure_of_the_receiver() {
    let receiver = Receiver::start("127.0.0.1:0", storm).await;
    let mut endpoint = local(receiver.url());
    endpoint.time_limit = Duration::from_secs(3);
    let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
    let outbox = MemoryOutbox::new(Arc::clone(&runtime));
    let rows: Vec<_> = (0..EVENTS)
        .map(|number| {
            let mut event = (*event(number, "e")).clone();
            event.ordering_key = Some((number % KEYS).to_string().into());
            outbox.insert(event)
        })
        .collect();
    let store = Arc::new(Memory::with(Arc::clone(&runtime), MemorySettings::default()));
    let mut settings = RelaySettings::default();
    settings.lease = Millis(60_000);
    let relay = Relay::builder(Arc::new(outbox.clone()), store, Arc::new(sink([("e", endpoint)])));
    let relay = relay.settings(settings).runtime(runtime).build().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let relay = tokio::spawn(relay.run(async { stopped.await.unwrap_or(()) }));
    let is_parked = |number: u32| number % KEYS == POISON % KEYS;
    let expected = |number: u32| if is_parked(number) { RowState::Aside } else { RowState::Published };
    let are_done = || (0..EVENTS).zip(&rows).all(|(number, row)| outbox.state(*row) == Some(expected(number)));
    until("every event is published, and one key is parked", are_done).await;
    stop.send(()).unwrap();
    assert_eq!(in_time(relay).await.unwrap().unwrap().unconfirmed, 0);
    check(&receiver.got());
}

/// Of each key, the first arrivals are in order. Each event has one id, and every signature verifies.
fn check(got: &[Got]) {
    let (mut ids, mut order) = (BTreeMap::new(), BTreeMap::<u32, Vec<u32>>::new());
    let webhook = Webhook::new(SECRET).unwrap();
    for got in got {
        webhook.verify(&got.body, &got.headers).unwrap();
        let number: u32 = str::from_utf8(&got.body).unwrap().strip_prefix("event ").unwrap().parse().unwrap();
        let id = got.header("webhook-id");
        if ids.insert(number, id).is_some_and(|before| before != id) {
            panic!("event {number} has two ids");
        }
        let seen = order.entry(number % KEYS).or_default();
        if !seen.contains(&number) {
            seen.push(number);
        }
    }
    let parked = order.remove(&(POISON % KEYS)).unwrap();
    assert!(parked.iter().all(|number| *number <= POISON), "the key of the poison waits: {parked:?}");
    for (key, seen) in order {
        assert_eq!(seen, (0..EVENTS).filter(|number| number % KEYS == key).collect::<Vec<_>>());
    }
}
