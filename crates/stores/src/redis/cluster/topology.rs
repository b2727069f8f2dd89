//! What the stores of a process know of a cluster: its nodes, and which node has which slot.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hapax_core::runtime::{self, Runtime};
use hapax_core::{Error, ErrorKind, Result};
use hapax_net::url::Host;
use parking_lot::{Mutex, RwLock};
use redis::{Value, pipe};
use tokio::sync::watch;

use super::slots::{ClusterShard, SlotMap, SlotRange, parse_ranges};
use crate::redis::RedisUrl;
use crate::redis::amnesia::{AmnesiaMarks, MasterMarks};
use crate::redis::call_error::RedisCallError;
use crate::redis::link::{Link, WriteConfirmation};
use crate::redis::server_monitor::ServerMonitor;
use crate::redis::value;
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
    /// The configuration epoch of the cluster when the map was read. It grows with each takeover, and with most moves
    /// of a slot.
    epoch: AtomicU64,
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
            epoch: AtomicU64::default(),
            last_failure: Mutex::default(),
            calls: AtomicU64::new(u64::from_be_bytes(first_call)),
            failovers: EventCounter::default(),
        }
    }

    pub(super) fn confirmation(&self) -> Option<WriteConfirmation> {
        self.url.confirmation()
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
        let (mut failure, mut old) = (None, Vec::new());
        let candidates = self.candidates();
        for node in &candidates {
            match self.slots_from(node).await {
                Ok(told) if told.ranges.is_empty() => {
                    failure = Some((ErrorKind::NotApplied, format!("{} knows no slots", node.address)));
                }
                Ok(told) if told.is_older_than(self.epoch.load(Ordering::Relaxed)) => {
                    failure = Some((ErrorKind::NotApplied, format!("{} knows old slots only", node.address)));
                    old.push(told);
                }
                Ok(told) => return self.install(told),
                Err(error) => {
                    let error = Error::from(error);
                    failure = Some((error.kind(), format!("{}: {error}", node.address)));
                }
            }
        }
        // A few nodes may be cut off. If most are of this epoch, the cluster was made anew.
        let most = old.len() * 2 > candidates.len();
        match old.into_iter().max_by_key(|told| told.epoch).filter(|_| most) {
            Some(told) => self.install(told),
            None => *self.last_failure.lock() = failure,
        }
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

    async fn slots_from(&self, node: &ClusterNode) -> Result<ToldSlots, RedisCallError> {
        let link = Arc::clone(self.control.lock().entry(node.number).or_insert_with(|| Arc::new(node.link())));
        let mut commands = pipe();
        commands.cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("INFO");
        let asked = link.read_pair(&commands, |[slots, info]| {
            let slots = slots.extract_error().map_err(RedisCallError::Sent)?;
            let ranges = parse_ranges(slots, &node.address).map_err(RedisCallError::Judged)?;
            Ok(ToldSlots { ranges, epoch: parse_epoch(info) })
        });
        let silent = || Error::new(ErrorKind::NotApplied, "the node does not answer");
        let answered = runtime::timeout(&*self.runtime, ANSWER_TIME, asked).await;
        answered.unwrap_or_else(|| Err(RedisCallError::Judged(silent())))
    }

    fn install(&self, ToldSlots { ranges, epoch }: ToldSlots) {
        let with_nodes = |mut range: SlotRange| {
            let nodes = std::mem::take(&mut range.nodes).into_iter().map(|address| self.node(address)).collect();
            (range, nodes)
        };
        let ranges: Vec<_> = ranges.into_iter().map(with_nodes).collect();
        let next = SlotMap::of(&ranges);
        if let Some(epoch) = epoch {
            self.epoch.store(epoch, Ordering::Relaxed);
        }
        *self.last_failure.lock() = None;
        let mut map = self.map.write();
        // A replica that has become a master may lack the last writes of its old one.
        let promoted = map.promoted(&next);
        promoted.iter().for_each(|_| self.failovers.increment());
        if !promoted.is_empty() {
            // An old master that came back before this map was read is the same event.
            for old in map.masters().iter().filter(|old| !next.has_slots(old.number)) {
                let _ = old.monitor.process_changes.take_unreported();
            }
        }
        *map = next;
    }
}

/// The slots as one node tells them.
struct ToldSlots {
    ranges: Vec<SlotRange>,
    /// The configuration epoch that the node knows. `None` for a user that may not ask for it.
    epoch: Option<u64>,
}

impl ToldSlots {
    /// Whether the node has missed a change of the cluster: it may have been paused, or is cut off from the others.
    fn is_older_than(&self, epoch: u64) -> bool {
        self.epoch.is_some_and(|told| told < epoch)
    }
}

/// Reads the epoch in the reply to `CLUSTER INFO`.
fn parse_epoch(info: Value) -> Option<u64> {
    let info = value::reply_bytes(info).ok()??;
    let info = String::from_utf8_lossy(&info);
    info.lines().find_map(|line| line.trim_end().strip_prefix("cluster_current_epoch:")?.parse().ok())
}

struct RefreshEnd(Arc<ClusterTopology>);

impl Drop for RefreshEnd {
    fn drop(&mut self) {
        self.0.is_refreshing.store(false, Ordering::Release);
        self.0.refreshes.send_modify(|ended| *ended += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_has_missed_a_change_tells_old_slots() {
        let info = |text: &str| Value::VerbatimString { format: redis::VerbatimFormat::Text, text: text.into() };
        let told = |reply| ToldSlots { ranges: Vec::new(), epoch: parse_epoch(reply) };
        let seventh = told(info("cluster_state:ok\r\ncluster_current_epoch:7\r\ncluster_my_epoch:3\r\n"));
        assert_eq!(seventh.epoch, Some(7));
        assert_eq!([6, 7, 8].map(|epoch| seventh.is_older_than(epoch)), [false, false, true]);
        let refused = redis::parse_redis_value(b"-NOPERM no permission\r\n").unwrap();
        assert!(!told(refused).is_older_than(8), "without the permission every node counts");
    }
}
