//! A state of the model: the store, the attempts, the requests in transit, and the history.

use crate::attempt::{ATTEMPTS, AttemptEnd, AttemptPhase, ModelAttempt};
use crate::history::{History, WriteCause};
use crate::invariant::Invariant;
use crate::record::ModelRecord;
use crate::reply::ProtocolReply;
use crate::request::{Operation, ProtocolRequest, Sender};
use crate::setting::{BrokenRule, FaultBudget};
use crate::space::StateSpace;
use crate::store::{ModelStore, PendingSwap};

/// The largest number of late requests.
pub(crate) const LATE: usize = 4;

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) store: ModelStore,
    /// The content of the replica.
    pub(crate) replica: ModelStore,
    pub(crate) attempts: [ModelAttempt; ATTEMPTS],
    /// Late requests, sorted.
    pub(crate) late: [Option<LateRequest>; LATE],
    pub(crate) operator: OperatorPhase,
    pub(crate) history: History,
    pub(crate) faults_left: FaultBudget,
}

/// A request whose sender no longer waits, and that may still arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LateRequest {
    pub(crate) from: Sender,
    pub(crate) request: ProtocolRequest,
}

/// The phase of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OperatorPhase {
    Idle,
    Waiting(ProtocolRequest),
    /// The operator finds out the outcome of the indeterminate record with this token.
    FindingOut {
        expected: u8,
    },
}

impl World {
    pub(crate) fn attempt(&mut self, number: u8) -> &mut ModelAttempt {
        &mut self.attempts[usize::from(number)]
    }

    /// The request whose reply a sender waits for.
    pub(crate) fn pending_request(&self, sender: Sender) -> Option<ProtocolRequest> {
        match sender {
            Sender::Attempt(number) => match self.attempts[usize::from(number)].phase {
                AttemptPhase::AwaitingStore(request) => Some(request),
                AttemptPhase::NotStarted
                | AttemptPhase::BeforeProbe
                | AttemptPhase::Probing { .. }
                | AttemptPhase::Running
                | AttemptPhase::RunningUnprotected
                | AttemptPhase::Ended(_)
                | AttemptPhase::Crashed => None,
            },
            Sender::Journal(number) => self.attempts[usize::from(number)].journal,
            Sender::Operator => match self.operator {
                OperatorPhase::Waiting(request) => Some(request),
                OperatorPhase::Idle | OperatorPhase::FindingOut { .. } => None,
            },
        }
    }

    /// Sends a request: its sender waits for the reply.
    pub(crate) fn send(&mut self, sender: Sender, request: ProtocolRequest) {
        match sender {
            Sender::Attempt(number) => self.attempt(number).phase = AttemptPhase::AwaitingStore(request),
            Sender::Journal(number) => self.attempt(number).journal = Some(request),
            Sender::Operator => self.operator = OperatorPhase::Waiting(request),
        }
    }

    /// Adds a late request. Returns whether there is room.
    pub(crate) fn add_late(&mut self, late: LateRequest) -> bool {
        let Some(place) = self.late.iter_mut().find(|place| place.is_none()) else {
            return false;
        };
        *place = Some(late);
        // Sorted, so that states that differ only in the order are equal.
        self.late.sort_unstable_by_key(|late| std::cmp::Reverse(*late));
        true
    }

    /// Removes a late request.
    pub(crate) fn take_late(&mut self, place: u8) -> Option<LateRequest> {
        let late = self.late[usize::from(place)].take();
        self.late.sort_unstable_by_key(|late| std::cmp::Reverse(*late));
        late
    }

    /// Whether a begin of this attempt can still arrive. `with_swaps` also counts the swap that follows a begin.
    pub(crate) fn begin_is_under_way(&self, number: u8, with_swaps: bool) -> bool {
        let begins = |late: &LateRequest| {
            late.request.operation == Operation::Begin && (with_swaps || late.request.swap.is_none())
        };
        self.late.iter().flatten().any(|late| late.from == Sender::Attempt(number) && begins(late))
    }

    /// Writes a record into a slot. A pending swap that read the same value is now stale.
    pub(crate) fn write(&mut self, space: &StateSpace, at: usize, next: ModelRecord, cause: WriteCause) {
        if self.grants_after_the_end(at, &next, cause) {
            self.history.breaks(Invariant::NoGrantAfterTheEnd);
        }
        let slot = &mut self.store.slots[at];
        self.history.writes(at, slot, &next, cause);
        let before = slot.live().copied();
        let same = before == Some(next);
        slot.write(next);
        if !space.setting.violates(BrokenRule::MarksByBeginAlone) || before.is_none() {
            self.store.mark = self.store.mark.max(next.token);
        }
        if same {
            self.stale(space, at, next);
        }
    }

    /// Whether a late begin grants its key to an attempt that has ended with an unknown outcome. Exempt are runs in
    /// which the store forgot the record of that attempt.
    fn grants_after_the_end(&self, at: usize, next: &ModelRecord, cause: WriteCause) -> bool {
        let Sender::Attempt(number) = cause.sender else { return false };
        let has_ended = self.attempts[usize::from(number)].phase == AttemptPhase::Ended(AttemptEnd::Unknown);
        let is_grant = next.in_progress().is_some() && self.store.slots[at].live() != Some(next);
        cause.operation == Operation::Begin && is_grant && has_ended && !self.history.forgot
    }

    fn stale(&mut self, space: &StateSpace, at: usize, armed: ModelRecord) {
        let mark = |sender: Sender, request: &mut ProtocolRequest| {
            let is_seen = |swap: &&mut PendingSwap| swap.seen == Some(armed) && space.slot_of(sender) == at;
            if let Some(swap) = request.swap.as_mut().filter(is_seen) {
                swap.renewed = true;
            }
        };
        for (number, attempt) in (0..).zip(&mut self.attempts).take(space.setting.calls.len()) {
            if let AttemptPhase::AwaitingStore(request) = &mut attempt.phase {
                mark(Sender::Attempt(number), request);
            }
            if let Some(request) = &mut attempt.journal {
                mark(Sender::Journal(number), request);
            }
        }
        self.late.iter_mut().flatten().for_each(|late| mark(late.from, &mut late.request));
        if let OperatorPhase::Waiting(request) = &mut self.operator {
            mark(Sender::Operator, request);
        }
    }
}

/// The result of one step of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepResult {
    /// A reply.
    Replied(ProtocolReply),
    /// A read, after which this swap must be sent.
    NeedsSwap(PendingSwap),
    /// No change, because the record changed since it was read.
    RecordChanged,
}
