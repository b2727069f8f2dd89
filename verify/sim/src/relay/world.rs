use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hapax_core::outbox::{MemoryOutbox, RowId, RowState};
use hapax_core::relay::{Relay, RelayEnd};
use hapax_core::store::{Memory, MemorySettings};
use hapax_core::{EventId, Result};
use hapax_testkit::{Process, TaskHandle, VirtualTime};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::broker::{Broker, BrokerSink};
use super::database::FaultyDatabase;
use super::plan::{OutboxFault, RelayPlan};
use super::{actors, writers};
use crate::dice::Dice;
use crate::trace::Counts;

/// How long everything may take to arrive once the faults have ended.
const SETTLED_WITHIN: Duration = Duration::from_secs(300);

/// The committed events of each key, in their order. An event without a key is alone.
type CommittedEvents = BTreeMap<Vec<u8>, Vec<(EventId, RowId)>>;

/// The result of one run.
#[derive(Clone, Debug)]
pub struct RelayRun {
    /// The rule that the world broke.
    pub violation: Option<String>,
    /// How often each kind of event happened.
    pub counts: Counts,
}

/// What all actors of a world share.
pub(super) struct SimulatedRelays {
    pub(super) plan: RelayPlan,
    pub(super) dice: Dice,
    /// The process of the database, of writers and of operators. It never crashes.
    pub(super) server: Arc<Process>,
    pub(super) outbox: MemoryOutbox,
    store: Arc<Memory>,
    pub(super) broker: Mutex<Broker>,
    pub(super) committed: Mutex<CommittedEvents>,
    pub(super) relays: Mutex<Vec<RunningRelay>>,
    counts: Mutex<Counts>,
    is_healed: AtomicBool,
}

/// A relay, and how to stop it.
pub(super) struct RunningRelay {
    pub(super) process: Arc<Process>,
    pub(super) stop: Option<oneshot::Sender<()>>,
    pub(super) ended: TaskHandle<Result<RelayEnd>>,
}

/// Runs the world of relays of a seed.
pub fn run_relays(seed: u64) -> RelayRun {
    let dice = Dice::new(seed);
    let plan = RelayPlan::draw(&dice);
    let choices = Dice::new(dice.next());
    let time = VirtualTime::choosing(dice.next(), Box::new(move |of| choices.below(of)));
    let world = SimulatedRelays::new(plan, dice, &time);
    let ended = catch_unwind(AssertUnwindSafe(|| run(&world, &time)));
    let violation = match ended {
        Ok(checked) => checked.err(),
        Err(panic) => Some(format!("a panic: {}", panic.downcast_ref::<String>().cloned().unwrap_or_default())),
    };
    let counts = world.counts.lock().clone();
    RelayRun { violation: violation.map(|rule| format!("{rule}; {:?}", world.plan)), counts }
}

fn run(world: &Arc<SimulatedRelays>, time: &VirtualTime) -> Result<(), String> {
    for _ in 0..world.plan.relays {
        world.relays.lock().push(world.start_relay());
    }
    writers::start(world);
    actors::start(world);
    time.run_for(world.plan.window);
    world.heal();
    let has_settled = || (world.dice.percent(2) && world.is_settled()).then_some(());
    if time.run_until(SETTLED_WITHIN, has_settled).is_none() {
        return Err(format!("events are left: {:?}", world.left().collect::<Vec<_>>()));
    }
    world.check()?;
    world.stop_all(time)
}

impl SimulatedRelays {
    fn new(plan: RelayPlan, dice: Dice, time: &VirtualTime) -> Arc<Self> {
        let server = time.process();
        let broker = Broker { remembered: plan.recognizes.then(BTreeSet::new), ..Broker::default() };
        Arc::new(Self {
            plan,
            dice,
            outbox: MemoryOutbox::new(Arc::clone(&server) as _),
            store: Arc::new(Memory::with(Arc::clone(&server) as _, MemorySettings::default())),
            server,
            broker: Mutex::new(broker),
            committed: Mutex::default(),
            relays: Mutex::default(),
            counts: Mutex::default(),
            is_healed: AtomicBool::new(false),
        })
    }

