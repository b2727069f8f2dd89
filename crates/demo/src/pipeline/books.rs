//! What the services of a run write down: requests, charges and receipts. `FileBooks` has them in the files of the run.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use async_trait::async_trait;
use hapax::stores::SqliteQueue;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use tokio::task::spawn_blocking;

use super::database::{self, CHARGES, ChargeRow, ReceiptRow, RequestRow};
use super::delivery::REDELIVERED;
use super::ingest::message;
use crate::random::{RandomStream, RandomTopic};

/// What the demo reads while the services write, and the faults that only the keeper of their queues can cause.
#[async_trait]
pub(super) trait ShopBooks: fmt::Debug + Send + Sync + 'static {
    /// How far the work has come.
    async fn backlog(&self) -> Result<Backlog>;

    /// The numbers of charges and of receipts.
    async fn counts(&self) -> Result<(u64, u64)>;

    /// Whether the event of each charge is published.
    async fn is_all_published(&self) -> Result<bool>;

    /// Whether a request for this payment has arrived.
    async fn has_request(&self, payment: u32) -> Result<bool>;

    /// Puts copies of some earlier messages into the queue of the workers.
    async fn redeliver(&self, instance: (u64, u32), copies: u32) -> Result<()>;

    /// Lets the broker forget the events that it has seen, as at the end of its window.
    async fn forget(&self) -> Result<()>;

    /// Reads everything.
    async fn rows(&self) -> Result<BookRows>;

    /// Removes what the run has created on servers.
    async fn remove(&self) -> Result<()>;

    /// How long to wait before the next look, and how long copies that nobody counts may be on their way.
    fn pauses(&self) -> (Duration, Duration);
}

/// How far the work has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    /// Messages for the workers.
    pub(super) queue: u64,
    /// Events that are not published.
    pub(super) outbox: u64,
    /// Events for the consumers.
    pub(super) broker: u64,
}

/// Everything that the services of a run have written.
#[derive(Debug, Default)]
pub(super) struct BookRows {
    /// Every list is in the order of the ids.
    pub(super) requests: Vec<RequestRow>,
    pub(super) charges: Vec<ChargeRow>,
    pub(super) receipts: Vec<ReceiptRow>,
    /// Events in the outbox.
    pub(super) events: u64,
    /// Messages and events that nobody could process, and keys that wait for an operator.
    pub(super) dead: u64,
    pub(super) parked: u64,
    /// Where the messages and events lie that had an effect, where a broker says it.
    pub(super) places: HashSet<String>,
}

/// The files of shop and consumer, as the demo opens them.
pub(super) struct FileBooks {
    /// Readers never wait for a paused writer, writers do: so they have connections of their own.
    shop: Mutex<Connection>,
    post: Mutex<Connection>,
    writers: Writers,
}

impl FileBooks {
    /// Creates the files.
    pub(super) fn create(shop: &Path, post: &Path) -> Result<Self> {
        Ok(Self {
            shop: Mutex::new(database::open_shop(shop)?),
            post: Mutex::new(database::open_post(post)?),
            writers: Writers(Arc::new(Mutex::new((database::open_shop(shop)?, database::open_post(post)?)))),
        })
    }
}

#[async_trait]
impl ShopBooks for FileBooks {
    async fn backlog(&self) -> Result<Backlog> {
        let (shop, post) = (self.shop.lock(), self.post.lock());
        Ok(Backlog {
            queue: database::count(&shop, "hapax_queue")?,
            outbox: database::count(&shop, "hapax_outbox where state = 0")?,
            broker: database::count(&post, "hapax_queue")?,
        })
    }

    async fn counts(&self) -> Result<(u64, u64)> {
        let charges = database::count(&self.shop.lock(), "charge")?;
        Ok((charges, database::count(&self.post.lock(), "receipt")?))
    }

    async fn is_all_published(&self) -> Result<bool> {
        let charges = database::count(&self.shop.lock(), "charge")?;
        let post = self.post.lock();
        Ok(charges <= database::count(&post, "receipt")? + database::count(&post, "hapax_queue")?)
    }

    async fn has_request(&self, payment: u32) -> Result<bool> {
        Ok(database::count_requests(&self.shop.lock(), payment)? > 0)
    }

    async fn redeliver(&self, instance: (u64, u32), copies: u32) -> Result<()> {
        self.writers.run(move |shop, _| copy_messages(shop, instance, copies)).await
    }

    async fn forget(&self) -> Result<()> {
        self.writers.run(|_, post| Ok(post.execute("delete from hapax_queue_event", []).map(drop)?)).await
    }

    async fn rows(&self) -> Result<BookRows> {
        let (shop, post) = (self.shop.lock(), self.post.lock());
        Ok(BookRows {
            requests: database::requests(&shop)?,
            charges: database::charges(&shop)?,
            receipts: database::receipts(&post)?,
            events: database::count(&shop, "hapax_outbox")?,
            dead: database::count(&shop, "hapax_dead")? + database::count(&post, "hapax_dead")?,
            parked: database::count(&shop, "hapax_parked")?,
            places: HashSet::new(),
        })
    }

    async fn remove(&self) -> Result<()> {
        // The files are in the folder of the run.
        Ok(())
    }

    fn pauses(&self) -> (Duration, Duration) {
        // A queue in a file counts every message.
        (Duration::from_millis(1), Duration::ZERO)
    }
}

impl fmt::Debug for FileBooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBooks").finish_non_exhaustive()
    }
}

/// How long others may write to a file.
const PATIENCE: Duration = Duration::from_secs(60);

/// The connections with which the demo writes to the shop and to the post.
#[derive(Clone)]
struct Writers(Arc<Mutex<(Connection, Connection)>>);

impl Writers {
    /// Runs statements on a thread of their own: a paused process may have the lock of the file. Tries again as long as
    /// others write.
    async fn run(&self, write: impl Fn(&mut Connection, &mut Connection) -> Result<()> + Send + 'static) -> Result<()> {
        let writers = Arc::clone(&self.0);
        let written = spawn_blocking(move || {
            let (shop, post) = &mut *writers.lock();
            let started = Instant::now();
            loop {
                match write(shop, post) {
                    Err(_) if started.elapsed() < PATIENCE => {}
                    result => return result,
                }
            }
        });
        written.await?
    }
}

/// Enqueues the messages of some earlier requests once more.
fn copy_messages(shop: &mut Connection, (seed, round): (u64, u32), copies: u32) -> Result<()> {
    let queue = SqliteQueue::new(CHARGES)?;
    let mut random = RandomStream::new(seed, RandomTopic::Redelivery, &[round.into()]);
    let transaction = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for _ in 0..copies {
        let Some(request) = earlier_request(&transaction, random.next_number())? else { break };
        let mut message = message(&request.order, &request.operation);
        message.headers.push(REDELIVERED, "1");
        queue.enqueue(&transaction, &message)?;
    }
    transaction.commit().context("cannot deliver messages again")
}

fn earlier_request(shop: &Connection, random: u64) -> Result<Option<RequestRow>> {
    let newest: Option<i64> = shop.query_row("select max(id) from request", [], |row| row.get(0)).optional()?.flatten();
    let Some(newest) = newest else { return Ok(None) };
    let from = 1 + i64::try_from(random % newest.unsigned_abs())?;
    Ok(database::enqueued_request(shop, from)?)
}
