use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{self, Message};
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::stages::{StagePlaces, microseconds, number_of};

/// A pipeline that takes longer has lost a payment.
const PATIENCE: Duration = Duration::from_secs(120);

/// When the stream had an event, and when the consumer got it.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventArrival {
    pub(super) stored: u64,
    pub(super) consumed: u64,
}

/// The consumer at the end of a pipeline.
pub(super) struct EventArrivals {
    all: Arc<Mutex<HashMap<u64, EventArrival>>>,
    count: watch::Receiver<u64>,
    // Dropping it ends the consumer.
    _consumer: JoinSet<anyhow::Result<()>>,
}

impl EventArrivals {
    /// Receives the events of a run, by the numbers of their payments.
    pub(super) async fn follow(places: &StagePlaces) -> anyhow::Result<Self> {
        let context = jetstream::new(async_nats::connect(&places.nats).await?);
        let config = pull::Config { ack_policy: AckPolicy::None, ..Default::default() };
        let stream = context.get_stream(&places.subject).await?;
        let mut messages = stream.create_consumer(config).await?.messages().await?;
        let all: Arc<Mutex<HashMap<u64, EventArrival>>> = Arc::default();
        let (counted, count) = watch::channel(0);
        let noted = Arc::clone(&all);
        let mut consumer = JoinSet::new();
        consumer.spawn(async move {
            while let Some(message) = messages.next().await {
                let (number, arrival) = arrival(&message?)?;
                let mut all = noted.lock().unwrap_or_else(PoisonError::into_inner);
                // A copy of an event that is there already came later.
                all.entry(number).or_insert(arrival);
                counted.send_replace(all.len() as u64);
            }
            Ok(())
        });
        Ok(Self { all, count, _consumer: consumer })
    }

    /// Waits until the events of this many payments have arrived.
    pub(super) async fn wait_for(&mut self, payments: u64) -> anyhow::Result<()> {
        let arriving = self.count.wait_for(|count| *count >= payments);
        let have_arrived = matches!(timeout(PATIENCE, arriving).await, Ok(Ok(_)));
        ensure!(have_arrived, "{} of {payments} events arrived", *self.count.borrow());
        Ok(())
    }

    /// All arrivals, by the numbers of the payments.
    pub(super) fn all(&self) -> HashMap<u64, EventArrival> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn arrival(message: &Message) -> anyhow::Result<(u64, EventArrival)> {
    let consumed = microseconds();
    let info = message.info().map_err(anyhow::Error::from_boxed)?;
    let stored = u64::try_from(info.published.unix_timestamp_nanos() / 1_000).context("the time of an event")?;
    Ok((number_of(&message.payload)?, EventArrival { stored, consumed }))
}
