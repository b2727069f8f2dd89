//! The network between the gates and the store. It decides whether, when and how often a request arrives, and whether
//! its reply does.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::{ErrorKind, RecordKey};
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
    unusable: bool,
    room: Room,
    /// The records that cannot be read.
    damaged: BTreeSet<RecordKey>,
}

/// For which writes the store has room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Room {
    #[default]
    Enough,
    /// New records are refused, as a full Redis does.
    ForKnownRecords,
    /// Every write is refused, as a full disk does.
    None,
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
    /// The request is not carried out, and the reply is this error.
    Refused(ErrorKind),
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

impl CallFate {
    pub(super) const FINE: Self = Self::Fine { there: Duration::ZERO, back: Duration::ZERO };
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
        *self.lock() = NetworkState { healed: true, ..NetworkState::default() };
    }

    pub(crate) fn outage(&self, outage: Option<Outage>) {
        let mut state = self.lock();
        state.outage = outage.filter(|_| !state.healed);
    }

    pub(crate) fn room(&self, room: Room) {
        let mut state = self.lock();
        state.room = if state.healed { Room::Enough } else { room };
    }

    pub(crate) fn unusable(&self, unusable: bool) {
        let mut state = self.lock();
        state.unusable = unusable && !state.healed;
    }

    pub(crate) fn damage(&self, rk: RecordKey) {
        let mut state = self.lock();
        if !state.healed {
            state.damaged.insert(rk);
        }
    }

    pub(crate) fn repair(&self, rk: &RecordKey) {
        self.lock().damaged.remove(rk);
    }

    /// The error with which the store refuses a request that arrives. `has_record`: whether the record lives.
    pub(super) fn refusal(&self, rk: &RecordKey, request: StoreCall, has_record: bool) -> Option<ErrorKind> {
        let state = self.lock();
        if has_record && state.damaged.contains(rk) && request != StoreCall::Dedicated {
            return Some(ErrorKind::Damaged);
        }
        let refuses = match state.room {
            Room::Enough => false,
            Room::ForKnownRecords => request == StoreCall::Begin && !has_record,
            // The begin of a record that lives only reads.
            Room::None => request.writes() && !(request == StoreCall::Begin && has_record),
        };
        refuses.then_some(ErrorKind::Full)
    }

    pub(super) fn fate(&self, request: StoreCall) -> CallFate {
        let (healed, unusable, outage) = {
            let state = self.lock();
            (state.healed, state.unusable, state.outage)
        };
        if unusable {
            return CallFate::Refused(ErrorKind::Unusable);
        }
        let latency = || self.dice.up_to(self.plan.latency);
        match outage {
            Some(Outage::Slow) => {
                return CallFate::Fine { there: latency(), back: self.dice.up_to(self.plan.store_timeout) };
            }
            Some(Outage::Refuses) => return CallFate::Refused(ErrorKind::NotApplied),
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
        // A call that writes nothing needs no room.
        let can_meet = |class| self.plan.allows(class) && (class != FaultClass::Full || request.writes());
        let possible: Vec<_> = FAULTS.iter().filter(|(class, _)| can_meet(*class)).copied().collect();
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
    (FaultClass::Refused, |_| CallFate::Refused(ErrorKind::NotApplied)),
    (FaultClass::Full, |_| CallFate::Refused(ErrorKind::Full)),
    (FaultClass::Unusable, |_| CallFate::Refused(ErrorKind::Unusable)),
    (FaultClass::Damaged, |_| CallFate::Refused(ErrorKind::Damaged)),
    (FaultClass::Cut, |net| CallFate::Cut { carried_out: net.dice.percent(50) }),
    (FaultClass::Lost, |net| CallFate::Lost { carried_out: net.dice.percent(50) }),
    // With `cut`, the gate retries while the first request is still in transit.
    (FaultClass::Late, |net| CallFate::Late { after: net.dice.up_to(net.longest_transit()), cut: true }),
    (FaultClass::Late, |net| CallFate::Late { after: net.dice.up_to(net.longest_transit()), cut: false }),
    (FaultClass::Twice, |net| CallFate::Twice { again: net.dice.up_to(net.longest_transit()) }),
];
