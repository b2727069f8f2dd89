//! Asks for as many messages as there is room for, and reads the answers.

mod answers;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_nats::connection;
use async_nats::jetstream::consumer::{self, Consumer, pull};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hapax_core::runtime::{self, Runtime};
use hapax_core::{Error, Result};
use tracing::error;

use super::connect;
use super::driver::Driver;
use super::hold::{Here, Hold, LOOK_EVERY, Survey};
use super::listen::{Beginning, Listening};
use super::losses::Losses;
use super::lost_alone::LostAlone;
use super::pump::{self, Arrived, Pump};
use super::unreadable::UnreadableMessage;
use crate::errors::{not_applied, unusable};

/// How long the server keeps a request that it cannot answer yet.
pub(super) const EXPIRES: Duration = Duration::from_secs(10);

/// The interval at which the server says that it still has the request.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A server that has been silent for this long has lost the request.
const SILENCE: Duration = Duration::from_millis(2500);

/// The messages of one request, at most.
const MAX_BATCH: usize = 512;

/// How often the server is asked whether it has forgotten the requests of a source that stops, and the pause between.
const FORGETS: (usize, Duration) = (10, Duration::from_millis(100));

/// What was found.
pub(super) enum PulledItem {
    Message(Arrived),
    /// It waits until nothing is missing that the server has sent before.
    Early(Arrived),
    /// Nothing is missing any more.
    NothingMissing,
    /// The driver cannot read it.
    Unreadable(UnreadableMessage),
}

/// One request at a time, whose answers go to a subject of its own.
pub(super) struct Puller {
    driver: Arc<Driver>,
    /// What the server said about the durable consumer last.
    info: consumer::Info,
    here: Here,
    is_ordered: bool,
    listener: Option<Listener>,
    /// The next listener. Kept, because a call that waits for it may be dropped.
    beginning: Option<BoxFuture<'static, Result<Listening>>>,
    /// Where to search for messages that cannot be read. None before the first cut.
    search_from: Option<u64>,
    /// What was found while no caller waited.
    found: VecDeque<PulledItem>,
    failure: Option<Error>,
    hold: Option<Hold>,
    request: u64,
    /// The messages that the open request may still bring; 0 without one.
    open: usize,
    /// When the last request was made.
    asked: Duration,
    /// When something arrived last for the open request.
    heard: Duration,
    /// The server had a message that is larger than the room.
    is_too_large: bool,
    losses: Losses,
    lost_alone: LostAlone,
    has_stopped: bool,
    runtime: Arc<dyn Runtime>,
}

/// A subscription to the answers.
struct Listener {
    consumer: Consumer<pull::Config>,
    inbox: String,
    pump: Pump,
    /// How often the connection had been made.
    connects: u64,
    /// A request had no end, so that nothing more is asked here.
    is_cut: bool,
}

impl Puller {
    pub(super) fn new(
        driver: Arc<Driver>,
        info: consumer::Info,
        here: Here,
        is_ordered: bool,
        runtime: Arc<dyn Runtime>,
    ) -> Self {
        Self {
            losses: Losses::new(driver.connects()),
            lost_alone: LostAlone::new(&info),
            driver,
            info,
            here,
            is_ordered,
            listener: None,
            beginning: None,
            search_from: None,
            found: VecDeque::new(),
            failure: None,
            hold: None,
            request: 0,
            open: 0,
            asked: Duration::ZERO,
            heard: Duration::ZERO,
            is_too_large: false,
            has_stopped: false,
            runtime,
        }
    }

    /// What the server said about the durable consumer last.
    pub(super) fn info(&self) -> &consumer::Info {
        &self.info
    }

    /// Ends the subscription, and waits until the server has forgotten the request: it would spend the first message
    /// that is given back on it. Returns the messages that have arrived.
    ///
    /// # Cancel safety
    /// Safe to drop: another call returns them.
    pub(super) async fn stop(&mut self) -> VecDeque<PulledItem> {
        if !std::mem::replace(&mut self.has_stopped, true) {
            self.beginning = None;
        }
        while let Some(listener) = &mut self.listener {
            listener.pump.stop.notify_one();
            match listener.pump.arrived.recv().await {
                // Nothing is asked for any more, so a failure has no meaning.
                Some(arrived) => drop(self.judge(arrived)),
                None => self.end_listener().await,
            }
        }
        std::mem::take(&mut self.found)
    }

