//! The connections to the nodes of a cluster, and which of them a call takes.
//!
//! - A call goes to the node that has the slot of its key. It is sent again only after a reply which says that it was
//!   not run: `answers.md` lists them. A call without a reply is never sent again: its outcome is unknown.
//! - While a call that was given up has no reply, later calls for its slot take its connection, so that they see what
//!   it did. A node that has passed the slot on meanwhile tells them.

pub(super) mod answers {
    #![doc = include_str!("cluster/answers.md")]
}
mod attempt;
pub(super) mod checks;
pub(super) mod scan;
mod slots;
mod topology;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use hapax_core::Timestamp;
use hapax_core::runtime::Runtime;
use parking_lot::{Mutex, RwLock};

use super::RedisUrl;
use super::link::{Link, LinkConnection};
use topology::{ClusterNode, ClusterTopology};

pub(super) use attempt::SlotAttempt;
pub(super) use slots::{SlotMap, slot};

/// The connections of one store to the nodes of a cluster.
pub(super) struct Cluster {
    topology: Arc<ClusterTopology>,
    /// The links to a node, at its number.
    links: RwLock<Vec<Option<NodeLinks>>>,
    connections: usize,
    /// The connections with a call that was given up before its reply, by slot and lane.
    unanswered: Mutex<HashMap<(u16, usize), GivenUp>>,
    /// The length of `unanswered`, so that a call need not lock it.
    unanswered_count: AtomicUsize,
}

/// The links to one node.
type NodeLinks = Arc<[Arc<Link>]>;

/// Where a call was given up.
struct GivenUp {
    link: Arc<Link>,
    connection: Weak<LinkConnection>,
}

impl Cluster {
    pub(super) fn new(url: Arc<RedisUrl>, runtime: Arc<dyn Runtime>, connections: usize) -> Self {
        Self::over(Arc::new(ClusterTopology::new(url, runtime)), connections)
    }

    fn over(topology: Arc<ClusterTopology>, connections: usize) -> Self {
        Self {
            topology,
            links: RwLock::default(),
            connections,
            unanswered: Mutex::default(),
            unanswered_count: AtomicUsize::default(),
        }
    }

    /// Connections of their own, with the same knowledge of the cluster.
    pub(super) fn dedicated(&self) -> Self {
        Self::over(Arc::clone(&self.topology), 1)
    }

    pub(super) fn connections(&self) -> usize {
        self.connections
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

    /// The link with a call for this slot that was given up and may still be carried out.
    fn unanswered(&self, place: (u16, usize)) -> Option<Arc<Link>> {
        if self.unanswered_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut unanswered = self.unanswered.lock();
        let link = unanswered.get(&place).filter(|given_up| given_up.link.takes(&given_up.connection));
        let link = link.map(|given_up| Arc::clone(&given_up.link));
        if link.is_none() {
            unanswered.remove(&place);
            self.unanswered_count.store(unanswered.len(), Ordering::Release);
        }
        link
    }

    /// A call was given up on this link.
    fn give_up(&self, place: (u16, usize), link: Arc<Link>) {
        // Without a connection, it was not sent.
        let Some(connection) = link.connection_now() else { return };
        let mut unanswered = self.unanswered.lock();
        unanswered.insert(place, GivenUp { link, connection });
        self.unanswered_count.store(unanswered.len(), Ordering::Release);
    }

    /// A call on this link has its reply, so all that were sent before have theirs.
    fn answered(&self, place: (u16, usize), link: &Arc<Link>) {
        if self.unanswered_count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut unanswered = self.unanswered.lock();
        if unanswered.get(&place).is_some_and(|given_up| Arc::ptr_eq(&given_up.link, link)) {
            unanswered.remove(&place);
            self.unanswered_count.store(unanswered.len(), Ordering::Release);
        }
    }
}
