//! The connections to the nodes of a cluster, and which of them a call takes.
//!
//! - A call goes to the node that has the slot of its key. It is sent again only after a reply which says that it was
//!   not run: `answers.md` lists them. A call without a reply is never sent again: its outcome is unknown.
//! - Later calls for a slot see what a call did that was given up. They take the same connection, behind it, while its
//!   node has the slot, also if the map names another node, which names this one. A node that has passed the slot on
//!   runs nothing for it, also not what was sent before.

pub(super) mod answers {
    #![doc = include_str!("cluster/answers.md")]
}
mod attempt;
pub(super) mod checks;
pub(super) mod scan;
mod slots;
mod topology;

use std::sync::Arc;

use hapax_core::Timestamp;
use hapax_core::runtime::Runtime;
use parking_lot::RwLock;

use super::RedisUrl;
use super::link::{Link, WriteConfirmation};
use topology::{ClusterNode, ClusterTopology};

pub(super) use attempt::SlotAttempt;
pub(super) use slots::{SlotMap, slot};

/// The connections of one store to the nodes of a cluster.
pub(super) struct Cluster {
    topology: Arc<ClusterTopology>,
    /// The links to a node, at its number.
    links: RwLock<Vec<Option<NodeLinks>>>,
    connections: usize,
}

/// The links to one node.
type NodeLinks = Arc<[Arc<Link>]>;

impl Cluster {
    pub(super) fn new(url: Arc<RedisUrl>, runtime: Arc<dyn Runtime>, connections: usize) -> Self {
        Self::over(Arc::new(ClusterTopology::new(url, runtime)), connections)
    }

    fn over(topology: Arc<ClusterTopology>, connections: usize) -> Self {
        Self { topology, links: RwLock::default(), connections }
    }

    /// Connections of their own, with the same knowledge of the cluster.
    pub(super) fn dedicated(&self) -> Self {
        Self::over(Arc::clone(&self.topology), 1)
    }

    pub(super) fn connections(&self) -> usize {
        self.connections
    }

    pub(super) fn confirmation(&self) -> Option<WriteConfirmation> {
        self.topology.confirmation()
    }

    pub(super) fn wall_now(&self) -> Timestamp {
        self.topology.runtime().wall_now()
    }

    pub(super) fn number_call(&self) -> u64 {
        self.topology.number_call()
    }

    /// One of the links to a node. Calls of one lane take the same.
    fn link(&self, node: &ClusterNode, lane: usize) -> Arc<Link> {
        let pick = |links: &[Arc<Link>]| Arc::clone(&links[lane % links.len()]);
        if let Some(Some(links)) = self.links.read().get(node.number) {
            return pick(links);
        }
        let mut links = self.links.write();
        if links.len() <= node.number {
            links.resize_with(node.number + 1, || None);
        }
        let new = || (0..self.connections).map(|_| Arc::new(node.link())).collect();
        pick(links[node.number].get_or_insert_with(new))
    }
}