    async fn end_listener(&mut self) {
        let Some(consumer) = self.listener.as_ref().map(|listener| listener.consumer.clone()) else { return };
        for _ in 0..FORGETS.0 {
            // The server looks for requests that nobody listens to when it is asked.
            let info = connect::info(&consumer).await;
            if !self.is_ordered || info.is_ok_and(|info| info.num_waiting == 0) {
                break;
            }
            self.runtime.sleep(FORGETS.1).await;
        }
        self.listener = None;
    }

    /// The next message that has arrived already.
    pub(super) fn arrived(&mut self) -> Option<PulledItem> {
        loop {
            self.notice_end_of_hold();
            if let Some(found) = self.found.pop_front() {
                return Some(found);
            }
            let arrived = self.listener.as_mut()?.pump.arrived.try_recv().ok()?;
            // `wait` reports it. The server may say it only once.
            self.failure = self.judge(arrived).err().or(self.failure.take());
        }
    }

    /// Waits for a message; asks for them if any are wanted and no request is open.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub(super) async fn wait(&mut self, wanted: usize, bytes: usize) -> Result<PulledItem> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        loop {
            self.notice_end_of_hold();
            if let Some(found) = self.found.pop_front() {
                return Ok(found);
            }
            if self.listener.is_none() {
                self.listen().await?;
                continue;
            }
            self.notice_cut();
            let is_cut = self.listener.as_ref().is_none_or(|listener| listener.is_cut);
            let now = self.runtime.boottime_now();
            if wanted > 0 && self.open == 0 && !is_cut && self.hold.as_ref().is_none_or(|hold| hold.asks(now)) {
                self.ask(wanted, bytes).await?;
            }
            let (runtime, limit) = (Arc::clone(&self.runtime), self.patience());
            let Some(listener) = &mut self.listener else { continue };
            match runtime::timeout(&*runtime, limit, listener.pump.arrived.recv()).await {
                Some(Some(arrived)) => self.judge(arrived)?,
                // After a cut, or because the driver has died.
                Some(None) => self.listener = None,
                None => self.notice_silence()?,
            }
        }
    }

    /// How long to wait for an answer.
    fn patience(&self) -> Duration {
        // Since the last answer, whoever waited for it: calls may be dropped all the time.
        let silent = self.runtime.boottime_now().saturating_sub(self.heard);
        let limit = if self.open > 0 { SILENCE.saturating_sub(silent) } else { EXPIRES };
        if self.hold.is_some() { limit.min(LOOK_EVERY) } else { limit }
    }

    /// Listens, for the first time or again.
    async fn listen(&mut self) -> Result<()> {
        if self.has_stopped {
            return Err(unusable("the source is closed"));
        }
        let beginning = self.beginning.get_or_insert_with(|| {
            let beginning = Beginning {
                driver: Arc::clone(&self.driver),
                info: self.info.clone(),
                here: Arc::clone(&self.here),
                is_ordered: self.is_ordered,
                search_from: self.search_from,
                runtime: Arc::clone(&self.runtime),
            };
            beginning.listen().boxed()
        });
        let began = beginning.await;
        self.beginning = None;
        let Listening { consumer, info, inbox, subscriber, connects, search, survey } = began?;
        self.losses.check(connects, self.runtime.boottime_now(), &info, search.failure.as_ref());
        for found in &search.found {
            let (stream, sequence, why) = (&info.stream_name, found.sequence, found.why);
            error!(stream, sequence, why, "a message cannot be read; it becomes a dead letter");
        }
        self.lost_alone.found(search.found.len());
        self.found.extend(search.found.into_iter().map(PulledItem::Unreadable));
        self.hold = survey.and_then(|survey| self.hold_after(&survey, &consumer));
        let pump = pump::start(subscriber, &self.driver, &self.runtime);
        self.listener = Some(Listener { consumer, inbox, pump, connects, is_cut: false });
        (self.info, self.search_from, self.open) = (info, Some(search.next), 0);
        if self.hold.is_none() {
            self.found.push_back(PulledItem::NothingMissing);
        }
        Ok(())
    }

    /// The hold for what is missing. A message that the driver cannot read breaks the connection after each of its
    /// leases: a hold that began anew each time would never end.
    fn hold_after(&mut self, survey: &Survey, consumer: &Consumer<pull::Config>) -> Option<Hold> {
        let is_again = self.lost_alone.cut(&survey.info, self.heard, self.runtime.boottime_now());
        if survey.missing == 0 {
            self.lost_alone.nothing_is_missing();
            return None;
        }
        match is_again {
            true if survey.missing <= self.lost_alone.lost_again() => None,
            // More are missing than before: another one was lost at the same time.
            true if self.hold.as_ref().is_some_and(|hold| survey.missing <= hold.missing) => self.hold.take(),
            true | false => Some(Hold::begin(survey, consumer, &self.here, &self.runtime)),
        }
    }

    /// After a lost connection the server may still hold the request, and what it had sent is lost.
    fn notice_cut(&mut self) {
        let connects = self.driver.connects();
        let Some(listener) = &mut self.listener else { return };
        listener.is_cut |= listener.connects != connects;
        if listener.is_cut {
            self.open = 0;
            listener.pump.stop.notify_one();
        }
    }

    fn cut(&mut self) {
        self.open = 0;
        if let Some(listener) = &mut self.listener {
            listener.is_cut = true;
        }
    }

    fn notice_silence(&mut self) -> Result<()> {
        if self.open > 0 && self.runtime.boottime_now().saturating_sub(self.heard) >= SILENCE {
            self.cut();
        }
        self.check_connection()
    }

    fn check_connection(&self) -> Result<()> {
        match self.driver.client().connection_state() {
            connection::State::Connected => Ok(()),
            connection::State::Pending | connection::State::Disconnected => {
                Err(not_applied("the connection to the NATS server is lost; it is being restored"))
            }
        }
    }

    fn notice_end_of_hold(&mut self) {
        let now = self.runtime.boottime_now();
        if self.hold.as_ref().is_some_and(|hold| hold.is_over(now)) {
            self.end_hold();
        }
    }

    fn end_hold(&mut self) {
        self.hold = None;
        self.found.push_back(PulledItem::NothingMissing);
    }

    async fn ask(&mut self, wanted: usize, bytes: usize) -> Result<()> {
        // The driver would send a request of now on the next connection, on which another inbox is subscribed.
        self.check_connection()?;
        let Some(listener) = &self.listener else { return Ok(()) };
        let config = &self.info.config;
        let capped = |cap: i64| usize::try_from(cap).ok().filter(|&cap| cap > 0).unwrap_or(usize::MAX);
        let is_alone = self.is_too_large || self.losses.asks_alone(self.runtime.boottime_now());
        let batch = if is_alone { 1 } else { wanted.min(MAX_BATCH).min(capped(config.max_batch)) };
        // A single message of any size has room.
        let largest = self.driver.client().server_info().max_payload + 64 * 1024;
        let max_bytes = if self.is_too_large { 0 } else { bytes.max(largest).min(capped(config.max_bytes)) };
        let expires = if config.max_expires.is_zero() { EXPIRES } else { config.max_expires.min(EXPIRES) };
        let request = pull::BatchConfig {
            batch,
            expires: Some(expires),
            max_bytes,
            idle_heartbeat: HEARTBEAT.min(expires / 2),
            ..Default::default()
        };
        let inbox = format!("{}.{}", listener.inbox, self.request + 1);
        let asked = self.runtime.boottime_now();
        let sent = listener.consumer.request_batch(request, inbox.into()).await;
        sent.map_err(|error| not_applied("cannot ask the NATS server for messages").caused_by(error))?;
        self.request += 1;
        self.open = batch;
        self.lost_alone.asked(batch);
        (self.asked, self.heard) = (asked, self.runtime.boottime_now());
        if let Some(hold) = &mut self.hold {
            hold.note_asked(asked);
        }
        Ok(())
    }
}
