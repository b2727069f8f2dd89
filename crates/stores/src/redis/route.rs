//! The way of a call to the server that has its key: one server, or a node of a cluster.

use std::sync::Arc;

use hapax_core::runtime::Runtime;
use hapax_core::store::Finding;
use hapax_core::{RecordKey, Result, Timestamp};
use redis::{Cmd, Pipeline, Value, cmd};

use super::RedisUrl;
use super::amnesia::AmnesiaMarks;
use super::call_error::RedisCallError;
use super::checks;
use super::cluster::{Cluster, SlotAttempt, slot};
use super::link::{CallWay, Confirmation, Link, SlotEntry, WriteConfirmation};
use super::sentinel;
use super::server_info::ServerPlace;
use super::server_monitor::ServerMonitor;
use super::url::Deployment;
use super::value::{self, RedisKey};

/// The connections of one store.
pub(super) enum RedisNodes {
    Single(SingleServer),
    Cluster(Cluster),
}

/// The connections to one server.
pub(super) struct SingleServer {
    url: Arc<RedisUrl>,
    monitor: Arc<ServerMonitor>,
    pub(super) links: Vec<Link>,
}

impl SingleServer {
    fn new(url: Arc<RedisUrl>, monitor: Arc<ServerMonitor>, connections: usize) -> Self {
        let links = (0..connections).map(|_| Link::new(Arc::clone(&url), Arc::clone(&monitor))).collect();
        Self { url, monitor, links }
    }

    pub(super) fn is_behind_sentinels(&self) -> bool {
        self.url.deployment() == Deployment::Sentinel
    }

    /// Looks at the server, and at what stands behind it.
    pub(super) async fn findings(&self) -> Result<Vec<Finding>> {
        match self.url.deployment() {
            Deployment::Single | Deployment::Cluster => checks::findings(&self.links[0], ServerPlace::Alone).await,
            Deployment::Sentinel => sentinel::checks::findings(&self.url, &self.links[0]).await,
        }
    }
}

impl RedisNodes {
    /// As many connections to each server as the URL says. Each is opened at its first use.
    pub(super) fn new(url: &RedisUrl, runtime: Arc<dyn Runtime>) -> Self {
        let (shared, connections) = (Arc::new(url.clone()), url.connections());
        match url.deployment() {
            Deployment::Single | Deployment::Sentinel => Self::Single(SingleServer::new(
                shared,
                Arc::new(ServerMonitor::new(runtime, AmnesiaMarks::of_server())),
                connections,
            )),
            Deployment::Cluster => Self::Cluster(Cluster::new(shared, runtime, connections)),
        }
    }

    /// One more connection to each server.
    pub(super) fn dedicated(&self) -> Self {
        match self {
            Self::Single(server) => {
                Self::Single(SingleServer::new(Arc::clone(&server.url), Arc::clone(&server.monitor), 1))
            }
            Self::Cluster(cluster) => Self::Cluster(cluster.dedicated()),
        }
    }

    /// The route to a record. All calls for one record take the same connection of a server.
    pub(super) fn route(&self, rk: &RecordKey) -> Route<'_> {
        self.lane(RedisKey::of(rk).as_bytes(), usize::from(rk.as_bytes()[15]))
    }

    /// The route to a key that is no record.
    pub(super) fn route_to(&self, key: &[u8]) -> Route<'_> {
        self.lane(key, 0)
    }

    fn lane(&self, key: &[u8], lane: usize) -> Route<'_> {
        match self {
            Self::Single(server) => Route::Single(&server.links[lane % server.links.len()]),
            Self::Cluster(cluster) => Route::Slot { cluster, slot: slot(key), lane },
        }
    }

    /// The number of connections to each server.
    pub(super) fn connections(&self) -> usize {
        match self {
            Self::Single(server) => server.links.len(),
            Self::Cluster(cluster) => cluster.connections(),
        }
    }

    pub(super) fn wall_now(&self) -> Timestamp {
        match self {
            Self::Single(server) => server.monitor.wall_now(),
            Self::Cluster(cluster) => cluster.wall_now(),
        }
    }

    /// When a write counts. `None`: when the server has applied it.
    pub(super) fn confirmation(&self) -> Option<WriteConfirmation> {
        match self {
            Self::Single(server) => server.url.confirmation(),
            Self::Cluster(cluster) => cluster.confirmation(),
        }
    }
}

