use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::broker::Message;
use hapax_core::ledger::Event;
use hapax_core::outbox::{OutgoingEvent, Published, Sink, TopicTemplate};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::store::Finding;
use hapax_core::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rusqlite::{ErrorCode, Transaction};
use tokio::sync::oneshot;

use super::SqliteQueue;
use super::statements::{self, EventToPut};
use crate::sqlite::file_thread::{self, FileConnection, FileThread, in_transaction, not_applied};

/// The longest name of a queue, in characters.
const MAX_NAME: usize = 255;

/// The largest event that a queue takes, in bytes. A dead letter may be larger than what an outbox takes.
const MAX_SIZE: usize = 16 * 1024 * 1024;

/// The most events that one transaction puts in.
const MAX_PUT: usize = 1_000;

/// How long a publication may take.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Where and how a [`SqliteSink`] publishes.
///
/// ```
/// use std::time::Duration;
/// use hapax::stores::SqliteSinkConfig;
///
/// let config = SqliteSinkConfig::new("payments.db").topic("orders-{topic}".parse()?);
/// let config = config.window(Duration::from_secs(3600));
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteSinkConfig {
    path: PathBuf,
    topic: TopicTemplate,
    window: Duration,
}

impl SqliteSinkConfig {
    /// Publishes to queues in this file, each with the name of the topic, and recognizes a repeated event for 10
    /// minutes.
    pub fn new(path: impl AsRef<Path>) -> Self {
        let window = Duration::from_secs(600);
        Self { path: path.as_ref().to_owned(), topic: TopicTemplate::default(), window }
    }

    /// Maps topics to names of queues.
    #[must_use]
    pub fn topic(mut self, topic: TopicTemplate) -> Self {
        self.topic = topic;
        self
    }

    /// The name of the sink in logs and metrics.
    pub fn name(&self) -> String {
        format!("sqlite/{}", self.path.display())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How long a queue recognizes a repeated event. The file keeps about 60 bytes for each event of this time.
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }
}

/// Publishes events to queues in an SQLite file, which a worker reads as a [`SqliteSource`](super::SqliteSource). It
/// has a thread and a connection of its own.
///
/// Events that wait at the same time share a transaction. A queue recognizes an event that comes again within the
/// window, also after a worker has acknowledged it. After a republication it takes the event once more.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::sync::Arc;
/// use hapax::EventId;
/// use hapax::outbox::{OutgoingEvent, Published, Sink};
/// use hapax::runtime::Tokio;
/// use hapax::stores::{SqliteSink, SqliteSinkConfig};
///
/// # let directory = tempfile::tempdir()?;
/// let config = SqliteSinkConfig::new(directory.path().join("payments.db"));
/// let sink = SqliteSink::open(config, Arc::new(Tokio::current()))?;
/// let event = OutgoingEvent::new(EventId::from_random([7; 16]), "payments", "5");
/// assert!(matches!(sink.publish(&Arc::new(event)).await, Published::Yes { caught: false }));
/// # Ok(())
/// # }
/// ```
pub struct SqliteSink {
    name: Arc<str>,
    topic: TopicTemplate,
    window: Duration,
    thread: FileThread,
    waiting: Arc<Mutex<WaitingEvents>>,
    runtime: Arc<dyn Runtime>,
}

/// The events that the next transaction puts in.
#[derive(Default)]
struct WaitingEvents {
    events: Vec<WaitingEvent>,
    is_closed: bool,
}

struct WaitingEvent {
    put: EventToPut,
    reply: oneshot::Sender<Published>,
}

impl SqliteSink {
    /// Opens the file. Creates it, so that only its owner can read it, and the tables if they are missing. Blocks for
    /// a few milliseconds, or up to 30 seconds while another process writes.
    ///
    /// # Errors
    /// `Unusable` if the directory cannot be written or is on a network file system, if the file is not an SQLite
    /// database, and if the system cannot start a thread.
    pub fn open(config: SqliteSinkConfig, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let name = config.name().into();
        let SqliteSinkConfig { path, topic, window } = config;
        let opened = file_thread::open(&path, SqliteQueue::migrate)?;
        let thread = FileThread::start(&*runtime, "hapax-sqlite-sink", opened)?;
        Ok(Self { name, topic, window, thread, waiting: Arc::default(), runtime })
    }

