//! Asks for as many messages as there is room for, and reads the answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{Consumer, pull};
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use async_nats::{Client, Message, StatusCode, connection};
use hapax_core::runtime::{self, Runtime};
use hapax_core::{Error, Result};

use super::connect::Connected;
use super::losses::Losses;
use super::pump::{self, Arrived, Pump};
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
    pump: Pump,
    /// What arrived after the end of the subscription.
    late: Vec<(Context, Arrived)>,
    inbox: String,
    request: u64,
    /// The messages that the open request may still bring; 0 without one.
    open: usize,
    /// When something arrived last for the open request.
    heard: Duration,
    /// The server had a message that is larger than the room.
    is_too_large: bool,
    /// The last request had no answer. Either JetStream is not there, or the durable consumer.
    is_unheard: bool,
    losses: Losses,
    /// What was found out while no caller waited.
    failure: Option<Error>,
    runtime: Arc<dyn Runtime>,
}

/// What an answer without a message means.
enum Status {
    StillThere,
    Ended,
    TooLarge,
    /// Nobody has it.
    Unheard,
    Failed(Error),
}

impl Puller {
    pub(super) async fn start(connected: Connected, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let Connected { client, consumer, .. } = connected;
        let (inbox, connects) = (client.new_inbox(), connects(&client));
        let subscribed = client.subscribe(format!("{inbox}.*")).await;
        let subscriber =
            subscribed.map_err(|error| not_applied("cannot subscribe at the NATS server").caused_by(error))?;
        Ok(Self {
            context: async_nats::jetstream::new(client.clone()),
            pump: pump::start(subscriber, &runtime),
            late: Vec::new(),
            client,
            consumer,
            inbox,
            request: 0,
            open: 0,
            heard: Duration::ZERO,
            is_too_large: false,
            is_unheard: false,
            losses: Losses::new(connects),
            failure: None,
            runtime,
        })
    }

    /// Ends the subscription, so that the server forgets the request. Returns the messages that have arrived.
    ///
    /// # Cancel safety
    /// Safe to drop: another call returns them.
    pub(super) async fn stop(&mut self) -> Vec<(Context, Arrived)> {
        self.pump.stop.notify_one();
        while let Some(arrived) = self.pump.arrived.recv().await {
            // Nothing is asked for any more, so a failure has no meaning.
            let message = self.judge(arrived).ok().flatten();
            self.late.extend(message);
        }
        std::mem::take(&mut self.late)
    }

    /// The next message that has arrived already.
    pub(super) fn arrived(&mut self) -> Option<(Context, Arrived)> {
        while let Ok(arrived) = self.pump.arrived.try_recv() {
            match self.judge(arrived) {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                // `wait` reports it. The server may say it only once.
                Err(error) => self.failure = Some(error),
            }
        }
        None
    }

    /// Waits for a message; asks for them if any are wanted and no request is open.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub(super) async fn wait(&mut self, wanted: usize, bytes: usize) -> Result<(Context, Arrived)> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        loop {
            if wanted > 0 && self.open == 0 {
                self.check_consumer().await?;
                self.ask(wanted, bytes).await?;
            }
            // Since the last answer, whoever waited for it: calls may be dropped all the time.
            let silent = self.runtime.boottime_now().saturating_sub(self.heard);
            let limit = if self.open > 0 { SILENCE.saturating_sub(silent) } else { EXPIRES };
            let runtime = Arc::clone(&self.runtime);
            match runtime::timeout(&*runtime, limit, self.pump.arrived.recv()).await {
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
        if self.open > 0 && self.runtime.boottime_now().saturating_sub(self.heard) >= SILENCE {
            (self.open, self.is_unheard) = (0, true);
        }
        match self.client.connection_state() {
            connection::State::Connected => Ok(()),
            connection::State::Pending | connection::State::Disconnected => {
                Err(not_applied("the connection to the NATS server is lost; it is being restored"))
            }
        }
    }

    /// Asks for the durable consumer, after a request without an answer or a lost connection. The server does not tell
    /// by itself that the consumer is gone.
    async fn check_consumer(&mut self) -> Result<()> {
        let connects = connects(&self.client);
        if !self.is_unheard && !self.losses.is_new(connects) {
            return Ok(());
        }
        match self.consumer.get_info().await {
            Err(error) if matches!(error.kind(), ConsumerInfoErrorKind::NotFound) => Err(gone().caused_by(error)),
            Err(error) if matches!(error.kind(), ConsumerInfoErrorKind::StreamNotFound) => {
                Err(unusable("the stream has been deleted: create it, then start the worker again").caused_by(error))
            }
            Ok(info) => {
                self.is_unheard = false;
                self.losses.check(connects, self.runtime.boottime_now(), &info);
                Ok(())
            }
            // JetStream may be about to start.
            Err(_) => {
                self.is_unheard = false;
                Ok(())
            }
        }
    }

    async fn ask(&mut self, wanted: usize, bytes: usize) -> Result<()> {
        let config = &self.consumer.cached_info().config;
        let capped = |cap: i64| usize::try_from(cap).ok().filter(|&cap| cap > 0).unwrap_or(usize::MAX);
        let is_alone = self.is_too_large || self.losses.asks_alone(self.runtime.boottime_now());
        let batch = if is_alone { 1 } else { wanted.min(MAX_BATCH).min(capped(config.max_batch)) };
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
            self.losses.arrived();
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
            Status::Unheard => {
                (self.open, self.is_unheard) = (0, true);
                return Err(not_applied("JetStream does not reply"));
            }
            Status::Failed(error) => {
                self.open = 0;
                return Err(error);
            }
        }
        Ok(None)
    }
}

/// How often the connection has been made.
fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}

/// The worker does not create it again by itself: with it, the server forgot which messages are finished.
fn gone() -> Error {
    unusable(
        "the durable consumer has been deleted, and with it the server's account of what is finished. A worker that \
         starts creates it and gets every message of the stream again; what the ledger or the record store still knows \
         is not repeated. To leave messages out, create the consumer with a start sequence before",
    )
}

fn read_status(status: StatusCode, message: &Message) -> Status {
    let said = message.description.as_deref().unwrap_or_default();
    match status {
        StatusCode::IDLE_HEARTBEAT => Status::StillThere,
        StatusCode::NOT_FOUND | StatusCode::TIMEOUT => Status::Ended,
        StatusCode::NO_RESPONDERS => Status::Unheard,
        _ if said.contains("Message Size Exceeds MaxBytes") => Status::TooLarge,
        _ if said.contains("Consumer Deleted") => Status::Failed(gone()),
        _ if said.contains("Consumer is push based") => Status::Failed(unusable("the consumer is not a pull consumer")),
        StatusCode::REQUEST_TERMINATED => {
            Status::Failed(not_applied(format!("the NATS server ends a request: {said}")))
        }
        _ => Status::Failed(not_applied(format!("the NATS server refuses a request: {status} {said}"))),
    }
}
