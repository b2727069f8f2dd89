//! The network between the gates and the store. It decides whether, when and how often a request arrives, and whether
//! its reply does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_testkit::Process;

use super::{StoreCall, StoreServer};
use crate::dice::Dice;
use crate::oracle::Oracle;
use crate::plan::{FaultClass, Plan};

/// The network, with the faults that it has now.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) shelf: Arc<StoreServer>,
    pub(crate) server: Arc<Process>,
    pub(crate) oracle: Arc<Oracle>,
    pub(crate) plan: Arc<Plan>,
    dice: Dice,
    state: Mutex<NetworkState>,
}

#[derive(Debug, Default)]
struct NetworkState {
    healed: bool,
    outage: Option<Outage>,
    full: bool,
}

/// How the store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    /// It replies slowly, as many stores do before they fail.
    Slow,
    /// It refuses every call at once.
    Refuses,
    /// No request arrives.
    Swallows,
    /// Requests arrive, and all replies are lost.
    Mute,
    /// Completions are lost; other requests arrive.
    LosesAnswers,
    /// Renewals are lost; other requests arrive.
    LosesRenewals,
}

/// How the network treats one call.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallFate {
    /// The request arrives after the first time, and the reply after the second.
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
    /// The request arrives after this time. Until then the connection breaks, or no reply arrives.
    Late {
        after: Duration,
        cut: bool,
    },
    /// A copy of the request arrives after this time.
    Twice {
        again: Duration,
    },
}

impl Network {
    pub(crate) fn new(oracle: Arc<Oracle>, shelf: Arc<StoreServer>, plan: Arc<Plan>, dice: Dice) -> Self {
        Self { server: Arc::clone(&shelf.server), shelf, oracle, plan, dice, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, NetworkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all faults. Late requests still arrive.
    pub(crate) fn heal(&self) {
        *self.lock() = NetworkState { healed: true, outage: None, full: false };
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

    pub(super) fn fate(&self, request: StoreCall) -> CallFate {
        let (healed, outage) = {
            let state = self.lock();
            (state.healed, state.outage)
        };
        let latency = || self.dice.up_to(self.plan.latency);
        match outage {
            Some(Outage::Slow) => {
                return CallFate::Fine { there: latency(), back: self.dice.up_to(self.plan.store_timeout) };
            }
            Some(Outage::Refuses) => return CallFate::Refused,
            Some(Outage::Swallows) => return CallFate::Lost { carried_out: false },
            Some(Outage::Mute) => return CallFate::Lost { carried_out: true },
            Some(Outage::LosesAnswers) if request == StoreCall::Complete => {
                return CallFate::Lost { carried_out: false };
            }
            Some(Outage::LosesRenewals) if matches!(request, StoreCall::Renew(_)) => {
                return CallFate::Lost { carried_out: false };
            }
            Some(Outage::LosesAnswers | Outage::LosesRenewals) | None => {}
        }
        let fine = CallFate::Fine { there: latency(), back: latency() };
        if healed || !self.dice.percent(self.plan.fault_percent) {
            return fine;
        }
        let possible: Vec<_> = FAULTS.iter().filter(|(class, _)| self.plan.allows(*class)).copied().collect();
        if possible.is_empty() {
            return fine;
        }
        let (class, make) = self.dice.pick(&possible);
        self.oracle.count_fault(class);
        make(self)
    }

    /// The longest time that a request is in transit. It is less than any lease, as the protocol assumes.
    fn longest_transit(&self) -> Duration {
        self.plan.shortest_lease() - Duration::from_millis(1)
    }
}

type MakeFate = fn(&Network) -> CallFate;

const FAULTS: &[(FaultClass, MakeFate)] = &[
    // Slower than the store timeout, or only slow.
    (FaultClass::Slow, |net| CallFate::Fine {
        there: net.dice.up_to(net.longest_transit().min(2 * net.plan.store_timeout)),
        back: net.dice.up_to(2 * net.plan.store_timeout),
    }),
    (FaultClass::Slow, |net| CallFate::Fine { there: Duration::ZERO, back: net.dice.up_to(net.plan.store_timeout) }),
    (FaultClass::Refused, |_| CallFate::Refused),
    (FaultClass::Cut, |net| CallFate::Cut { carried_out: net.dice.percent(50) }),
    (FaultClass::Lost, |net| CallFate::Lost { carried_out: net.dice.percent(50) }),
    // With `cut`, the gate retries while the first request is still in transit.
    (FaultClass::Late, |net| CallFate::Late { after: net.dice.up_to(net.longest_transit()), cut: true }),
    (FaultClass::Late, |net| CallFate::Late { after: net.dice.up_to(net.longest_transit()), cut: false }),
    (FaultClass::Twice, |net| CallFate::Twice { again: net.dice.up_to(net.longest_transit()) }),
];
