//! Ordering keys that wait for an operator, after a message of theirs became a dead letter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::broker::DeadLetterStore;
use crate::chaos::Mutant;
use crate::worker::order::OrderKey;

/// How often the letters of closed keys are searched for.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

/// Which ordering keys are closed, and until which search.
///
/// A key is closed when a message of it arrives, and when one becomes a dead letter. It is opened by a search
/// for dead letters that began later and found none of this key. So no message overtakes a dead one, also if another
/// worker has written its letter.
#[derive(Debug)]
pub(super) struct Parking {
    letters: Arc<dyn DeadLetterStore>,
    /// How many searches had begun when a key was closed.
    closed: BTreeMap<OrderKey, u64>,
    /// The number of searches that have begun.
    searches: u64,
    is_searching: bool,
    /// Whether a key was closed since the last search began.
    is_new: bool,
    due: Duration,
}

impl Parking {
    pub(super) fn new(letters: Arc<dyn DeadLetterStore>) -> Self {
        Self { letters, closed: BTreeMap::new(), searches: 0, is_searching: false, is_new: false, due: Duration::ZERO }
    }

    pub(super) fn letters(&self) -> &Arc<dyn DeadLetterStore> {
        &self.letters
    }

    pub(super) fn close(&mut self, key: OrderKey) {
        self.closed.insert(key, self.searches);
        self.is_new = true;
    }

    /// The keys whose letters are to be searched for now.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<Vec<Bytes>> {
        let is_due = self.is_new || self.due <= now;
        if self.is_searching || self.closed.is_empty() || !is_due {
            return None;
        }
        (self.is_searching, self.is_new, self.searches) = (true, false, self.searches + 1);
        Some(self.closed.keys().map(|(_, key)| key.clone()).collect())
    }

    /// Notes the keys that have letters, or that nobody knows. Returns the keys that are open now.
    pub(super) fn end_search(&mut self, found: Option<&[Bytes]>, now: Duration) -> Vec<OrderKey> {
        (self.is_searching, self.due) = (false, now + SEARCH_EVERY);
        let found = if Mutant::UnreadLettersAreNone.is_on() { found.or(Some(&[])) } else { found };
        let Some(found) = found else { return Vec::new() };
        let searches = self.searches;
        let is_free = |key: &OrderKey, since: u64| since < searches && !found.contains(&key.1);
        let open: Vec<OrderKey> =
            self.closed.iter().filter(|(key, since)| is_free(key, **since)).map(|(key, _)| key.clone()).collect();
        for key in &open {
            self.closed.remove(key);
        }
        open
    }

    /// Forgets keys without messages: the next message closes its key again.
    pub(super) fn forget(&mut self, key: &OrderKey) {
        self.closed.remove(key);
    }

    /// When to search again.
    pub(super) fn next_due(&self) -> Option<Duration> {
        (!self.is_searching && !self.closed.is_empty()).then_some(if self.is_new { Duration::ZERO } else { self.due })
    }
}
