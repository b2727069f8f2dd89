use std::sync::Arc;
use std::time::Duration;

use hapax_core::Timestamp;
use hapax_core::outbox::{OutboxUpkeep, RowId};
use hapax_core::runtime::{BoxFuture, Runtime};
use hapax_testkit::ProcessPart;

use super::plan::OutboxFault;
use super::world::{RunningRelay, SimulatedRelays};
use super::writers::TOPICS;

/// Starts a task for each class of faults that comes from time to time, and the operator.
pub(super) fn start(world: &Arc<SimulatedRelays>) {
    for class in
        [OutboxFault::Crash, OutboxFault::Pause, OutboxFault::Stop, OutboxFault::DeadTopic, OutboxFault::LostEvents]
    {
        if world.plan.allows(class) {
            world.server.spawn(Box::pin(repeat_fault(Arc::clone(world), class)));
        }
    }
    world.server.spawn(Box::pin(resume_keys(Arc::clone(world))));
}

async fn repeat_fault(world: Arc<SimulatedRelays>, class: OutboxFault) {
    loop {
        world.server.sleep(world.dice.span(Duration::from_millis(200), Duration::from_secs(6))).await;
        if world.is_healed() {
            return;
        }
        world.count(class.name());
        cause(&world, class).await;
    }
}

fn cause(world: &Arc<SimulatedRelays>, class: OutboxFault) -> BoxFuture<'_, ()> {
    match class {
        OutboxFault::Crash => Box::pin(crash(world)),
        OutboxFault::Pause => Box::pin(pause(world)),
        OutboxFault::Stop => Box::pin(stop(world)),
        OutboxFault::DeadTopic => Box::pin(kill_topic(world)),
        OutboxFault::LostEvents => Box::pin(lose_events(world)),
        OutboxFault::LateCommit
        | OutboxFault::Rollback
        | OutboxFault::Failed
        | OutboxFault::Unknown
        | OutboxFault::Refused
        | OutboxFault::FailedCall
        | OutboxFault::LostReply
        | OutboxFault::Locked
        | OutboxFault::LostMarks => Box::pin(async {}),
    }
}

/// Takes a relay out, so that no other fault gets it meanwhile.
fn take_relay(world: &SimulatedRelays) -> Option<RunningRelay> {
    let mut relays = world.relays.lock();
    if relays.is_empty() {
        return None;
    }
    let chosen = world.dice.below(relays.len());
    Some(relays.swap_remove(chosen))
}

async fn start_another(world: &Arc<SimulatedRelays>) {
    world.server.sleep(world.dice.up_to(Duration::from_secs(3))).await;
    let started = world.start_relay();
    world.relays.lock().push(started);
}

async fn crash(world: &Arc<SimulatedRelays>) {
    let Some(relay) = take_relay(world) else { return };
    relay.process.crash();
    start_another(world).await;
}

async fn stop(world: &Arc<SimulatedRelays>) {
    let Some(relay) = take_relay(world) else { return };
    drop(relay.stop);
    start_another(world).await;
}

async fn pause(world: &Arc<SimulatedRelays>) {
    let Some(relay) = take_relay(world) else { return };
    relay.process.pause(ProcessPart::Tasks);
    // In half of the cases the heartbeat goes on, as when only the executor is blocked.
    if world.dice.percent(50) {
        relay.process.pause(ProcessPart::Threads);
    }
    world.server.sleep(world.dice.up_to(Duration::from_secs(8))).await;
    relay.process.resume(ProcessPart::Tasks);
    relay.process.resume(ProcessPart::Threads);
    world.relays.lock().push(relay);
}

async fn kill_topic(world: &Arc<SimulatedRelays>) {
    let topic = world.dice.pick(&TOPICS);
    world.broker.lock().dead_topics.insert(topic);
    world.server.sleep(world.dice.up_to(Duration::from_secs(10))).await;
    world.broker.lock().dead_topics.remove(topic);
}

/// The broker loses its last events. An operator has everything published again that was published until then.
async fn lose_events(world: &Arc<SimulatedRelays>) {
    world.broker.lock().lose(world.dice.between(1, 30));
    world.server.sleep(world.dice.up_to(Duration::from_secs(2))).await;
    let upkeep = &world.outbox;
    upkeep.begin_republication().await.expect("memory");
    let published = Timestamp(0)..upkeep.now().await.expect("memory");
    let mut after = RowId(0);
    while let Some(reopened) = upkeep.republish(&published, after, world.dice.between(1, 50)).await.expect("memory") {
        after = reopened.last;
        world.server.sleep(world.dice.up_to(Duration::from_millis(50))).await;
    }
}

/// Resumes parked keys, until none comes any more. Drops the refused event before in some cases.
async fn resume_keys(world: Arc<SimulatedRelays>) {
    let mut quiet = 0;
    while quiet < 5 {
        world.server.sleep(world.dice.up_to(Duration::from_secs(3))).await;
        let parked = world.outbox.parked(None, 1).await.expect("memory");
        let Some(parked) = parked.first() else {
            quiet = if world.is_healed() { quiet + 1 } else { 0 };
            continue;
        };
        quiet = 0;
        if world.dice.percent(30) {
            world.outbox.drop_refused(&parked.key, Some(parked.event)).await.expect("memory");
            world.count("dropped");
        } else if world.dice.percent(50) {
            world.broker.lock().refuses.remove(&parked.event);
        }
        while world.outbox.resume(&parked.key, world.dice.between(1, 5)).await.expect("memory").is_some_and(|n| n > 0) {
            world.server.sleep(world.dice.up_to(Duration::from_millis(50))).await;
        }
        world.count("resumed");
    }
}
