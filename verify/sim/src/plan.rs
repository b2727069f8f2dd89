//! What a seed decides before a world begins: its shape, its routes and what may go wrong in it.

use std::time::Duration;

use hapax_core::Policy;

use crate::dice::Dice;
use crate::outcome::EffectPolicy;

/// A kind of thing that may go wrong. Each is possible in about half of the worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A request or a reply takes longer than the gate waits.
    Slow,
    /// The store refuses a call: not applied.
    Refused,
    /// A connection is cut: the call is unknown, and carried out or not.
    Cut,
    /// A request or its reply is lost without a word.
    Lost,
    /// A call is given up or cut, and its request arrives later.
    Late,
    /// A request arrives twice.
    Twice,
    /// The store cannot be reached for a while.
    Outage,
    /// The store has no room for new records for a while.
    Full,
    /// The store forgets everything.
    Amnesia,
    /// The clock of the store steps, forth or back.
    StoreClock,
    /// Records live for a few leases only.
    Expiry,
    /// A process ends, and starts again.
    Crash,
    /// A process stands still.
    Pause,
    /// The heartbeat's thread stands still.
    HeartbeatLate,
    /// All tasks of a process stand still while its threads go on.
    ExecutorLate,
    /// All tasks of a process are dropped while it lives on.
    Abort,
    /// The clocks of processes are wrong, step, and drift.
    Clocks,
    /// An operator finds out about unknown outcomes, and is slow to say so.
    Operator,
    /// A caller hangs up.
    HangUp,
    /// A key is used for another payload.
    OtherPayload,
    /// Handlers take longer than a lease, or than they may.
    LongHandler,
    /// Handlers panic.
    Panic,
}

impl Class {
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

/// One route: the policy under which some of the keys live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) effect: EffectPolicy,
    pub(crate) lease: Duration,
    pub(crate) max_execution: Duration,
    /// How long a copy waits; none to reject it.
    pub(crate) wait: Option<Duration>,
    /// How long an answer lives.
    pub(crate) retention: Duration,
    /// How long a record lives whose outcome is not known.
    pub(crate) unknown_retention: Duration,
    /// How long a released record lives.
    pub(crate) released_retention: Duration,
}

/// One key of a tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPlan {
    pub(crate) tenant: usize,
    /// What the client sends: tenants use the same names.
    pub(crate) name: usize,
    pub(crate) route: usize,
}

/// In which order tasks go on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Turns {
    /// Each as likely as any other.
    Even,
    /// Mostly the one that was spawned first.
    OldestFirst,
    /// Mostly the one that was spawned last.
    NewestFirst,
}

/// The shape of a world.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// For each process, whether it has a journal.
    pub(crate) journals: Vec<bool>,
    pub(crate) routes: Vec<Route>,
    pub(crate) keys: Vec<KeyPlan>,
    /// How many clients there are, each with an operation of its own or a copy of another's.
    pub(crate) clients: usize,
    pub(crate) max_in_flight: usize,
    pub(crate) max_twins: usize,
    pub(crate) store_timeout: Duration,
    /// How long things go wrong.
    pub(crate) window: Duration,
    pub(crate) turns: Turns,
    pub(crate) swarm: Vec<Class>,
    /// How many of a hundred calls to the store meet a fault.
    pub(crate) fault_percent: usize,
    /// The longest that a call takes when nothing is wrong.
    pub(crate) latency: Duration,
    /// The longest that a probe takes once it knows.
    pub(crate) probe_takes: Duration,
    /// How many of a hundred handlers do not know what they did.
    pub(crate) unsure_percent: usize,
    /// How many of a hundred of the others apply nothing.
    pub(crate) vain_percent: usize,
    /// The longest between two strikes of a class.
    pub(crate) respite: Duration,
}

impl Plan {
    pub(crate) fn draw(dice: &Dice) -> Self {
        let lease = Duration::from_secs(dice.pick(&[1, 1, 2, 5]));
        let swarm = draw_swarm(dice);
        // In some worlds everybody wants the same at once.
        let crowded = dice.percent(15);
        let routes = (0..if crowded { 1 } else { dice.between(1, 3) })
            .map(|_| draw_route(dice, lease, &swarm))
            .collect::<Vec<_>>();
        let leases = if crowded { 4 } else { dice.between(3, 15) };
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
            turns: dice.pick(&[Turns::Even, Turns::Even, Turns::OldestFirst, Turns::NewestFirst]),
            swarm,
            fault_percent: dice.pick(&[2, 20, 40]),
            latency: latency.min(store_timeout / 4),
            probe_takes: dice.pick(&[Duration::ZERO, lease / 2, lease * 9 / 10]),
            unsure_percent: dice.pick(&[6, 6, 40]),
            vain_percent: dice.pick(&[15, 15, 50]),
            respite: dice.pick(&[window / 2, window / 4, 2 * lease]),
            window,
            routes,
        }
    }

    pub(crate) fn may(&self, class: Class) -> bool {
        self.swarm.contains(&class)
    }

    pub(crate) fn route(&self, key: usize) -> Route {
        self.routes[self.keys[key].route]
    }

    pub(crate) fn shortest_lease(&self) -> Duration {
        self.routes.iter().map(|route| route.lease).min().unwrap_or_default()
    }

    pub(crate) fn longest_lease(&self) -> Duration {
        self.routes.iter().map(|route| route.lease).max().unwrap_or_default()
    }
}

fn draw_route(dice: &Dice, lease: Duration, swarm: &[Class]) -> Route {
    let ledger = EffectPolicy::Ledger { pass: dice.percent(50) };
    let lease = if dice.percent(80) { lease } else { lease * 2 };
    let lives = Policy::default();
    let [retention, unknown_retention, released_retention] = if swarm.contains(&Class::Expiry) {
        [lease * 3, lease * 4, lease * 2]
    } else {
        [lives.retention, lives.unknown_retention, lives.released_retention]
    };
    Route {
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

fn draw_swarm(dice: &Dice) -> Vec<Class> {
    // Some worlds are calm: what goes wrong there is the gate's own doing.
    let share = dice.pick(&[0, 15, 50, 50, 50, 50]);
    Class::ALL.iter().filter(|_| dice.percent(share)).map(|(class, _)| *class).collect()
}
