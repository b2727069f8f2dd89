use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::broker::{Message, Source};
use hapax_core::runtime::Runtime;

/// An empty topic or queue, with a group of workers that read it.
///
/// A message gets to the partition of its ordering key; messages without one are spread.
#[async_trait]
pub trait SourceSetup: Send + Sync {
    /// The clock and the sleeps of the test.
    fn runtime(&self) -> Arc<dyn Runtime>;

    /// How long things take at this source.
    fn times(&self) -> SourceTimes;

    /// A process in which a worker runs.
    fn start_process(&self) -> Arc<dyn WorkerHost>;

    /// Whether messages of one ordering key have an order. Not where the source lacks `SourceCapability::Order`.
    fn is_ordered(&self) -> bool {
        true
    }

    /// Sends messages, in this order.
    async fn publish(&self, messages: Vec<Message>);

    /// The messages that a new member would get if all others were gone, by the broker's own account. Each is named by
    /// its place in the order of publishing, from 0 on.
    async fn unfinished(&self) -> BTreeSet<usize>;

    /// The number of settlements of lanes that were reported as lost before, if the source counts them.
    fn stale_settlements(&self) -> usize {
        0
    }

    /// Takes all lanes from their members without asking. Called only if the source has `SourceCapability::Loss`.
    async fn lose_lanes(&self) {
        unreachable!("the source lacks `Loss`")
    }

    /// Kills the broker and starts it again. Called only if the source has `SourceCapability::Restart`.
    async fn restart_broker(&self) {
        unreachable!("the source lacks `Restart`")
    }

    /// Lets the broker forget every message, finished or not. Called only if the source has
    /// `SourceCapability::ExpiringOffsets`.
    async fn expire_messages(&self) {
        unreachable!("the source lacks `ExpiringOffsets`")
    }
}

/// How long things take at a source.
#[derive(Clone, Copy, Debug)]
pub struct SourceTimes {
    /// Longer than a lease, or than a member may be silent.
    pub slow: Duration,
    /// Long enough for an acknowledgement to show, and for a rebalance to begin.
    pub settle: Duration,
    /// The first delay after a failure. It doubles.
    pub backoff: Duration,
    /// The time between two looks at the broker.
    pub look: Duration,
}

/// A process that can end without notice.
#[async_trait]
pub trait WorkerHost: Send + Sync {
    /// The runtime of the process.
    fn runtime(&self) -> Arc<dyn Runtime>;

    /// Another member of the group, in this process. Called at most once.
    async fn connect(&self) -> Box<dyn Source>;

    /// Ends the process without notice.
    fn crash(&self);

    /// Stops the process for a while, with all of its threads. Called only if the source has
    /// `SourceCapability::Sessions`.
    fn pause(&self) {
        unreachable!("the source lacks `Sessions`")
    }

    /// Lets the process go on.
    fn resume(&self) {
        unreachable!("the source lacks `Sessions`")
    }
}

/// A property of a source that a case of the source suite needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceCapability {
    /// Lanes move between the members of a group.
    Rebalance,
    /// Lanes can be lost without notice.
    Loss,
    /// A silent member loses what it has after a time.
    Sessions,
    /// A member keeps a delivery as long as it says that it works on it.
    Extension,
    /// A lease ends at last, however often it is extended.
    LongestLease,
    /// Messages of one ordering key have an order.
    Order,
    /// Messages of one ordering key keep their order when a member crashes.
    OrderAfterCrash,
    /// There is a server that can be restarted.
    Restart,
    /// The broker deletes messages, and a group may have committed an offset that is gone.
    ExpiringOffsets,
}
