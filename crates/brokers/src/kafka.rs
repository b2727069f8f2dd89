//! Topics of Kafka for a consumer group.
//!
//! ```text
//! url.rs        the URL
//! config.rs     from the URL to the settings of the driver
//! failures.rs   why no broker can be reached
//! poller.rs     the thread that polls: connects, reads messages, pauses and resumes partitions
//! rebalance.rs  the callback of the driver: takes partitions up, and waits for the worker before it lets them go
//! taking.rs     where a partition is taken up, and what happens as its topic is deleted
//! note.rs       the metadata of a committed offset
//! topics.rs     the ids of topics, and whether the driver has seen an earlier topic of some name
//! lanes.rs      what the thread, the worker and the settlements share
//! progress.rs   how far a partition is done
//! settle.rs     notes what is settled, which the thread commits every second
//! sink.rs       the other direction: publishes events
//! ```

mod config;
mod failures;
mod lanes;
mod note;
mod poller;
mod progress;
mod rebalance;
mod settle;
mod sink;
mod taking;
mod topics;
mod url;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::Result;
use hapax_core::broker::{Acknowledges, Capability, Event, Room, Settle, Source};
use hapax_core::runtime::Runtime;
use tokio::sync::oneshot;

use self::lanes::SharedLanes;
use self::settle::KafkaSettle;
pub use self::sink::{KafkaSink, KafkaSinkConfig};
pub use self::url::KafkaUrl;
use crate::errors::unknown;

/// The messages of topics of Kafka for one consumer group.
///
/// A thread of its own polls the broker without a break. Only what is settled is committed, every second and whenever
/// partitions are taken away. Records behind it that no consumer sees, as transactions leave them, count as settled.
///
/// ```no_run
/// # async fn run() -> Result<(), hapax::Error> {
/// use std::sync::Arc;
/// use hapax::brokers::{KafkaSource, KafkaUrl};
/// use hapax::runtime::Tokio;
///
/// let url: KafkaUrl = "kafka://kafka.example/orders?group=billing".parse()?;
/// let source = KafkaSource::connect(&url, Arc::new(Tokio::current())).await?;
/// # Ok(())
/// # }
/// ```
pub struct KafkaSource {
    name: Arc<str>,
    lanes: Arc<SharedLanes>,
    settle: Arc<KafkaSettle>,
    ended: Option<oneshot::Receiver<()>>,
}

impl KafkaSource {
    /// Connects and joins the group.
    ///
    /// # Errors
    /// - `NotApplied`: no broker can be reached now.
    /// - `Unusable`: a topic is missing, or a file in the URL cannot be read.
    /// - `Invalid`: the driver refuses a setting.
    ///
    /// # Cancel safety
    /// If dropped, the group is left again.
    pub async fn connect(url: &KafkaUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let lanes = Arc::new(SharedLanes::new(Arc::clone(&runtime)));
        let ended = poller::start(url, &lanes, &*runtime).await?;
        let settle = Arc::new(KafkaSettle::new(Arc::clone(&lanes)));
        let name = url.source_name().into();
        Ok(Self { name, lanes, settle, ended: Some(ended) })
    }
}

#[async_trait]
impl Source for KafkaSource {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn capability(&self) -> Capability {
        Capability {
            acknowledges: Acknowledges::Prefix,
            redelivers: false,
            delays: false,
            lease: None,
            keeps_order: false,
            delivery_limit: None,
        }
    }

    fn settler(&self) -> Arc<dyn Settle> {
        Arc::clone(&self.settle) as Arc<dyn Settle>
    }

    async fn next(&mut self, room: Room) -> Result<Event> {
        loop {
            if let Some(event) = self.lanes.next(&room)? {
                return Ok(event);
            }
            self.lanes.changed().await;
        }
    }

    async fn close(&mut self) -> Result<()> {
        self.lanes.close();
        let Some(ended) = self.ended.take() else { return Ok(()) };
        ended.await.map_err(|_| unknown("the thread of the Kafka source ended early"))
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.lanes.close();
    }
}

impl fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSource").field("name", &self.name).finish_non_exhaustive()
    }
}
