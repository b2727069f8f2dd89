//! What the stores of a process know of a cluster: its nodes, and which node has which slot.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hapax_core::runtime::{self, Runtime};
use hapax_core::{Error, ErrorKind, Result};
use hapax_net::url::Host;
use parking_lot::{Mutex, RwLock};
use redis::cmd;
use tokio::sync::watch;

use super::slots::{ClusterShard, SlotMap, SlotRange, parse_ranges};
use crate::redis::RedisUrl;
use crate::redis::amnesia::{AmnesiaMarks, MasterMarks};
use crate::redis::call_error::RedisCallError;
use crate::redis::link::Link;
use crate::redis::server_monitor::ServerMonitor;
use crate::server_events::EventCounter;

/// How long a node may take to tell the slots. Then another one is asked.
const ANSWER_TIME: Duration = Duration::from_millis(300);

/// The least time between the beginnings of two refreshes.
const REFRESH_PAUSE: Duration = Duration::from_millis(50);

/// A node that was named by the URL, by another node, or by a redirection. It is never forgotten.
pub(in crate::redis) struct ClusterNode {
    pub(in crate::redis) address: Host,
    /// Small, and no other node of this process has it.
    pub(in crate::redis) number: usize,
    url: Arc<RedisUrl>,
    pub(super) monitor: Arc<ServerMonitor>,
}

impl ClusterNode {
    /// A new link to the node.
    pub(super) fn link(&self) -> Link {
        Link::new(Arc::clone(&self.url), Arc::clone(&self.monitor))
    }
}

/// The nodes and slots of the cluster, as far as they are known. All connections share them.
pub(super) struct ClusterTopology {
    url: Arc<RedisUrl>,
    runtime: Arc<dyn Runtime>,
    nodes: Mutex<HashMap<String, Arc<ClusterNode>>>,
    map: Arc<RwLock<SlotMap>>,
    marks: MasterMarks,
    /// The links on which nodes are asked for the slots. Calls for records would delay these questions.
    control: Mutex<HashMap<usize, Arc<Link>>>,
    is_refreshing: AtomicBool,
    /// When the last refresh began, by the boot-time clock.
    last_refresh: Mutex<Option<Duration>>,
    /// How many refreshes have ended.
    refreshes: watch::Sender<u64>,
    /// Which node is asked first. It changes each time, because a node that is cut off may tell old slots.
    turn: AtomicUsize,
    /// Why the last refresh failed.
    last_failure: Mutex<Option<(ErrorKind, String)>>,
    calls: AtomicU64,
    pub(super) failovers: EventCounter,
}

impl ClusterTopology {
    pub(super) fn new(url: Arc<RedisUrl>, runtime: Arc<dyn Runtime>) -> Self {
        let map = Arc::default();
        let mut first_call = [0; 8];
        runtime.fill_random(&mut first_call);
        Self {
            url,
            marks: MasterMarks::new(Arc::clone(&map)),
            runtime,
            nodes: Mutex::default(),
            map,
            control: Mutex::default(),
            is_refreshing: AtomicBool::default(),
            last_refresh: Mutex::default(),
            refreshes: watch::Sender::new(0),
            turn: AtomicUsize::default(),
            last_failure: Mutex::default(),
            calls: AtomicU64::new(u64::from_be_bytes(first_call)),
            failovers: EventCounter::default(),
        }
    }

    pub(super) fn runtime(&self) -> &dyn Runtime {
        &*self.runtime
    }

    /// The number of a new call: no other call of this process to this cluster has it.
    pub(super) fn number_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// The node at this address.
    pub(super) fn node(&self, address: Host) -> Arc<ClusterNode> {
        let mut nodes = self.nodes.lock();
        let number = nodes.len();
        let node = nodes.entry(address.to_string()).or_insert_with(|| {
            let marks = AmnesiaMarks::of_node(self.marks.clone(), number);
            let monitor = Arc::new(ServerMonitor::new(Arc::clone(&self.runtime), marks));
            Arc::new(ClusterNode { url: Arc::new(self.url.at(address.clone())), address, number, monitor })
        });
        Arc::clone(node)
    }

    /// All nodes that were ever named, by their numbers.
    pub(super) fn known_nodes(&self) -> Vec<Arc<ClusterNode>> {
        let mut nodes: Vec<_> = self.nodes.lock().values().cloned().collect();
        nodes.sort_unstable_by_key(|node| node.number);
        nodes
    }

    /// The node that has the slot.
    pub(super) fn owner(&self, slot: u16) -> Option<Arc<ClusterNode>> {
        self.map.read().owner(slot).cloned()
    }

    /// Reads the map.
    pub(super) fn with_map<T>(&self, read: impl FnOnce(&SlotMap) -> T) -> T {
        read(&self.map.read())
    }

    /// A node said that this one has the slot.
    pub(super) fn moved(&self, slot: u16, address: Host) -> Arc<ClusterNode> {
        let node = self.node(address);
        self.map.write().set(slot, Arc::clone(&node));
        node
    }

