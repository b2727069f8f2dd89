//! Whether an operator may remove a record.

use super::is_lapsed;
use super::observed::Observed;
use super::reply::Purged;
use super::request::Purge;
use crate::record::{Phase, State};

/// Decides a purge: rows U1 to U4. With [`Purged::Yes`] the store removes the record if it is still the observed one.
pub fn purge(seen: &Observed, ask: &Purge) -> Purged {
    let Some(record) = seen.live().filter(|record| record.token == ask.expected) else {
        return Purged::Stale; // U1
    };
    match &record.state {
        State::Open(Phase::InProgress, holding) if !is_lapsed(seen, holding) => Purged::Running, // U2
        State::Open(Phase::InProgress | Phase::Indeterminate, _) if !ask.forget_unknown => Purged::Unknown, // U3
        State::Open(..) | State::Completed(_) => Purged::Yes,                                    // U4
    }
}
