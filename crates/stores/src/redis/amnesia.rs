//! The keys by which a loss of data is noticed. Each has a random value, written once and without expiry. If its value
//! changes, the server has lost its data.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use super::cluster::{SlotMap, slot};
use crate::server_events::LastValue;

/// The key of a server that is alone.
const SENTINEL: &str = "hx:amnesia";

/// The keys of one server.
pub(super) enum AmnesiaMarks {
    Server { last: LastValue, observations: AtomicU64 },
    Node { marks: MasterMarks, number: usize },
}

/// The keys of the masters of a cluster: `hx:amnesia:{TAG}`, with a tag whose slot the master has. The values are
/// remembered by tag, so that a slot that moves takes its key along.
#[derive(Clone)]
pub(super) struct MasterMarks {
    map: Arc<RwLock<SlotMap>>,
    last: Arc<Mutex<BTreeMap<u32, LastValue>>>,
    /// Of the whole cluster: two nodes may be asked for one key, one after the other.
    observations: Arc<AtomicU64>,
}

/// No tag has more digits than this number, so that no key has the length of a record's.
const TAGS: u32 = 100_000;

impl MasterMarks {
    pub(super) fn new(map: Arc<RwLock<SlotMap>>) -> Self {
        Self { map, last: Arc::default(), observations: Arc::default() }
    }

    /// The tags of a node: all that were seen before, and the least one, if it has any slot.
    fn tags(&self, number: usize) -> Vec<u32> {
        let map = self.map.read();
        let has = |tag: &u32| map.has(number, slot(tag.to_string().as_bytes()));
        let mut tags: Vec<u32> = self.last.lock().keys().copied().filter(&has).collect();
        let is_master = map.has_slots(number);
        if let Some(least) = is_master.then(|| (0..TAGS).find(has)).flatten().filter(|least| !tags.contains(least)) {
            tags.push(least);
        }
        tags
    }
}

impl AmnesiaMarks {
    pub(super) fn of_server() -> Self {
        Self::Server { last: LastValue::default(), observations: AtomicU64::default() }
    }

    pub(super) fn of_node(marks: MasterMarks, number: usize) -> Self {
        Self::Node { marks, number }
    }

    /// Begins an observation: its number, and the keys to read.
    pub(super) fn observe(&self) -> (u64, Vec<AmnesiaKey>) {
        match self {
            Self::Server { observations, .. } => {
                (observations.fetch_add(1, Ordering::Relaxed), vec![AmnesiaKey { tag: None }])
            }
            Self::Node { marks, number } => {
                let observation = marks.observations.fetch_add(1, Ordering::Relaxed);
                (observation, marks.tags(*number).into_iter().map(|tag| AmnesiaKey { tag: Some(tag) }).collect())
            }
        }
    }

    /// Stores the value of a key, and returns whether it has changed.
    pub(super) fn has_changed(&self, observation: u64, key: AmnesiaKey, value: Bytes) -> bool {
        match self {
            Self::Server { last, .. } => last.has_changed(observation, value),
            Self::Node { marks, .. } => {
                key.tag.is_some_and(|tag| marks.last.lock().entry(tag).or_default().has_changed(observation, value))
            }
        }
    }

    /// Whether the server has records of its own. A replica of a cluster has none.
    pub(super) fn has_records(&self) -> bool {
        match self {
            Self::Server { .. } => true,
            Self::Node { marks, number } => marks.map.read().has_slots(*number),
        }
    }
}

/// One of the keys.
#[derive(Clone, Copy)]
pub(super) struct AmnesiaKey {
    tag: Option<u32>,
}

impl AmnesiaKey {
    pub(super) fn name(self) -> String {
        match self.tag {
            None => SENTINEL.to_owned(),
            Some(tag) => format!("{SENTINEL}:{{{tag}}}"),
        }
    }
}
