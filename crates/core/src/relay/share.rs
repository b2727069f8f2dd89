use crate::outbox::BUCKETS;

/// How many relays can share the buckets. Further ones wait until one of these ends.
pub(super) const MEMBERS: u8 = 16;

/// How many buckets each relay takes, with this many members.
pub(super) fn share(members: usize) -> usize {
    usize::from(BUCKETS).div_ceil(members.max(1))
}
