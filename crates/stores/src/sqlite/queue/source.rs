use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::broker::{
    Acknowledges, BrokerLease, Capability, Coordinates, Delivery, DeliveryId, Event, Lane, Message, Position, Room,
    Settle, Settlement, Source,
};
use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, Result};
use rusqlite::Connection;

use super::SqliteQueue;
use super::settle::SharedQueue;
use super::statements::{self, LeaseRequest, Leased};
use crate::headers;
use crate::sqlite::connection;
use crate::sqlite::file_thread::{self, FileThread, Pending, replied};

/// How many messages one transaction leases at most.
const MOST: usize = 1_000;

/// Settings of a [`SqliteSource`].
///
/// ```
/// use std::time::Duration;
/// use hapax::stores::SqliteSourceSettings;
///
/// let settings = SqliteSourceSettings::default().lease(Duration::from_secs(120));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteSourceSettings {
    /// How long a delivered message belongs to its worker. The worker extends it. Default: 30 s.
    pub lease: Duration,
    /// The time between two looks into a queue that has just become empty. Default: 10 ms.
    pub poll_first: Duration,
    /// The longest time between two looks: while a queue stays empty, the time doubles up to this. Default: 250 ms.
    pub poll_longest: Duration,
}

impl Default for SqliteSourceSettings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            poll_first: Duration::from_millis(10),
            poll_longest: Duration::from_millis(250),
        }
    }
}

impl SqliteSourceSettings {
    /// Sets the field `lease`.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets the fields `poll_first` and `poll_longest`.
    #[must_use]
    pub fn poll(mut self, first: Duration, longest: Duration) -> Self {
        (self.poll_first, self.poll_longest) = (first, longest);
        self
    }
}

/// Takes the messages of a [`SqliteQueue`] out, on a thread and a connection of its own. Several workers of one host
/// may share a queue.
///
/// Of the messages with one ordering key, only the first is delivered: while it is leased, delayed or fails, the later
/// ones wait. Messages of other keys and without a key go on. The wall clock of the runtime is the clock of the queue.
pub struct SqliteSource {
    shared: Arc<SharedQueue>,
    /// The name of the source and the origin of its messages.
    name: Arc<str>,
    settings: SqliteSourceSettings,
    /// Messages that are being leased.
    leasing: Option<Leasing>,
    /// Leased messages for which there was no room.
    ready: VecDeque<Delivery>,
    delivered: u64,
    /// The time until the next look into an empty queue.
    pause: Duration,
    /// When it comes, on the boot-time clock.
    look_at: Duration,
}

struct Leasing {
    messages: Pending<Vec<Leased>>,
    /// The end of their leases, on the boot-time clock.
    until: Duration,
}

