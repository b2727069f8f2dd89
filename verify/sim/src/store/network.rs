//! The network between gates and the store: whether, when and how often a request gets there, and its reply back.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_testkit::Process;

use super::{Request, Shelf};
use crate::dice::Dice;
use crate::oracle::Oracle;
use crate::plan::{Class, Plan};

/// The weather between gates and the store.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) server: Arc<Process>,
    pub(crate) oracle: Arc<Oracle>,
    pub(crate) plan: Arc<Plan>,
    dice: Dice,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    healed: bool,
    outage: Option<Outage>,
    full: bool,
}

/// How a store is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    /// It takes its time with every reply, as many a store does before it fails.
    Slow,
    /// It refuses every call at once.
    Refuses,
    /// No request gets to it.
    Swallows,
    /// Requests get to it, replies do not get back.
    Mute,
    /// No completion gets to it; all else does.
    LosesAnswers,
    /// No renewal gets to it; all else does.
    LosesRenewals,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// It is carried out and answered, each after this time.
    Fine {
        there: Duration,
        back: Duration,
    },
    Refused,
    Cut {
        carried_out: bool,
    },
    Lost {
        carried_out: bool,
    },
    /// It is carried out after this time; meanwhile it is cut, or not answered.
    Late {
        after: Duration,
        cut: bool,
    },
    /// It is carried out once more after this time.
    Twice {
        again: Duration,
    },
}

impl Network {
    pub(crate) fn new(oracle: Arc<Oracle>, shelf: Arc<Shelf>, plan: Arc<Plan>, dice: Dice) -> Self {
        Self { server: Arc::clone(&shelf.server), shelf, oracle, plan, dice, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all faults. Late requests are still under way.
    pub(crate) fn heal(&self) {
        *self.lock() = State { healed: true, outage: None, full: false };
    }

    pub(crate) fn outage(&self, outage: Option<Outage>) {
        let mut state = self.lock();
        state.outage = outage.filter(|_| !state.healed);
    }

    pub(crate) fn full(&self, full: bool) {
        let mut state = self.lock();
        state.full = full && !state.healed;
    }

    /// Whether there is no room for a new record.
    pub(super) fn is_full(&self) -> bool {
        self.lock().full
    }

    pub(super) fn fate(&self, request: Request) -> Fate {
        let (healed, outage) = {
            let state = self.lock();
            (state.healed, state.outage)
        };
        let latency = || self.dice.up_to(self.plan.latency);
        match outage {
            Some(Outage::Slow) => {
                return Fate::Fine { there: latency(), back: self.dice.up_to(self.plan.store_timeout) };
            }
            Some(Outage::Refuses) => return Fate::Refused,
            Some(Outage::Swallows) => return Fate::Lost { carried_out: false },
            Some(Outage::Mute) => return Fate::Lost { carried_out: true },
            Some(Outage::LosesAnswers) if request == Request::Complete => return Fate::Lost { carried_out: false },
            Some(Outage::LosesRenewals) if matches!(request, Request::Renew(_)) => {
                return Fate::Lost { carried_out: false };
            }
            Some(Outage::LosesAnswers | Outage::LosesRenewals) | None => {}
        }
        let fine = Fate::Fine { there: latency(), back: latency() };
        if healed || !self.dice.percent(self.plan.fault_percent) {
            return fine;
        }
        let possible: Vec<_> = FAULTS.iter().filter(|(class, _)| self.plan.may(*class)).copied().collect();
        if possible.is_empty() {
            return fine;
        }
        let (class, make) = self.dice.pick(&possible);
        self.oracle.counts(class);
        make(self)
    }

    /// How long a request can be under way: less than any lease.
    fn dies_after(&self) -> Duration {
        self.plan.shortest_lease() - Duration::from_millis(1)
    }
}

type Make = fn(&Network) -> Fate;

const FAULTS: &[(Class, Make)] = &[
    // Slow, and too slow.
    (Class::Slow, |net| Fate::Fine {
        there: net.dice.up_to(net.dies_after().min(2 * net.plan.store_timeout)),
        back: net.dice.up_to(2 * net.plan.store_timeout),
    }),
    (Class::Slow, |net| Fate::Fine { there: Duration::ZERO, back: net.dice.up_to(net.plan.store_timeout) }),
    (Class::Refused, |_| Fate::Refused),
    (Class::Cut, |net| Fate::Cut { carried_out: net.dice.percent(50) }),
    (Class::Lost, |net| Fate::Lost { carried_out: net.dice.percent(50) }),
    // A caller that is cut off tries again while the first request is under way.
    (Class::Late, |net| Fate::Late { after: net.dice.up_to(net.dies_after()), cut: true }),
    (Class::Late, |net| Fate::Late { after: net.dice.up_to(net.dies_after()), cut: false }),
    (Class::Twice, |net| Fate::Twice { again: net.dice.up_to(net.dies_after()) }),
];
