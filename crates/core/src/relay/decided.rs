use crate::outbox::{Horizon, RowId};

/// Up to which id every row has been decided: no transaction that is still open can add one. Pure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DecidedRows {
    earlier: Option<Horizon>,
    decided: RowId,
}

impl DecidedRows {
    /// Takes a reading of the horizon.
    pub fn observe(&mut self, now: Horizon) {
        match self.earlier {
            Some(earlier) if now.settled <= earlier.stamp => {}
            Some(earlier) => {
                self.decided = self.decided.max(earlier.drawn);
                self.earlier = Some(now);
            }
            None => self.earlier = Some(now),
        }
    }

    /// Every row up to this id has been committed or never will be.
    pub fn up_to(&self) -> RowId {
        self.decided
    }
}