    /// Lets the thread put in what waits.
    async fn put_waiting(&self) -> Result<()> {
        let (waiting, window) = (Arc::clone(&self.waiting), self.window);
        let put = move |opened: &mut FileConnection| {
            let events = {
                let mut waiting = waiting.lock();
                let count = waiting.events.len().min(MAX_PUT);
                waiting.events.drain(..count).collect::<Vec<_>>()
            };
            // An earlier call may have taken all.
            if !events.is_empty() {
                put_all(opened, events, window);
            }
            Ok(())
        };
        // Unchecked: an event whose file has gone gets its reply.
        self.thread.hand_over_unchecked(put).await.map(drop)
    }
}

fn put_all(opened: &mut FileConnection, events: Vec<WaitingEvent>, window: Duration) {
    let FileConnection { connection, file } = opened;
    let statements = |transaction: &Transaction<'_>| {
        let put = |event: &WaitingEvent| match statements::put_event(transaction, &event.put, window) {
            // It fails again, and not for the other events.
            Err(error) if is_refused(&error) => Ok(Published::Refused(format!("SQLite refuses the row: {error}"))),
            result => result.map(|is_new| Published::Yes { caught: !is_new }),
        };
        let published = events.iter().map(put).collect::<rusqlite::Result<Vec<_>>>()?;
        // Faster than they come in, so that the table does not grow.
        statements::forget_events(transaction, window, 2 * events.len() + 16)?;
        Ok(published)
    };
    let put = file.guard(|| in_transaction(connection, statements));
    let published = put.unwrap_or_else(|error| {
        let shared = Arc::new(error);
        events.iter().map(|_| failed(copy(&shared))).collect()
    });
    for (event, published) in events.into_iter().zip(published) {
        // A failed send means that the publication was dropped.
        let _ = event.reply.send(published);
    }
}

fn is_refused(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig))
}

/// The error of a transaction, for one of its events.
fn copy(error: &Arc<Error>) -> Error {
    Error::new(error.kind(), "SQLite does not take an event").caused_by(Arc::clone(error))
}

fn failed(error: Error) -> Published {
    if error.kind() == ErrorKind::Unknown {
        return Published::Unknown(error);
    }
    Published::NotPublished { after: Duration::ZERO, cause: error }
}

fn check_name(name: &str) -> Result<(), &'static str> {
    match name.chars().count() {
        0 => Err("is empty"),
        1..=MAX_NAME => Ok(()),
        _ => Err("is longer than 255 characters"),
    }
}

#[async_trait]
impl Sink for SqliteSink {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn max_len(&self) -> usize {
        Event::MAX_LEN
    }

    fn window(&self) -> Option<Duration> {
        Some(self.window)
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        self.thread.run(|connection| statements::file(connection).map_err(not_applied)).await?;
        Ok(Vec::new())
    }

    async fn publish(&self, event: &Arc<OutgoingEvent>) -> Published {
        let size = event.size();
        if size > MAX_SIZE {
            return Published::Refused(format!("the event has {size} bytes, and a queue takes {MAX_SIZE}"));
        }
        let queue = match self.topic.checked_name(event, check_name) {
            Ok(queue) => queue,
            Err(reason) => return Published::Refused(reason),
        };
        let message = Message {
            payload: event.payload.clone(),
            headers: event.published_headers("ce-"),
            ordering_key: event.ordering_key.clone(),
            ..Message::default()
        };
        let (reply, told) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            if waiting.is_closed {
                return failed(Error::new(ErrorKind::NotApplied, "the sink is closed"));
            }
            let (id, republications) = (event.id, event.republications);
            waiting.events.push(WaitingEvent { put: EventToPut { queue, id, republications, message }, reply });
        }
        let put = async {
            let ended = || Error::new(ErrorKind::Unknown, "the thread of the SQLite file has ended");
            self.put_waiting().await.map_err(|error| ended().caused_by(error))?;
            told.await.map_err(|_| ended())
        };
        let late = || Err(Error::new(ErrorKind::Unknown, "the SQLite file did not take an event in time"));
        timeout(&*self.runtime, TIME_LIMIT, put).await.unwrap_or_else(late).unwrap_or_else(failed)
    }

    async fn close(&self) {
        self.waiting.lock().is_closed = true;
        let is_empty = || self.waiting.lock().events.is_empty();
        while !is_empty() && self.put_waiting().await.is_ok() {}
        // The work behind them is done after them.
        let _ = self.thread.run(|_| Ok(())).await;
    }
}

impl fmt::Debug for SqliteSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteSink").field("name", &self.name).field("window", &self.window).finish_non_exhaustive()
    }
}
