use std::sync::Arc;
use std::time::Duration;

use hapax_core::EventId;
use hapax_core::outbox::OutgoingEvent;
use hapax_core::runtime::Runtime;

use super::plan::OutboxFault;
use super::world::SimulatedRelays;

/// The topics of all events. Events of one key have different ones.
pub(super) const TOPICS: [&str; 3] = ["orders", "payments", "mails"];

/// Starts a writer for each ordering key, whose transactions exclude each other, and some without a key.
pub(super) fn start(world: &Arc<SimulatedRelays>) {
    for key in 0..world.plan.keys {
        world.server.spawn(Box::pin(write(Arc::clone(world), Some(key))));
    }
    for _ in 0..world.plan.unordered {
        world.server.spawn(Box::pin(write(Arc::clone(world), None)));
    }
}

async fn write(world: Arc<SimulatedRelays>, key: Option<u8>) {
    while !world.is_healed() {
        // Some come one after the other, and some after a while.
        let longest = if world.dice.percent(50) { 20 } else { 2000 };
        world.server.sleep(world.dice.up_to(Duration::from_millis(longest))).await;
        write_transaction(&world, key).await;
    }
}

async fn write_transaction(world: &SimulatedRelays, key: Option<u8>) {
    let mut transaction = world.outbox.begin();
    let mut events = Vec::new();
    for _ in 0..world.dice.between(1, 4) {
        let event = draw_event(world, key);
        events.push((event.id, event.order(), transaction.insert(event)));
    }
    let longest = if world.breaks(OutboxFault::LateCommit, 10) { 6000 } else { 30 };
    world.server.sleep(world.dice.up_to(Duration::from_millis(longest))).await;
    if world.breaks(OutboxFault::Rollback, 15) {
        return;
    }
    for (id, order, row) in events {
        world.committed.lock().entry(order.to_vec()).or_default().push((id, row));
        if world.breaks(OutboxFault::Refused, 5) {
            world.broker.lock().refuses.insert(id);
        }
    }
    transaction.commit();
}

fn draw_event(world: &SimulatedRelays, key: Option<u8>) -> OutgoingEvent {
    let mut bytes = [0; 16];
    world.server.fill_random(&mut bytes);
    let body = vec![0; world.dice.between(0, 60)];
    let mut event = OutgoingEvent::new(EventId::from_bytes(bytes), world.dice.pick(&TOPICS), body);
    event.ordering_key = key.map(|key| vec![key].into());
    event
}
