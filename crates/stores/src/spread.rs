use std::hash::{BuildHasher, Hasher, RandomState};

/// Spreads the pauses of processes that disturb each other.
pub(crate) fn random() -> u32 {
    // The keys of every `RandomState` are random.
    let hash = RandomState::new().build_hasher().finish();
    u32::try_from(hash >> 32).unwrap_or(u32::MAX)
}
