//! The operator, who finds out and resolves unknown outcomes.

use crate::attempt::ModelAttempt;
use crate::record::OPERATORS_ANSWER;
use crate::reply::ProtocolReply;
use crate::request::{Operation, ProtocolRequest, Sender};
use crate::setting::OperatorKind;
use crate::space::StateSpace;
use crate::world::{OperatorPhase, World};

impl World {
    /// A lapsed record is held before the operator finds its outcome out.
    pub(crate) fn look(&mut self) {
        self.faults_left.looks -= 1;
        let Some(record) = self.store.slots[0].live().copied() else { return };
        let expected = record.token;
        self.operator = if record.is_dead() {
            OperatorPhase::Waiting(ProtocolRequest::first(Operation::Reopen { expected }))
        } else {
            OperatorPhase::Waiting(ProtocolRequest::first(Operation::Hold { expected }))
        };
    }

    pub(crate) fn operator_receives(&mut self, operation: Operation, reply: ProtocolReply) {
        self.operator = match (operation, reply) {
            (Operation::Hold { expected }, ProtocolReply::Yes) => OperatorPhase::FindingOut { expected },
            _ => OperatorPhase::Idle,
        };
    }

    pub(crate) fn find_out(&mut self, space: &StateSpace) {
        let OperatorPhase::FindingOut { expected } = self.operator else { return };
        let found = self.history.produced[usize::from(space.setting.calls[0].tenant)];
        let done = match space.setting.operator {
            OperatorKind::OwnAnswer => found.map(|_| OPERATORS_ANSWER),
            OperatorKind::Careful | OperatorKind::Hasty | OperatorKind::Nobody => found,
        };
        // An effect that happens later is not in the result, so the invariants excuse it.
        self.history.excused |= done.is_none() && self.attempts.iter().any(ModelAttempt::can_act);
        self.send(Sender::Operator, ProtocolRequest::first(Operation::Resolve { expected, done }));
    }
}
