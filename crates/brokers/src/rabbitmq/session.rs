//! A connection, a channel and a consumer. They end together: what was not acknowledged then arrives again.

use std::sync::Arc;

use futures_util::StreamExt;
use hapax_core::Result;
use hapax_core::broker::Lane;
use hapax_core::runtime::{Runtime, timeout};
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Connection, Consumer};

use super::RabbitMqUrl;
use super::connect::{self, PATIENCE, code, find_again};
use super::pause::OpenedChannel;
use crate::errors::{not_applied, unusable};

/// The next item of a consumer: a delivery, the end of its channel, or its own end.
pub(super) type ConsumerItem = Option<Result<lapin::message::Delivery, lapin::Error>>;

/// A consumer of a queue.
pub(super) struct QueueSession {
    pub(super) connection: Arc<Connection>,
    channel: Channel,
    pub(super) consumer: Consumer,
    /// Given by the source.
    pub(super) lane: Option<Lane>,
    pub(super) opened: OpenedChannel,
}

/// The parts of which a session is made.
pub(super) struct SessionStart {
    pub(super) url: Arc<RabbitMqUrl>,
    /// The host to begin with.
    pub(super) first_host: usize,
    /// A connection that is there.
    pub(super) connection: Option<Arc<Connection>>,
    pub(super) prefetch: u16,
    pub(super) is_probe: bool,
    pub(super) runtime: Arc<dyn Runtime>,
}

impl SessionStart {
    /// # Errors
    /// As [`connect::connect`] and [`find_again`].
    pub(super) async fn open(self) -> Result<QueueSession> {
        let (queue, runtime) = (self.url.queue(), &*self.runtime);
        let connection = match self.connection {
            Some(connection) => connection,
            None => Arc::new(connect::connect(&self.url.url, self.first_host, runtime).await?),
        };
        // The queue may have been deleted meanwhile.
        find_again(&connection, queue, runtime).await?;
        let consumed = timeout(runtime, PATIENCE, consume(&connection, queue, self.prefetch)).await;
        let consumed = consumed.ok_or_else(|| not_applied("the broker does not reply in time"))?;
        let (channel, consumer) = consumed.map_err(|error| match code(&error) {
            Some(403) => {
                unusable(format!("the broker does not let this user consume the queue `{queue}`")).caused_by(error)
            }
            _ => not_applied(format!("cannot consume the queue `{queue}`")).caused_by(error),
        })?;
        let opened = OpenedChannel { at: runtime.boottime_now(), is_probe: self.is_probe };
        Ok(QueueSession { connection, channel, consumer, lane: None, opened })
    }
}

async fn consume(connection: &Connection, queue: &str, prefetch: u16) -> lapin::Result<(Channel, Consumer)> {
    let channel = connection.create_channel().await?;
    // For this channel: quorum queues take no limit for several.
    channel.basic_qos(prefetch, BasicQosOptions { global: false }).await?;
    let (name, options) = (ShortString::from(queue), BasicConsumeOptions::default());
    let consumer = channel.basic_consume(name, ShortString::default(), options, FieldTable::default()).await?;
    Ok((channel, consumer))
}

impl QueueSession {
    /// Takes nothing more from the queue. Returns what has arrived.
    pub(super) async fn cancel(&mut self, runtime: &dyn Runtime) -> Vec<lapin::message::Delivery> {
        let mut arrived = Vec::new();
        let cancelled = async {
            // An error means that the channel has ended.
            let _ = self.channel.basic_cancel(self.consumer.tag(), BasicCancelOptions::default()).await;
            while let Some(Ok(delivery)) = self.consumer.next().await {
                arrived.push(delivery);
            }
        };
        timeout(runtime, PATIENCE, cancelled).await;
        arrived
    }

    /// Ends the channel, after what was sent on it. The broker puts what is not acknowledged back into the queue.
    pub(super) async fn end_channel(&self) -> lapin::Result<()> {
        self.channel.close(200, "messages go back".into()).await
    }

    /// Ends the channel and the connection.
    pub(super) async fn close(&self) -> lapin::Result<()> {
        self.end_channel().await?;
        self.connection.close(200, "the worker stops".into()).await
    }
}