    /// Starts a relay in a process of its own.
    pub(super) fn start_relay(self: &Arc<Self>) -> RunningRelay {
        let process = self.server.sibling();
        let database = FaultyDatabase { world: Arc::clone(self), process: Arc::clone(&process) };
        let sink = BrokerSink::new(Arc::clone(self), Arc::clone(&process));
        let relay = Relay::builder(Arc::new(database), Arc::clone(&self.store) as _, Arc::new(sink))
            .settings(self.plan.settings)
            .runtime(Arc::clone(&process) as _)
            .build()
            .expect("the settings are valid");
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = process.start(relay.run(async move { drop(stopped.await) }));
        RunningRelay { process, stop: Some(stop), ended }
    }

    pub(super) fn is_healed(&self) -> bool {
        self.is_healed.load(Ordering::Relaxed)
    }

    /// Whether a fault of this class happens now, if it has this probability in percent.
    pub(super) fn breaks(&self, class: OutboxFault, percent: usize) -> bool {
        let breaks = self.plan.allows(class) && !self.is_healed() && self.dice.percent(percent);
        if breaks {
            self.count(class.name());
        }
        breaks
    }

    pub(super) fn count(&self, what: &'static str) {
        *self.counts.lock().entry(what).or_default() += 1;
    }

    /// Ends all faults.
    fn heal(&self) {
        self.is_healed.store(true, Ordering::Relaxed);
        let mut broker = self.broker.lock();
        broker.refuses.clear();
        broker.dead_topics.clear();
    }

    fn is_settled(&self) -> bool {
        self.server.tasks() == 0 && self.left().next().is_none()
    }

    /// The events that have to arrive, or to be marked.
    fn left(&self) -> impl Iterator<Item = (EventId, Option<RowState>)> {
        let committed: Vec<_> = self.committed.lock().values().flatten().copied().collect();
        committed.into_iter().filter_map(|(id, row)| match self.outbox.state(row) {
            Some(RowState::Dropped) => None,
            Some(RowState::Published) if self.broker.lock().has.contains(&id) => None,
            state @ (None | Some(RowState::Published | RowState::Open | RowState::Aside)) => Some((id, state)),
        })
    }

    /// What arrived was committed, and the first arrivals of each key are in its order.
    fn check(&self) -> Result<(), String> {
        let broker = self.broker.lock();
        let first: BTreeMap<EventId, usize> =
            broker.arrived.iter().enumerate().rev().map(|(at, event)| (*event, at)).collect();
        let committed = self.committed.lock();
        let known: BTreeSet<EventId> = committed.values().flatten().map(|(id, _)| *id).collect();
        if let Some(stray) = first.keys().find(|id| !known.contains(id)) {
            return Err(format!("the event {stray} arrived, and was never committed"));
        }
        for (key, events) in &*committed {
            // A dropped event may have arrived before.
            let arrivals: Vec<usize> = events.iter().filter_map(|(id, _)| first.get(id).copied()).collect();
            if !arrivals.is_sorted() {
                return Err(format!("the first arrivals of the key {key:?} are {arrivals:?}"));
            }
        }
        Ok(())
    }

    /// A relay that is asked to stop ends, and leaves nothing.
    fn stop_all(&self, time: &VirtualTime) -> Result<(), String> {
        let relays = std::mem::take(&mut *self.relays.lock());
        for relay in relays {
            drop(relay.stop);
            match time.run_until(Duration::from_secs(60), || relay.ended.output()) {
                Some(Ok(RelayEnd { unconfirmed: 0 })) => {}
                ended => return Err(format!("a relay that was stopped ended with {ended:?}")),
            }
        }
        Ok(())
    }
}
