use crate::outbox::{Horizon, RowId};

/// Up to which id every row has been decided: no transaction that is still open can add one. Pure.
#[derive(Debug, Default)]
pub(super) struct DecidedRows {
    earlier: Option<Horizon>,
    decided: RowId,
}

impl DecidedRows {
    /// Takes a reading of the horizon.
    pub(super) fn observe(&mut self, now: Horizon) {
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
    pub(super) fn up_to(&self) -> RowId {
        self.decided
    }
}

/// Below which id a bucket has no open row, and the scan that looks for rows that were committed late. Pure.
///
/// A scan reads the open rows between the floor and the cursor, in pieces. When it has seen all of them, the floor
/// moves up to the first one, but not above what was decided when the scan began.
#[derive(Debug, Default)]
pub(super) struct BucketFloor {
    floor: RowId,
    scan: Option<FloorScan>,
}

#[derive(Clone, Copy, Debug)]
struct FloorScan {
    /// How far the scan has come.
    at: RowId,
    /// The largest id up to which the floor can move.
    decided: RowId,
    /// The first open row that the scan has seen.
    first_open: Option<RowId>,
}

impl BucketFloor {
    /// From where the scan reads next. It begins a scan if none is under way.
    pub(super) fn next(&mut self, decided: RowId) -> RowId {
        let begin = || FloorScan { at: self.floor, decided, first_open: None };
        self.scan.get_or_insert_with(begin).at
    }

    /// Takes the ids of a piece of the scan, in order, without those of parked keys. `end`: how far the piece reached;
    /// None if there are no further rows. `cursor`: where the scan ends.
    pub(super) fn take(&mut self, open: impl IntoIterator<Item = RowId>, end: Option<RowId>, cursor: RowId) {
        let Some(scan) = &mut self.scan else { return };
        scan.first_open = scan.first_open.or(open.into_iter().next());
        match end {
            Some(end) if end < cursor => scan.at = end,
            Some(_) | None => {
                let below = scan.first_open.map_or(cursor, |RowId(first)| RowId(first - 1));
                self.floor = self.floor.max(scan.decided.min(below).min(cursor));
                self.scan = None;
            }
        }
    }

    /// Begins again from the first row.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}
