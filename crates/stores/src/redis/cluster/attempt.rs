use std::sync::Arc;
use std::time::Duration;

use super::Cluster;
use super::topology::ClusterNode;
use crate::redis::call_error::{NodeAnswer, RedisCallError};
use crate::redis::link::{Link, SlotEntry};

/// How long a call is sent again: less than the engine's default timeout of one call, so that the caller learns that it
/// was not applied.
const PATIENCE: Duration = Duration::from_millis(800);

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// After this many redirections without a pause, nodes may name each other for ever.
const MAX_HOPS: u32 = 4;

/// One call on its way through the cluster.
pub(in crate::redis) struct SlotAttempt<'a> {
    cluster: &'a Cluster,
    slot: u16,
    lane: usize,
    /// Where the last reply pointed.
    redirected: Option<(Arc<ClusterNode>, SlotEntry)>,
    /// The link on which the call may be waiting for its reply.
    in_flight: Option<Arc<Link>>,
    /// The link of the last reply.
    asked: Option<Arc<Link>>,
    hops: u32,
    pause: Duration,
    /// When the attempt ends, by the boot-time clock.
    ends_at: Duration,
}

impl<'a> SlotAttempt<'a> {
    pub(in crate::redis) fn new(cluster: &'a Cluster, slot: u16, lane: usize) -> Self {
        let lane = lane % cluster.connections();
        let (redirected, in_flight, asked) = (None, None, None);
        let ends_at = cluster.topology.runtime().boottime_now() + PATIENCE;
        Self { cluster, slot, lane, redirected, in_flight, asked, hops: 0, pause: FIRST_PAUSE, ends_at }
    }

    /// Where to send the call now. From here on, it counts as sent until [`answered`](Self::answered).
    ///
    /// # Errors
    /// If no node is known and none tells the slots in time.
    pub(in crate::redis) async fn target(&mut self) -> Result<(Arc<Link>, SlotEntry), RedisCallError> {
        let (link, entry) = loop {
            if let Some((node, entry)) = self.redirected.take() {
                break (self.cluster.link(&node, self.lane), entry);
            }
            if let Some(node) = self.cluster.topology.owner(self.slot) {
                break (self.cluster.link(&node, self.lane), SlotEntry::Plain);
            }
            self.cluster.topology.request_refresh();
            if !self.pause().await || self.cluster.topology.is_unusable() {
                return Err(RedisCallError::Judged(self.cluster.topology.without_owner()));
            }
        };
        self.in_flight = Some(Arc::clone(&link));
        Ok((link, entry))
    }

    /// The call has a reply, or failed, or nothing was sent.
    pub(in crate::redis) fn answered(&mut self) {
        if let Some(link) = self.in_flight.take() {
            self.asked = Some(link);
        }
    }

    /// Prepares to send the call again.
    ///
    /// # Errors
    /// The same error, if the call may have been run, or if the time is up.
    pub(in crate::redis) async fn redirect(&mut self, error: RedisCallError) -> Result<(), RedisCallError> {
        self.answered();
        let topology = &self.cluster.topology;
        match error.node_answer(self.asked.as_ref().and_then(|link| link.address())) {
            NodeAnswer::Final => {
                // The connection broke: the node may be gone, and a replica may take its place.
                if error.is_without_reply() {
                    topology.request_refresh();
                }
                return Err(error);
            }
            NodeAnswer::Moved { address, slot } => {
                let node = topology.moved(slot, address);
                topology.request_refresh();
                if self.may_hop() {
                    self.redirected = Some((node, SlotEntry::Plain));
                    return Ok(());
                }
            }
            NodeAnswer::Ask { address } => {
                let node = topology.node(address);
                if self.may_hop() {
                    self.redirected = Some((node, SlotEntry::Asking));
                    return Ok(());
                }
            }
            NodeAnswer::Later => topology.request_refresh(),
        }
        if self.pause().await { Ok(()) } else { Err(error) }
    }

    fn may_hop(&mut self) -> bool {
        self.hops += 1;
        self.hops <= MAX_HOPS
    }

    /// Waits for a while, or until the slots were read again. False if the time is up.
    async fn pause(&mut self) -> bool {
        let runtime = self.cluster.topology.runtime();
        if runtime.boottime_now() >= self.ends_at {
            return false;
        }
        self.hops = 0;
        runtime.sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}

impl Drop for SlotAttempt<'_> {
    fn drop(&mut self) {
        if self.in_flight.is_some() {
            // The node is silent. Its callers may give up before they learn that it cannot be reached, so this is the
            // only sign that a replica may have taken its place.
            self.cluster.topology.request_refresh();
        }
    }
}