/// The way to the server that has one key.
pub(super) enum Route<'a> {
    Single(&'a Link),
    Slot { cluster: &'a Cluster, slot: u16, lane: usize },
}

impl Route<'_> {
    /// Sends a command that writes nothing, as [`Link::call`] does. A node of a cluster that did not run it may name
    /// another node, or may have to be asked again: then it is sent again, because it was certainly not applied.
    pub(super) async fn call<T>(
        &self,
        command: &Cmd,
        judge: impl Fn(Value) -> Result<T> + Send + Sync,
    ) -> Result<T, RedisCallError> {
        self.send(false, command, |reply, _| judge(reply).map_err(RedisCallError::Judged)).await
    }

    /// As [`call`](Self::call), for a command that may write. `judge` fails with the confirmation if it has.
    pub(super) async fn write<T>(
        &self,
        command: &Cmd,
        judge: impl Fn(Value, &Confirmation) -> Result<T, RedisCallError> + Send + Sync,
    ) -> Result<T, RedisCallError> {
        self.send(true, command, judge).await
    }

    async fn send<T>(
        &self,
        writes: bool,
        command: &Cmd,
        judge: impl Fn(Value, &Confirmation) -> Result<T, RedisCallError> + Send + Sync,
    ) -> Result<T, RedisCallError> {
        let mut attempt = match self {
            Self::Single(link) => {
                return link.call_by(CallWay { entry: SlotEntry::Plain, writes }, command, judge).await;
            }
            Self::Slot { cluster, slot, lane } => SlotAttempt::new(cluster, *slot, *lane),
        };
        loop {
            let (link, entry) = attempt.target().await?;
            let replied = link.call_by(CallWay { entry, writes }, command, &judge).await;
            attempt.answered();
            match replied {
                Err(error) => attempt.redirect(error).await?,
                replied => return replied,
            }
        }
    }

    /// Sends two commands that may write, as [`Link::call_pair`] does, again if [`call`](Self::call) would.
    pub(super) async fn write_pair<T>(
        &self,
        commands: &Pipeline,
        judge: impl Fn([Value; 2], &Confirmation) -> Result<T, RedisCallError> + Send + Sync,
    ) -> Result<T, RedisCallError> {
        let way = |entry| CallWay { entry, writes: true };
        let mut attempt = match self {
            Self::Single(link) => return link.call_pair(way(SlotEntry::Plain), commands, judge).await,
            Self::Slot { cluster, slot, lane } => SlotAttempt::new(cluster, *slot, *lane),
        };
        loop {
            let (link, entry) = attempt.target().await?;
            let replied = link.call_pair(way(entry), commands, &judge).await;
            attempt.answered();
            match replied {
                Err(error) => attempt.redirect(error).await?,
                replied => return replied,
            }
        }
    }

    /// The time that a first token is drawn from: this host's clock, or the server's clock if the two differ by more
    /// than a second.
    pub(super) async fn token_time(&self) -> Result<Timestamp> {
        let now = match self {
            Self::Single(link) => {
                if !link.monitor().is_clock_known() {
                    link.connect().await?;
                }
                token_clock(link)
            }
            Self::Slot { cluster, slot, lane } => {
                let mut attempt = SlotAttempt::new(cluster, *slot, *lane);
                loop {
                    let (link, _) = attempt.target().await?;
                    let is_known = link.monitor().is_clock_known();
                    let connected = if is_known { Ok(()) } else { link.connect().await };
                    // Only now: a caller that gives up before that must count, because the node may be silent.
                    attempt.answered();
                    match connected {
                        Ok(()) => break token_clock(&link),
                        Err(error) => attempt.redirect(error).await?,
                    }
                }
            }
        };
        match now {
            Some(now) => Ok(now),
            None => Ok(self.call(&cmd("TIME"), value::parse_time).await?),
        }
    }

    /// A number that no other call on this server has, as far as this process knows. A script repeats it in its reply.
    pub(super) fn number_call(&self) -> [u8; 8] {
        match self {
            Self::Single(link) => link.monitor().number_call().to_be_bytes(),
            Self::Slot { cluster, .. } => cluster.number_call().to_be_bytes(),
        }
    }
}

/// The time of this host's clock, if it is near the server's.
fn token_clock(link: &Link) -> Option<Timestamp> {
    let monitor = link.monitor();
    (monitor.is_clock_known() && !monitor.has_skew()).then(|| monitor.wall_now())
}