    /// Whether the nodes cannot be used, so that to ask again is of no use.
    pub(super) fn is_unusable(&self) -> bool {
        self.last_failure.lock().as_ref().is_some_and(|(kind, _)| *kind == ErrorKind::Unusable)
    }

    /// The error for a slot that no node has.
    pub(super) fn without_owner(&self) -> Error {
        match &*self.last_failure.lock() {
            Some((kind, message)) => Error::new(*kind, format!("no node of the cluster tells the slots: {message}")),
            None => Error::new(ErrorKind::NotApplied, "no node of the cluster has the slot of this key"),
        }
    }

    /// Reads the slots again in the background, unless that is being done.
    pub(super) fn request_refresh(self: &Arc<Self>) {
        if self.is_refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        // Ends the refresh also if the task is dropped, even before it has run at all.
        let ending = RefreshEnd(Arc::clone(self));
        self.runtime.spawn(Box::pin(async move {
            ending.0.rest().await;
            ending.0.refresh().await;
            drop(ending);
        }));
    }

    /// Waits until the last refresh is a while ago, so that many failing calls do not ask the nodes without a pause.
    async fn rest(&self) {
        let now = self.runtime.boottime_now();
        let begun = self.last_refresh.lock().replace(now);
        let since = begun.map_or(REFRESH_PAUSE, |begun| now.saturating_sub(begun));
        if since < REFRESH_PAUSE {
            self.runtime.sleep(REFRESH_PAUSE - since).await;
        }
    }

    /// Reads the slots again, and waits until that is done.
    ///
    /// # Errors
    /// If no node answered.
    pub(super) async fn refreshed(self: &Arc<Self>) -> Result<()> {
        let mut refreshes = self.refreshes.subscribe();
        refreshes.mark_unchanged();
        self.request_refresh();
        // The sender lives as long as this topology.
        let _ = refreshes.changed().await;
        let failed = self.last_failure.lock().is_some();
        if failed { Err(self.without_owner()) } else { Ok(()) }
    }

    async fn refresh(&self) {
        let mut failure = None;
        for node in self.candidates() {
            match self.ranges_from(&node).await {
                Ok(ranges) if !ranges.is_empty() => {
                    self.install(ranges);
                    *self.last_failure.lock() = None;
                    return;
                }
                Ok(_) => failure = Some((ErrorKind::NotApplied, format!("{} knows no slots", node.address))),
                Err(error) => {
                    let error = Error::from(error);
                    failure = Some((error.kind(), format!("{}: {error}", node.address)));
                }
            }
        }
        *self.last_failure.lock() = failure;
    }

    /// The nodes that may tell the slots, those first that were not asked for the longest time.
    fn candidates(&self) -> Vec<Arc<ClusterNode>> {
        let shards: Vec<ClusterShard> = self.with_map(|map| map.shards().to_vec());
        let mut nodes: Vec<_> =
            shards.into_iter().flat_map(|shard| [shard.master].into_iter().chain(shard.replicas)).collect();
        let named: Vec<_> = self.url.hosts().iter().map(|host| self.node(host.clone())).collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let (known, seeds) = (nodes.len().max(1), named.len().max(1));
        if !nodes.is_empty() {
            nodes.rotate_left(turn % known);
        }
        for at in 0..named.len() {
            let node = &named[(turn + at) % seeds];
            if nodes.iter().all(|known| known.number != node.number) {
                nodes.push(Arc::clone(node));
            }
        }
        nodes
    }

    async fn ranges_from(&self, node: &ClusterNode) -> Result<Vec<SlotRange>, RedisCallError> {
        let link = Arc::clone(self.control.lock().entry(node.number).or_insert_with(|| Arc::new(node.link())));
        let mut command = cmd("CLUSTER");
        command.arg("SLOTS");
        let asked = link.call(&command, |reply| parse_ranges(reply, &node.address));
        let silent = || Error::new(ErrorKind::NotApplied, "the node does not answer");
        let answered = runtime::timeout(&*self.runtime, ANSWER_TIME, asked).await;
        answered.unwrap_or_else(|| Err(RedisCallError::Judged(silent())))
    }

    fn install(&self, ranges: Vec<SlotRange>) {
        let with_nodes = |mut range: SlotRange| {
            let nodes = std::mem::take(&mut range.nodes).into_iter().map(|address| self.node(address)).collect();
            (range, nodes)
        };
        let ranges: Vec<_> = ranges.into_iter().map(with_nodes).collect();
        let next = SlotMap::of(&ranges);
        let mut map = self.map.write();
        // A replica that has become a master may lack the last writes of its old one.
        for _ in map.promoted(&next) {
            self.failovers.increment();
        }
        *map = next;
    }
}

struct RefreshEnd(Arc<ClusterTopology>);

impl Drop for RefreshEnd {
    fn drop(&mut self) {
        self.0.is_refreshing.store(false, Ordering::Release);
        self.0.refreshes.send_modify(|ended| *ended += 1);
    }
}
