//! Asks for as many messages as there is room for, and reads the answers.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{Consumer, pull};
use async_nats::{Client, Message, StatusCode, connection};
use hapax_core::runtime::{self, Runtime};
use hapax_core::{Error, Result};
use tokio::sync::mpsc::UnboundedReceiver;

use super::connect::Connected;
use super::pump::{self, Arrived};
use crate::url::{not_applied, unusable};

/// How long the server keeps a request that it cannot answer yet.
const EXPIRES: Duration = Duration::from_secs(10);

/// The interval at which the server says that it still has the request.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A server that has been silent for this long has lost the request.
const SILENCE: Duration = Duration::from_millis(2500);

/// The messages of one request, at most.
const MAX_BATCH: usize = 512;

/// One request at a time, whose answers go to a subject of its own.
pub(super) struct Puller {
    client: Client,
    consumer: Consumer<pull::Config>,
    context: Context,
    arrived: UnboundedReceiver<Arrived>,
    inbox: String,
    request: u64,
    /// The messages that the open request may still bring; 0 without one.
    open: usize,
    /// When something arrived last for the open request.
    heard: Duration,
    /// The server had a message that is larger than the room.
    is_too_large: bool,
    runtime: Arc<dyn Runtime>,
}

/// What an answer without a message means.
enum Status {
    StillThere,
    Ended,
    TooLarge,
    Failed(Error),
}

impl Puller {
    pub(super) async fn start(connected: Connected, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let Connected { client, consumer, .. } = connected;
        let inbox = client.new_inbox();
        let subscribed = client.subscribe(format!("{inbox}.*")).await;
        let subscriber =
            subscribed.map_err(|error| not_applied("cannot subscribe at the NATS server").caused_by(error))?;
        Ok(Self {
            context: async_nats::jetstream::new(client.clone()),
            arrived: pump::start(subscriber, &runtime),
            client,
            consumer,
            inbox,
            request: 0,
            open: 0,
            heard: Duration::ZERO,
            is_too_large: false,
            runtime,
        })
    }

    /// Ends the subscription.
    pub(super) async fn stop(&mut self) {
        self.arrived.close();
        while self.arrived.recv().await.is_some() {}
    }

    /// The next message that has arrived already.
    pub(super) fn arrived(&mut self) -> Option<(Context, Arrived)> {
        while let Ok(arrived) = self.arrived.try_recv() {
            // A failure is reported by `wait`, which asks again and gets it again.
            if let Ok(Some(message)) = self.judge(arrived) {
                return Some(message);
            }
        }
        None
    }

    /// Waits for a message; asks for them if any are wanted and no request is open.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub(super) async fn wait(&mut self, wanted: usize, bytes: usize) -> Result<(Context, Arrived)> {
        loop {
            if wanted > 0 && self.open == 0 {
                self.ask(wanted, bytes).await?;
            }
            let limit = if self.open > 0 { SILENCE } else { EXPIRES };
            let runtime = Arc::clone(&self.runtime);
            match runtime::timeout(&*runtime, limit, self.arrived.recv()).await {
                Some(Some(arrived)) => {
                    if let Some(message) = self.judge(arrived)? {
                        return Ok(message);
                    }
                }
                Some(None) => return Err(unusable("the source is closed")),
                None => self.notice_silence()?,
            }
        }
    }

    fn notice_silence(&mut self) -> Result<()> {
        if self.runtime.boottime_now().saturating_sub(self.heard) >= SILENCE {
            self.open = 0;
        }
        match self.client.connection_state() {
            connection::State::Connected => Ok(()),
            connection::State::Pending | connection::State::Disconnected => {
                Err(not_applied("the connection to the NATS server is lost; it is being restored"))
            }
        }
    }

    async fn ask(&mut self, wanted: usize, bytes: usize) -> Result<()> {
        let config = &self.consumer.cached_info().config;
        let capped = |cap: i64| usize::try_from(cap).ok().filter(|&cap| cap > 0).unwrap_or(usize::MAX);
        let batch = if self.is_too_large { 1 } else { wanted.min(MAX_BATCH).min(capped(config.max_batch)) };
        // A single message of any size has room.
        let largest = self.client.server_info().max_payload + 64 * 1024;
        let max_bytes = if self.is_too_large { 0 } else { bytes.max(largest).min(capped(config.max_bytes)) };
        let expires = if config.max_expires.is_zero() { EXPIRES } else { config.max_expires.min(EXPIRES) };
        let request = pull::BatchConfig {
            batch,
            expires: Some(expires),
            max_bytes,
            idle_heartbeat: HEARTBEAT.min(expires / 2),
            ..Default::default()
        };
        let inbox = format!("{}.{}", self.inbox, self.request + 1);
        let asked = self.consumer.request_batch(request, inbox.into()).await;
        asked.map_err(|error| not_applied("cannot ask the NATS server for messages").caused_by(error))?;
        self.request += 1;
        self.open = batch;
        self.heard = self.runtime.boottime_now();
        Ok(())
    }

    /// The message, unless the answer is about the request.
    fn judge(&mut self, arrived: Arrived) -> Result<Option<(Context, Arrived)>> {
        self.heard = arrived.at;
        let Some(status) = arrived.message.status.filter(|status| *status != StatusCode::OK) else {
            self.open = self.open.saturating_sub(1);
            self.is_too_large = false;
            return Ok(Some((self.context.clone(), arrived)));
        };
        let request = arrived.message.subject.rsplit('.').next().and_then(|number| number.parse().ok());
        if request != Some(self.request) {
            return Ok(None);
        }
        match read_status(status, &arrived.message) {
            Status::StillThere => {}
            Status::Ended => self.open = 0,
            Status::TooLarge => (self.open, self.is_too_large) = (0, true),
            Status::Failed(error) => {
                self.open = 0;
                return Err(error);
            }
        }
        Ok(None)
    }
}

fn read_status(status: StatusCode, message: &Message) -> Status {
    let said = message.description.as_deref().unwrap_or_default();
    match status {
        StatusCode::IDLE_HEARTBEAT => Status::StillThere,
        StatusCode::NOT_FOUND | StatusCode::TIMEOUT => Status::Ended,
        StatusCode::NO_RESPONDERS => {
            Status::Failed(not_applied("JetStream does not reply, or the durable consumer is gone"))
        }
        _ if said.contains("Message Size Exceeds MaxBytes") => Status::TooLarge,
        _ if said.contains("Consumer Deleted") => {
            Status::Failed(unusable("the durable consumer has been deleted: start the worker again to create it"))
        }
        _ if said.contains("Consumer is push based") => Status::Failed(unusable("the consumer is not a pull consumer")),
        StatusCode::REQUEST_TERMINATED => {
            Status::Failed(not_applied(format!("the NATS server ends a request: {said}")))
        }
        _ => Status::Failed(not_applied(format!("the NATS server refuses a request: {status} {said}"))),
    }
}
