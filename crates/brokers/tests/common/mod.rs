//! What the tests of all sources share.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_core::broker::{Delivery, DeliveryId, Event, Lane, Room, Settle, Settlement, Source};
use hapax_core::runtime::{Runtime, Tokio};

/// A test that takes longer has failed, even on a slow machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn runtime() -> Arc<dyn Runtime> {
    Arc::new(Tokio::current())
}

pub(crate) fn room(messages: usize) -> Room {
    Room { messages, bytes: 1 << 20, closed: Arc::default() }
}

/// The next event.
pub(crate) async fn event(source: &mut impl Source, room: Room) -> Event {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, source.next(room.clone())).await.expect("an event in time") {
            Ok(event) => return event,
            // The source reconnects by itself.
            Err(error) if error.kind() == hapax_core::ErrorKind::NotApplied => {
                assert!(Instant::now() < deadline, "{error:?}");
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// The next deliveries.
pub(crate) async fn some(source: &mut impl Source, room: Room) -> Vec<Delivery> {
    match event(source, room).await {
        Event::Deliveries(deliveries) => deliveries,
        event @ (Event::Revoking { .. } | Event::Lost { .. }) => panic!("{event:?} and no deliveries"),
    }
}

/// This many deliveries.
pub(crate) async fn take(source: &mut impl Source, count: usize) -> Vec<Delivery> {
    let (mut taken, begun) = (Vec::new(), Instant::now());
    while taken.len() < count {
        // Otherwise one message that is delivered again and again would keep the test alive.
        assert!(begun.elapsed() < DEADLINE, "{:?}", texts(&taken));
        taken.extend(some(source, room(count - taken.len())).await);
    }
    taken
}

/// Whether nothing arrives for this long.
pub(crate) async fn is_quiet(source: &mut impl Source, length: Duration) -> bool {
    tokio::time::timeout(length, source.next(room(100))).await.is_err()
}

pub(crate) fn texts(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(text).collect()
}

pub(crate) fn text(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.message.payload).into_owned()
}

pub(crate) async fn settle(settler: &Arc<dyn Settle>, id: &DeliveryId, settlement: Settlement) {
    let results = settler.settle(vec![(id.clone(), settlement)]).await;
    assert!(results.len() == 1 && results[0].is_ok(), "{results:?}");
}

pub(crate) fn closed(lane: &Lane) -> Arc<BTreeSet<Lane>> {
    Arc::new(BTreeSet::from([lane.clone()]))
}
