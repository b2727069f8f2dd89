use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use crate::key::OperationId;
use crate::ledger::Work;

/// The calls of one transaction.
#[derive(Debug)]
pub struct Slice {
    pub(super) members: Vec<usize>,
    /// How often these calls were run in a transaction that the database did not let end.
    pub(super) tries: u32,
    /// Whether an earlier COMMIT of these calls got no reply, and no claim has told since whether it happened.
    pub(super) is_commit_open: bool,
    /// Whether the last transaction of these calls found a row at its end.
    pub(super) had_row: bool,
    /// Whether their rows were looked for since their last transaction.
    pub(super) is_read: bool,
}

impl Slice {
    pub(super) fn new(members: Vec<usize>) -> Self {
        Self { members, tries: 0, is_commit_open: false, had_row: false, is_read: false }
    }

    pub(super) fn members(&self) -> &[usize] {
        &self.members
    }
}

/// A call is in the first slice after the earlier copies of its operation, because a transaction can claim an operation
/// only once, and not before the earlier calls of its ordering key.
pub(super) fn first_slices(work: &[Work]) -> VecDeque<Slice> {
    let mut after_copies: HashMap<OperationId, usize> = HashMap::new();
    let mut of_keys: HashMap<&Bytes, usize> = HashMap::new();
    let mut slices: VecDeque<Slice> = VecDeque::new();
    for (index, Work { call, ordering_key, .. }) in work.iter().enumerate() {
        let after_copy = after_copies.entry(call.operation()).or_default();
        let of_key = ordering_key.as_ref().map(|key| of_keys.entry(key).or_default());
        let place = of_key.as_deref().copied().unwrap_or_default().max(*after_copy);
        if slices.len() == place {
            slices.push_back(Slice::new(Vec::new()));
        }
        slices[place].members.push(index);
        *after_copy = place + 1;
        of_key.into_iter().for_each(|of_key| *of_key = place);
    }
    slices
}
