//! A broker in memory, for tests of workers under virtual time.
//!
//! With [`MemoryBroker::prefix`] it is like Kafka: each partition has one reader, which loses it after a session
//! timeout, and an acknowledgement covers everything before it. With [`MemoryBroker::each`] it is like a queue: readers
//! share the messages, and each delivery has a lease. [`MemoryBroker::queue`] has any capability of a queue.

mod source;
mod state;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::broker::{Acknowledges, BrokerLease, Capability, Message, Source};
use hapax_core::runtime::Runtime;
use parking_lot::Mutex;
use tokio::sync::Notify;

use source::MemorySource;
use state::BrokerState;

/// How long a reader may be silent before the broker gives its partitions to another one.
pub const SESSION: Duration = Duration::from_secs(10);

/// How long a reader may finish what runs before its partitions are taken away.
pub const REVOKE_WITHIN: Duration = Duration::from_secs(10);

/// A broker in memory. Clones share it.
#[derive(Clone)]
pub struct MemoryBroker(Arc<SharedBroker>);

struct SharedBroker {
    state: Mutex<BrokerState>,
    changed: Notify,
    runtime: Arc<dyn Runtime>,
    capability: Capability,
    name: Arc<str>,
}

impl fmt::Debug for MemoryBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBroker").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl MemoryBroker {
    /// A topic with partitions. An acknowledgement covers everything before it.
    pub fn prefix(runtime: Arc<dyn Runtime>, partitions: u32) -> Self {
        let capability = Capability {
            acknowledges: Acknowledges::Prefix,
            redelivers: false,
            delays: false,
            lease: None,
            keeps_order: false,
            delivery_limit: None,
        };
        Self::with(runtime, capability, partitions)
    }

    /// A queue. Each delivery has a lease of this length.
    pub fn each(runtime: Arc<dyn Runtime>, lease: Duration) -> Self {
        let capability = Capability {
            acknowledges: Acknowledges::Each,
            redelivers: true,
            delays: true,
            lease: Some(BrokerLease { length: lease, longest: None }),
            keeps_order: false,
            delivery_limit: None,
        };
        Self::queue(runtime, capability)
    }

    /// A queue with this capability. It acknowledges each message.
    pub fn queue(runtime: Arc<dyn Runtime>, capability: Capability) -> Self {
        Self::with(runtime, Capability { acknowledges: Acknowledges::Each, ..capability }, 1)
    }

    fn with(runtime: Arc<dyn Runtime>, capability: Capability, partitions: u32) -> Self {
        let state = Mutex::new(BrokerState::new(partitions, capability));
        Self(Arc::new(SharedBroker {
            state,
            changed: Notify::new(),
            runtime,
            capability,
            name: "memory/topic/group".into(),
        }))
    }

    /// Appends a message to a partition.
    pub fn publish(&self, partition: u32, message: Message) {
        self.0.state.lock().publish(partition, message, self.0.runtime.wall_now());
        self.0.changed.notify_waiters();
    }

    /// Another reader of the group.
    pub fn source(&self) -> Box<dyn Source> {
        let member = self.0.state.lock().join(self.0.runtime.boottime_now());
        self.0.changed.notify_waiters();
        Box::new(MemorySource::new(Arc::clone(&self.0), member))
    }

    /// The number of partitions.
    pub fn partitions(&self) -> u32 {
        self.0.state.lock().partitions()
    }

    /// The number of messages that a new reader would get if every other one were gone.
    pub fn unfinished(&self) -> u64 {
        self.unfinished_places().len() as u64
    }

    /// Those messages, each by its place in the order of publishing.
    pub fn unfinished_places(&self) -> BTreeSet<usize> {
        self.0.state.lock().unfinished()
    }

    /// The most messages that were delivered and not acknowledged at once, by partition.
    pub fn most_in_hand(&self) -> usize {
        self.0.state.lock().most_in_hand
    }

    /// The number of settlements of lanes that their reader knew to be lost.
    pub fn stale_settlements(&self) -> usize {
        self.0.state.lock().stale_settlements
    }

    /// Takes a partition from its reader at once, and gives it back to the same reader if there is no other one.
    pub fn lose(&self, partition: u32) {
        self.0.state.lock().lose(partition);
        self.0.changed.notify_waiters();
    }

    /// Lets the next settlements fail: nothing of them is carried out.
    pub fn fail_settlements(&self, calls: u32) {
        self.0.state.lock().failing_settlements = calls;
    }

    /// Delivers redeliveries in the reverse order from now on.
    pub fn reverse_redeliveries(&self) {
        self.0.state.lock().is_reversed = true;
    }
}
