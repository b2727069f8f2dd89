//! The plan of a world, drawn from its seed: the processes, keys and routes, and the classes of faults that are
//! possible.

use std::time::Duration;

use hapax_core::Policy;

use crate::dice::Dice;
use crate::outcome::EffectPolicy;

/// A class of faults. Each class is possible in about a third of the worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultClass {
    /// A request or a reply takes long, perhaps longer than the gate waits.
    Slow,
    /// The store refuses a call and does not apply it.
    Refused,
    /// A connection breaks: the outcome of the call is unknown.
    Cut,
    /// A request or its reply is lost, and no error is reported.
    Lost,
    /// The gate gives a call up or its connection breaks, and the request arrives later.
    Late,
    /// A request arrives twice.
    Twice,
    /// The store cannot be reached for a while.
    Outage,
    /// The store has no room: for one write, for new records, or for any write for a while.
    Full,
    /// The store reports that it cannot be used, once or for a while, as after a change of its password.
    Unusable,
    /// A record cannot be read, once or until an operator repairs it.
    Damaged,
    /// The store forgets everything.
    Amnesia,
    /// The clock of the store steps, forwards or back.
    StoreClock,
    /// Records live for a few leases only.
    Expiry,
    /// A process crashes and restarts.
    Crash,
    /// A process stands still.
    Pause,
    /// The heartbeat's thread stands still while the tasks run on.
    HeartbeatLate,
    /// All tasks of a process stand still while its threads run on.
    ExecutorLate,
    /// All tasks of a process are dropped while it lives on.
    Abort,
    /// The clocks of processes are wrong, step and drift.
    Clocks,
    /// An operator resolves unknown outcomes, slowly.
    Operator,
    /// A worker gives operations up and buries their records; an operator reopens some of them.
    Worker,
    /// A caller hangs up.
    HangUp,
    /// A client uses a key with another payload.
    OtherPayload,
    /// Handlers take longer than a lease, or longer than `max_execution`.
    LongHandler,
    /// Handlers panic.
    Panic,
}

impl FaultClass {
    /// Every class with its name in reports.
    pub const ALL: &[(Self, &str)] = &[
        (Self::Slow, "slow call"),
        (Self::Refused, "refused call"),
        (Self::Cut, "cut call"),
        (Self::Lost, "lost call"),
        (Self::Late, "late request"),
        (Self::Twice, "request twice"),
        (Self::Outage, "outage"),
        (Self::Full, "full store"),
        (Self::Unusable, "unusable store"),
        (Self::Damaged, "damaged record"),
        (Self::Amnesia, "amnesia"),
        (Self::StoreClock, "store clock stepped"),
        (Self::Expiry, "record expired"),
        (Self::Crash, "crash"),
        (Self::Pause, "pause"),
        (Self::HeartbeatLate, "heartbeat thread late"),
        (Self::ExecutorLate, "executor blocked"),
        (Self::Abort, "tasks dropped"),
        (Self::Clocks, "process clocks stepped"),
        (Self::Operator, "operator resolved"),
        (Self::Worker, "worker gave up"),
        (Self::HangUp, "caller hung up"),
        (Self::OtherPayload, "other payload"),
        (Self::LongHandler, "long handler"),
        (Self::Panic, "handler panicked"),
    ];

    pub(crate) fn name(self) -> &'static str {
        let listed = Self::ALL.iter().find(|(class, _)| *class == self);
        listed.map_or("", |(_, name)| name)
    }
}

/// The policy of some of the keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoutePlan {
    pub(crate) effect: EffectPolicy,
    pub(crate) lease: Duration,
    pub(crate) max_execution: Duration,
    /// How long a follower waits; none if followers are rejected.
    pub(crate) wait: Option<Duration>,
    /// How long an answer lives.
    pub(crate) retention: Duration,
    /// How long a record lives while its outcome is unknown.
    pub(crate) unknown_retention: Duration,
    /// How long a released record lives.
    pub(crate) released_retention: Duration,
}

/// One key of a tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPlan {
    pub(crate) tenant: usize,
    /// The key that the client sends. Different tenants use the same names.
    pub(crate) name: usize,
    pub(crate) route: usize,
}

/// The order in which runnable tasks are polled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PollingOrder {
    /// Every task has the same chance.
    Even,
    /// Mostly the task that was spawned first.
    OldestFirst,
    /// Mostly the task that was spawned last.
    NewestFirst,
}

