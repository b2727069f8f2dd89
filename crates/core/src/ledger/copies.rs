use std::sync::atomic::{AtomicU64, Ordering};

/// How many of the latest operations of a ledger were copies, so that a runner knows whether it should look for rows
/// before it claims. All batches of a ledger share it.
#[derive(Debug, Default)]
pub struct RecentCopies {
    /// The share of copies, in millionths.
    share: AtomicU64,
}

/// How many operations the share is about: older ones count less and less.
const WINDOW: u64 = 256;

/// From which share on a look for rows takes less time than the claims that it saves: 5 %.
const LIKELY: u64 = 50_000;

const ALL: u64 = 1_000_000;

impl RecentCopies {
    pub(super) fn are_likely(&self) -> bool {
        self.share.load(Ordering::Relaxed) > LIKELY
    }

    /// Notes how many operations were copies and how many were new. A note that meets another one may be lost.
    pub(super) fn note(&self, copies: usize, fresh: usize) {
        let (copies, all) = (copies as u64, (copies + fresh) as u64);
        let share = self.share.load(Ordering::Relaxed);
        let window = all.max(WINDOW);
        self.share.store((share * (window - all) + copies * ALL) / window, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_one_copy_in_twenty_operations_is_likely_until_they_are_fewer_again() {
        let copies = RecentCopies::default();
        copies.note(10, 246);
        assert!(!copies.are_likely());
        copies.note(30, 226);
        assert!(copies.are_likely());
        copies.note(0, 100);
        assert!(copies.are_likely());
        copies.note(0, 200);
        assert!(!copies.are_likely());
    }
}
