//! Somebody who finds out what became of an operation.

use crate::ask::{Ask, Op, Reply, Who};
use crate::attempt::Attempt;
use crate::kept::OPERATORS_WORDS;
use crate::setting::Operator;
use crate::space::Space;
use crate::world::{Finding, World};

impl World {
    /// A lapsed record is held first; finding out begins after that.
    pub(crate) fn look(&mut self) {
        self.left.looks -= 1;
        let Some(record) = self.store.slots[0].live().copied() else { return };
        let expected = record.token;
        self.operator = if record.is_dead() {
            Finding::Asking(Ask::first(Op::Reopen { expected }))
        } else {
            Finding::Asking(Ask::first(Op::Hold { expected }))
        };
    }

    pub(crate) fn operator_hears(&mut self, op: Op, reply: Reply) {
        self.operator = match (op, reply) {
            (Op::Hold { expected }, Reply::Yes) => Finding::Out { expected },
            _ => Finding::Idle,
        };
    }

    pub(crate) fn find_out(&mut self, space: &Space) {
        let Finding::Out { expected } = self.operator else { return };
        let found = self.history.produced[usize::from(space.setting.calls[0].tenant)];
        let done = match space.setting.operator {
            Operator::InOwnWords => found.map(|_| OPERATORS_WORDS),
            Operator::Careful | Operator::Hasty | Operator::Nobody => found,
        };
        // What happens after the question is not in the answer.
        self.history.excused |= done.is_none() && self.attempts.iter().any(Attempt::can_act);
        self.asks(Who::Operator, Ask::first(Op::Resolve { expected, done }));
    }
}
