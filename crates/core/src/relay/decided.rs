use crate::outbox::{Horizon, RowId};

/// Up to which id every row has been decided: no transaction that is still open can add one. Pure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DecidedRows {
    earlier: Option<Horizon>,
    decided: RowId,
}

impl DecidedRows {
    /// Takes a reading of the horizon. Returns true if ids or stamps are drawn again that were drawn before: the
    /// database was restored, and nothing is decided.
    pub fn observe(&mut self, now: Horizon) -> bool {
        if self.earlier.is_some_and(|earlier| now.drawn < earlier.drawn || now.stamp < earlier.stamp) {
            (self.earlier, self.decided) = (Some(now), RowId(0));
            return true;
        }
        match self.earlier {
            Some(earlier) if now.settled <= earlier.stamp => {}
            Some(earlier) => {
                self.decided = self.decided.max(earlier.drawn);
                self.earlier = Some(now);
            }
            None => self.earlier = Some(now),
        }
        false
    }

    /// Every row up to this id has been committed or never will be.
    pub fn up_to(&self) -> RowId {
        self.decided
    }
}