impl SqliteSource {
    /// Opens the queue. Creates the file, so that only its owner can read it, and the tables if they are missing.
    /// Blocks for a few milliseconds, or up to 30 seconds while another process writes.
    ///
    /// # Errors
    /// `Unusable` if the directory cannot be written or is on a network file system, if the file is not an SQLite
    /// database, and if the system cannot start a thread.
    pub fn open(
        path: &Path,
        queue: &SqliteQueue,
        runtime: Arc<dyn Runtime>,
        settings: SqliteSourceSettings,
    ) -> Result<Self> {
        let opened = file_thread::open(path, SqliteQueue::migrate)?;
        let file = statements::file(&opened.connection).map_err(|error| connection::unusable(path, error))?;
        let mut owner = [0; 16];
        runtime.fill_random(&mut owner);
        let shared = SharedQueue {
            thread: FileThread::start(&*runtime, "hapax-sqlite-queue", opened)?,
            runtime,
            lane: Lane { topic: Arc::clone(&queue.name), partition: 0, generation: 0 },
            owner,
            is_closed: AtomicBool::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            name: format!("sqlite/{file:016x}/{}", queue.name).into(),
            settings,
            leasing: None,
            ready: VecDeque::new(),
            delivered: 0,
            pause: settings.poll_first,
            look_at: Duration::ZERO,
        })
    }

    /// Asks the thread for messages.
    async fn lease(&self, room: &Room) -> Result<Leasing> {
        let (lane, runtime, owner) = (self.shared.lane.clone(), Arc::clone(&self.shared.runtime), self.shared.owner);
        let (messages, bytes, lease) = (room.messages.min(MOST), room.bytes, self.settings.lease);
        // Read before the wall clock, so that the worker never believes longer in a lease than the queue does.
        let until = self.shared.runtime.boottime_now() + lease;
        let work = move |connection: &mut Connection| {
            let now = runtime.wall_now();
            let request = LeaseRequest { queue: &lane.topic, owner, messages, bytes, now, until: now.plus(lease) };
            statements::lease(connection, &request)
        };
        Ok(Leasing { messages: self.shared.thread.hand_over(work).await?, until })
    }

    /// Waits for the messages that are being leased.
    async fn receive(&mut self) -> Result<()> {
        let Some(leasing) = &mut self.leasing else { return Ok(()) };
        let messages = replied((&mut leasing.messages).await);
        let until = leasing.until;
        self.leasing = None;
        if messages.as_ref().is_ok_and(|messages| !messages.is_empty()) {
            self.pause = self.settings.poll_first;
        } else {
            self.look_at = self.shared.runtime.boottime_now() + self.pause;
            self.pause = (self.pause * 2).min(self.settings.poll_longest);
        }
        // Nobody else waits for the reply, so it does not matter whether the messages were leased: they come again.
        let again = |error: Error| {
            let is_unknown = error.kind() == ErrorKind::Unknown;
            let retry = || Error::new(ErrorKind::NotApplied, "no message was leased");
            if is_unknown { retry().caused_by(error) } else { error }
        };
        for leased in messages.map_err(again)? {
            let row = leased.id;
            match self.deliver(leased, until) {
                Ok(delivery) => self.ready.push_back(delivery),
                // It must not keep the others back.
                Err(error) => tracing::error!(
                    error = error.to_string(),
                    row,
                    "A message in a queue of SQLite cannot be decoded. It waits, and so do later ones of its ordering \
                     key: correct its row in hapax_queue, or delete the row."
                ),
            }
        }
        Ok(())
    }

    fn deliver(&mut self, leased: Leased, until: Duration) -> Result<Delivery> {
        self.delivered += 1;
        let handle = [&leased.id.to_be_bytes()[..], &leased.attempts.to_be_bytes()].concat();
        let message = Message {
            payload: leased.payload,
            headers: headers::decode(&leased.headers)?,
            ordering_key: leased.ordering_key.map(Into::into),
            coordinates: Some(Coordinates {
                origin: Arc::clone(&self.name),
                partition: 0,
                position: Position::Number(leased.id.cast_unsigned()),
            }),
            timestamp: Some(leased.enqueued_at),
            damage: None,
        };
        let id = DeliveryId { lane: self.shared.lane.clone(), number: self.delivered, handle: handle.into() };
        Ok(Delivery { id, message: Arc::new(message), attempt: Some(leased.attempts), leased_until: Some(until) })
    }

    /// Leased messages that fit into the room. Those whose lease has ended come again.
    fn take_ready(&mut self, room: &Room) -> Vec<Delivery> {
        let now = self.shared.runtime.boottime_now();
        self.ready.retain(|delivery| delivery.leased_until.is_some_and(|until| until > now));
        let (mut taken, mut bytes) = (Vec::new(), 0_usize);
        while taken.len() < room.messages
            && let Some(next) = self.ready.front()
        {
            bytes = bytes.saturating_add(next.message.size());
            if bytes > room.bytes && !taken.is_empty() {
                break;
            }
            taken.extend(self.ready.pop_front());
        }
        taken
    }
}

#[async_trait]
impl Source for SqliteSource {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn capability(&self) -> Capability {
        Capability {
            acknowledges: Acknowledges::Each,
            redelivers: true,
            delays: true,
            lease: Some(BrokerLease { length: self.settings.lease, longest: None }),
            keeps_order: true,
            delivery_limit: None,
        }
    }

    fn settler(&self) -> Arc<dyn Settle> {
        Arc::clone(&self.shared) as _
    }

    async fn next(&mut self, room: Room) -> Result<Event> {
        if room.messages == 0 || room.bytes == 0 || room.closed.contains(&self.shared.lane) {
            // The worker calls again when there is room. A file needs no polling to stay connected.
            std::future::pending::<()>().await;
        }
        loop {
            let ready = self.take_ready(&room);
            if !ready.is_empty() {
                return Ok(Event::Deliveries(ready));
            }
            if self.leasing.is_none() {
                let wait = self.look_at.saturating_sub(self.shared.runtime.boottime_now());
                if !wait.is_zero() {
                    self.shared.runtime.sleep(wait).await;
                }
                self.leasing = Some(self.lease(&room).await?);
            }
            self.receive().await?;
        }
    }

    /// Gives back the messages that were leased and not delivered, so that another worker gets them at once.
    async fn close(&mut self) -> Result<()> {
        // They may still be on their way. An error means that there are none.
        let _ = self.receive().await;
        let undelivered = self.ready.drain(..).map(|delivery| (delivery.id, Settlement::Retry(Duration::ZERO)));
        let given_back = self.shared.settle(undelivered.collect()).await;
        self.shared.is_closed.store(true, Ordering::Release);
        given_back.into_iter().collect()
    }
}

impl fmt::Debug for SqliteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteSource")
            .field("name", &self.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Drop for SqliteSource {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Release);
    }
}
