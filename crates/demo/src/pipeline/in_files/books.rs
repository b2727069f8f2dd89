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

use super::database;
use crate::pipeline::books::{Backlog, BookRows, ShopBooks};
use crate::pipeline::delivery::REDELIVERED;
use crate::pipeline::messages::{CHARGES, message};
use crate::pipeline::rows::RequestRow;
use crate::random::{RandomStream, RandomTopic};

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
