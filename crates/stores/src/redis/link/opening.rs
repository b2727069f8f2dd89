//! Opens a connection: to the server of the URL, to a node of a cluster, or to the master that the sentinels name.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Error, ErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value, cmd};

use crate::redis::RedisUrl;
use crate::redis::call_error::RedisCallError;
use crate::redis::sentinel;
use crate::redis::server_monitor::ServerMonitor;
use crate::redis::url::Deployment;

/// How long opening a connection may take, and then its handshake: the engine's default timeout of one call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the answer of the sentinels counts: longer than the question, the connection and the handshake take. A
/// caller may leave an attempt behind, and another may resume it much later. An attempt that ends later fails.
const FRESH: Duration = Duration::from_secs(5);

/// The length of the queue to the connection's task. A caller that finds the queue full waits for a free place.
const PIPELINE: usize = 1024;

pub(super) struct OpenedConnection {
    pub(super) sender: MultiplexedConnection,
    /// How often the sentinels had named another master when they named this server.
    pub(super) switches: u64,
    /// When it was opened, by the boot-time clock.
    pub(super) opened_at: Duration,
}

/// Connects after this rest.
pub(super) async fn connect(
    url: Arc<RedisUrl>,
    monitor: Arc<ServerMonitor>,
    rest: Duration,
) -> Result<OpenedConnection, RedisCallError> {
    if rest > Duration::ZERO {
        monitor.runtime().sleep(rest).await;
    }
    match url.deployment() {
        Deployment::Single | Deployment::Cluster => {
            let sender = open(&url, &monitor).await?;
            Ok(OpenedConnection { sender, switches: monitor.switches(), opened_at: monitor.runtime().boottime_now() })
        }
        Deployment::Sentinel => connect_to_master(&url, &monitor).await,
    }
}

async fn connect_to_master(url: &RedisUrl, monitor: &ServerMonitor) -> Result<OpenedConnection, RedisCallError> {
    let (question, begun) = (monitor.begin_question(), monitor.runtime().boottime_now());
    let late = || {
        let message = "the sentinels named the master too long ago";
        RedisCallError::Judged(Error::new(ErrorKind::NotApplied, message))
    };
    let master = sentinel::master(url, monitor.runtime()).await.map_err(RedisCallError::Judged)?;
    // A switch that is noticed after this makes the connection an old one.
    let switches = monitor.note_master(question, &master).ok_or_else(late)?;
    let sender = open(&url.at(master), monitor).await?;
    let opened_at = monitor.runtime().boottime_now();
    if opened_at.saturating_sub(begun) > FRESH {
        return Err(late());
    }
    Ok(OpenedConnection { sender, switches, opened_at })
}

async fn open(url: &RedisUrl, monitor: &ServerMonitor) -> Result<MultiplexedConnection, RedisCallError> {
    let (client, database) = url.client().map_err(RedisCallError::Judged)?;
    // No response timeout: only the engine sets the deadline of a call.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE);
    let failed = |error| RedisCallError::NotConnected(error, url.transport());
    let mut sender = client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?;
    let handshake = async {
        if url.deployment() == Deployment::Sentinel {
            let role = sender.send_packed_command(&cmd("ROLE")).await;
            // Before anything is read or written there: the mark and the clock of another server do not count.
            sentinel::expect_master(role.and_then(Value::extract_error).map_err(failed)?)?;
        }
        if database != 0 {
            let selected = sender.send_packed_command(cmd("SELECT").arg(database)).await;
            selected.and_then(Value::extract_error).map_err(failed)?;
        }
        monitor.observe(&mut sender).await.map_err(failed)
    };
    let finished = monitor.timeout(CONNECT_TIMEOUT, handshake).await;
    finished.unwrap_or_else(|| Err(failed(io::Error::from(io::ErrorKind::TimedOut).into())))?;
    Ok(sender)
}
