use std::sync::Arc;

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

    /// A process in which a worker runs.
    fn start_process(&self) -> Arc<dyn WorkerHost>;

    /// Another member of the group, in this process.
    async fn connect(&self, host: &dyn WorkerHost) -> Box<dyn Source>;

    /// Sends messages, in this order.
    async fn publish(&self, messages: Vec<Message>);

    /// The number of messages that a new member would get if all others were gone, by the broker's own account.
    async fn unfinished(&self) -> u64;

    /// The number of settlements of lanes that were reported as lost before, if the source counts them.
    fn stale_settlements(&self) -> usize {
        0
    }

    /// Takes all lanes from their members without asking. Called only if the source has `SourceCapability::Loss`.
    async fn lose_lanes(&self) {
        unreachable!("the source lacks `Loss`")
    }
}

/// A process that can end without notice.
pub trait WorkerHost: Send + Sync {
    /// The runtime of the process.
    fn runtime(&self) -> Arc<dyn Runtime>;

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
}
