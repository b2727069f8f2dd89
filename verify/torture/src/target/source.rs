//! The messages of a run, and the queue or stream that has them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::jetstream::{self, consumer::PullConsumer};
use hapax::broker::Message;
use hapax::stores::SqliteQueue;
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::NatsServer;
use rusqlite::Connection;
use tokio::time::sleep;

use crate::random::SplitMix;
use crate::target::options::TargetOptions;

/// The name of queue, stream, consumer and namespace.
pub(super) const NAME: &str = "orders";

/// The number of accounts, which order messages. So few that messages of each wait in the worker.
const ACCOUNTS: usize = 2;

/// The account of a message, by its place among all messages. Copies have the same.
pub(super) fn account(number: usize) -> usize {
    number % ACCOUNTS
}

/// The place of a message among all messages.
pub(super) fn number(key: &str) -> Option<usize> {
    key.strip_prefix("order-")?.parse().ok()
}

/// How often a broker that restarts is asked.
const TRIES: u32 = 600;

/// The keys of all messages in their order: three of ten come twice or three times, some of them much later.
pub(super) fn messages(options: &TargetOptions) -> Vec<String> {
    let mut random = SplitMix::new(options.seed, 100, 0);
    let mut placed = Vec::new();
    for number in 0..options.messages {
        let copies = if random.percent(30) { random.of(1..3) } else { 0 };
        let mut place = number * 100;
        placed.push((place, number));
        for _ in 0..copies {
            place += random.of(0..2000);
            placed.push((place, number));
        }
    }
    placed.sort_unstable();
    placed.into_iter().map(|(_, number)| format!("order-{number}")).collect()
}

/// Where the messages are.
#[derive(Debug)]
pub(super) enum TargetQueue {
    Sqlite(Arc<Path>),
    Nats(Box<NatsStream>),
}

/// A stream with a durable consumer.
#[derive(Debug)]
pub(super) struct NatsStream {
    pub(super) server: NatsServer,
    /// Between the workers and the server.
    pub(super) proxy: Proxy,
    has_order: bool,
    context: jetstream::Context,
}

impl TargetQueue {
    pub(super) fn sqlite(file: &Path) -> Result<Self> {
        SqliteQueue::migrate(&mut Connection::open(file)?)?;
        Ok(Self::Sqlite(file.into()))
    }

    pub(super) async fn nats(has_order: bool) -> Result<Self> {
        let server = NatsServer::start(&[]).await?;
        let proxy = Proxy::start(server.address()).await?;
        let client = async_nats::connect(server.address().to_string()).await?;
        let context = jetstream::new(client);
        let config = jetstream::stream::Config {
            name: NAME.into(),
            subjects: vec![format!("{NAME}.>")],
            ..jetstream::stream::Config::default()
        };
        let stream = context.create_stream(config).await?;
        let config = jetstream::consumer::pull::Config {
            durable_name: Some(NAME.into()),
            ack_policy: jetstream::consumer::AckPolicy::Explicit,
            ack_wait: super::world::LEASE,
            max_deliver: -1,
            ..jetstream::consumer::pull::Config::default()
        };
        stream.create_consumer(config).await?;
        Ok(Self::Nats(Box::new(NatsStream { server, proxy, has_order, context })))
    }

    /// The URL for `--source`.
    pub(super) fn url(&self) -> String {
        match self {
            Self::Sqlite(file) => format!("sqlite://{}?queue={NAME}", file.display()),
            Self::Nats(stream) => {
                let order = if stream.has_order { "&order=header:Account" } else { "" };
                format!("nats://{}/{NAME}?durable={NAME}{order}", stream.proxy.address())
            }
        }
    }

    /// Sends messages with these keys. Each is its own payload.
    pub(super) async fn send(&self, keys: &[String]) -> Result<()> {
        match self {
            Self::Sqlite(file) => {
                let (file, keys) = (Arc::clone(file), keys.to_vec());
                tokio::task::spawn_blocking(move || enqueue(&file, &keys)).await?
            }
            Self::Nats(stream) => {
                for key in keys {
                    stream.publish(key).await?;
                }
                Ok(())
            }
        }
    }

    /// How many of the messages sent are not acknowledged.
    pub(super) async fn waiting(&self, sent: usize) -> Result<usize> {
        match self {
            Self::Sqlite(file) => {
                let file = Arc::clone(file);
                tokio::task::spawn_blocking(move || count(&file)).await?
            }
            Self::Nats(stream) => stream.waiting(sent).await,
        }
    }
}

fn enqueue(file: &Path, keys: &[String]) -> Result<()> {
    let queue = SqliteQueue::new(NAME)?;
    let mut connection = open(file)?;
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    for key in keys {
        let headers = [("Idempotency-Key", key.clone())].into_iter().collect();
        queue.enqueue(&transaction, &Message { payload: key.clone().into(), headers, ..Message::default() })?;
    }
    Ok(transaction.commit()?)
}

fn count(file: &Path) -> Result<usize> {
    let count = open(file)?.query_row("select count(*) from hapax_queue", [], |row| row.get::<_, i64>(0))?;
    Ok(usize::try_from(count)?)
}

fn open(file: &Path) -> Result<Connection> {
    let connection = Connection::open(file)?;
    // A worker that is stopped may hold the lock.
    connection.busy_timeout(Duration::from_secs(60))?;
    Ok(connection)
}

impl NatsStream {
    async fn publish(&self, key: &str) -> Result<()> {
        for _ in 0..TRIES {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Idempotency-Key", key);
            headers.insert("Account", account(number(key).unwrap_or_default()).to_string());
            // A second try may be one more copy.
            let sent = self.context.publish_with_headers(format!("{NAME}.new"), headers, key.to_owned().into()).await;
            if let Ok(confirmed) = sent
                && confirmed.await.is_ok()
            {
                return Ok(());
            }
            sleep(Duration::from_millis(100)).await;
        }
        anyhow::bail!("the broker takes no message")
    }

    async fn waiting(&self, sent: usize) -> Result<usize> {
        for _ in 0..TRIES {
            if let Ok(waiting) = self.ask().await {
                return Ok(waiting.min(sent));
            }
            sleep(Duration::from_millis(100)).await;
        }
        anyhow::bail!("the broker does not tell how many messages wait")
    }

    async fn ask(&self) -> Result<usize> {
        let mut stream = self.context.get_stream(NAME).await?;
        let last = stream.info().await?.state.last_sequence;
        let mut consumer: PullConsumer = stream.get_consumer(NAME).await.map_err(anyhow::Error::msg)?;
        let info = consumer.info().await?;
        // A server that was killed may count messages that its consumer has finished.
        if info.ack_floor.stream_sequence >= last {
            return Ok(0);
        }
        let pending = usize::try_from(info.num_pending).context("a number of messages")?;
        Ok((pending + info.num_ack_pending).max(1))
    }
}