/// The shape of a world.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// For each process, whether it has a journal.
    pub(crate) journals: Vec<bool>,
    pub(crate) routes: Vec<RoutePlan>,
    pub(crate) keys: Vec<KeyPlan>,
    /// How many clients there are. Several clients may use the same key.
    pub(crate) clients: usize,
    pub(crate) max_in_flight: usize,
    pub(crate) max_twins: usize,
    pub(crate) store_timeout: Duration,
    /// How long faults happen.
    pub(crate) window: Duration,
    pub(crate) order: PollingOrder,
    /// The classes of faults that are possible.
    pub(crate) swarm: Vec<FaultClass>,
    /// The percentage of store calls that meet a fault.
    pub(crate) fault_percent: usize,
    /// The longest time that a store call takes without a fault, in each direction.
    pub(crate) latency: Duration,
    /// The longest time that a probe takes to return what it found.
    pub(crate) probe_takes: Duration,
    /// The percentage of handlers that report an unknown outcome or panic.
    pub(crate) unsure_percent: usize,
    /// The percentage of the other handlers that apply nothing.
    pub(crate) vain_percent: usize,
    /// The longest time between two faults of a class.
    pub(crate) respite: Duration,
}

impl Plan {
    pub(crate) fn draw(dice: &Dice) -> Self {
        let lease = Duration::from_secs(dice.pick(&[1, 1, 2, 5]));
        let swarm = draw_swarm(dice);
        // In some worlds all clients call with the same key at once. In others they also ask slow probes.
        let crowded = dice.percent(20);
        let probing = crowded && dice.percent(30);
        let mut routes = (0..if crowded { 1 } else { dice.between(1, 3) })
            .map(|_| draw_route(dice, lease, &swarm))
            .collect::<Vec<_>>();
        if probing {
            routes[0].effect = EffectPolicy::Resolve;
        }
        let leases = if crowded && !probing { 4 } else { dice.between(3, 15) };
        let window = lease * u32::try_from(leases).expect("small");
        let clients = if crowded { 30 } else { dice.pick(&[3, 6, 12, 25, 60]) };
        let keys = if crowded { 1 } else { dice.pick(&[1, 1, 2, 5, 20, 200]).min(2 * clients) };
        let tenants = dice.between(1, 5).min(keys);
        let key =
            |number| KeyPlan { tenant: number % tenants, name: number / tenants, route: dice.below(routes.len()) };
        let store_timeout = dice.pick(&[lease / 10, lease / 3, Duration::from_secs(1)]);
        let latency = dice.pick(&[Duration::ZERO, Duration::from_millis(2), lease / 50, lease / 8]);
        Self {
            journals: (0..dice.between(2, 6)).map(|_| dice.percent(70)).collect(),
            keys: (0..keys).map(key).collect(),
            clients,
            max_in_flight: dice.pick(&[2, 100, 100]),
            max_twins: dice.pick(&[1, 100, 100]),
            store_timeout,
            order: dice.pick(&[
                PollingOrder::Even,
                PollingOrder::Even,
                PollingOrder::OldestFirst,
                PollingOrder::NewestFirst,
            ]),
            swarm,
            fault_percent: dice.pick(&[2, 20, 40]),
            latency: latency.min(store_timeout / 4),
            probe_takes: if probing { lease * 9 / 10 } else { dice.pick(&[Duration::ZERO, lease / 2, lease * 9 / 10]) },
            unsure_percent: if probing { 80 } else { dice.pick(&[6, 6, 40]) },
            vain_percent: dice.pick(&[15, 15, 50]),
            respite: dice.pick(&[window / 2, window / 4, 2 * lease]),
            window,
            routes,
        }
    }

    pub(crate) fn allows(&self, class: FaultClass) -> bool {
        self.swarm.contains(&class)
    }

    pub(crate) fn route(&self, key: usize) -> RoutePlan {
        self.routes[self.keys[key].route]
    }

    pub(crate) fn shortest_lease(&self) -> Duration {
        self.routes.iter().map(|route| route.lease).min().unwrap_or_default()
    }

    pub(crate) fn longest_lease(&self) -> Duration {
        self.routes.iter().map(|route| route.lease).max().unwrap_or_default()
    }
}

fn draw_route(dice: &Dice, lease: Duration, swarm: &[FaultClass]) -> RoutePlan {
    let ledger = EffectPolicy::Ledger { pass: dice.percent(50) };
    let lease = if dice.percent(80) { lease } else { lease * 2 };
    let lives = Policy::default();
    let [retention, unknown_retention, released_retention] = if swarm.contains(&FaultClass::Expiry) {
        [lease * 3, lease * 4, lease * 2]
    } else {
        [lives.retention, lives.unknown_retention, lives.released_retention]
    };
    RoutePlan {
        effect: dice.pick(&[
            EffectPolicy::Hold,
            EffectPolicy::Hold,
            EffectPolicy::Resolve,
            ledger,
            EffectPolicy::Repeatable,
        ]),
        lease,
        max_execution: if dice.percent(70) { Duration::from_secs(900) } else { lease * 2 },
        wait: dice.percent(50).then(|| dice.span(lease / 10, lease * 2)),
        retention,
        unknown_retention,
        released_retention,
    }
}

fn draw_swarm(dice: &Dice) -> Vec<FaultClass> {
    // Worlds without faults check that the gate causes no problem by itself.
    let share = dice.pick(&[0, 15, 50, 50, 50, 50]);
    FaultClass::ALL.iter().filter(|_| dice.percent(share)).map(|(class, _)| *class).collect()
}
