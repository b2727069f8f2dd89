use anyhow::Result;
use futures_util::future::try_join_all;
use hapax_testkit::servers::{ElasticMqServer, KafkaServer, PostgresServer, RabbitMqServer};
use tokio::task::block_in_place;

use crate::audit::count_finished;
use crate::faults::SESSION;
use crate::fifo::TransferFifo;
use crate::order::WorkerOrder;
use crate::queue::TransferQueue;
use crate::run::SourceBroker;
use crate::topic::TransferTopic;

/// The brokers of a run, and the topic or the queue there.
pub(crate) enum WorkerBroker {
    Kafka { servers: Vec<KafkaServer>, topic: TransferTopic },
    RabbitMq { servers: Vec<RabbitMqServer>, queue: Box<TransferQueue> },
    Sqs { server: ElasticMqServer, queue: Box<TransferFifo> },
}

/// How far the workers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkerProgress {
    /// Of each partition, the committed offset and the end.
    Offsets { committed: Vec<i64>, ends: Vec<i64> },
    /// Messages that are left, and transfers that are done.
    Queue { left: u32, finished: usize },
}

impl WorkerProgress {
    /// Whether the workers have processed all of so many transfers.
    pub(crate) fn is_complete(&self, transfers: usize) -> bool {
        match self {
            Self::Offsets { committed, ends } => committed == ends,
            Self::Queue { left, finished } => *left == 0 && *finished == transfers,
        }
    }
}

impl WorkerBroker {
    pub(crate) async fn start(name: SourceBroker, count: usize) -> Result<Self> {
        Ok(match name {
            SourceBroker::Kafka => {
                let servers = match count {
                    1 => vec![KafkaServer::start(&[]).await?],
                    count => KafkaServer::start_cluster(count).await?,
                };
                let hosts: Vec<String> = servers.iter().map(|server| server.address().to_string()).collect();
                let topic = TransferTopic::create(&hosts.join(","), servers.len().min(3)).await?;
                Self::Kafka { servers, topic }
            }
            SourceBroker::RabbitMq => {
                let servers = match count {
                    1 => vec![RabbitMqServer::start(&[]).await?],
                    count => RabbitMqServer::start_cluster(count).await?,
                };
                let queue = TransferQueue::create(servers.iter().map(RabbitMqServer::url).collect()).await?;
                keep_queues(&servers).await?;
                Self::RabbitMq { servers, queue: Box::new(queue) }
            }
            SourceBroker::Sqs => {
                let server = ElasticMqServer::start(&[]).await?;
                let queue = Box::new(TransferFifo::create(&server).await?);
                Self::Sqs { server, queue }
            }
        })
    }

    /// The URL for the workers.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Kafka { servers, .. } => {
                let hosts: Vec<String> = servers.iter().map(|server| server.address().to_string()).collect();
                let session = SESSION.as_secs();
                format!("kafka://{}/transfers?group=bank&session-timeout={session}", hosts.join(","))
            }
            Self::RabbitMq { queue, .. } => queue.url(),
            Self::Sqs { queue, .. } => queue.url(),
        }
    }

    /// The program of the workers with a ledger.
    pub(crate) fn program(&self) -> &'static str {
        match self {
            Self::Kafka { .. } => "example-worker-kafka",
            Self::RabbitMq { .. } => "example-worker-rabbitmq",
            Self::Sqs { .. } => "hapax-worker-torture-ledger",
        }
    }

    /// Whether the transfers of a payer are processed in the order in which they were sent.
    pub(crate) fn keeps_order(&self) -> bool {
        match self {
            Self::Kafka { .. } => true,
            // Four workers share the queue.
            Self::RabbitMq { .. } => false,
            // After its restart the stand-in delivers later messages of a group while a worker has earlier ones.
            Self::Sqs { .. } => false,
        }
    }

    pub(crate) async fn send(&mut self, order: &WorkerOrder) -> Result<()> {
        match self {
            Self::Kafka { topic, .. } => topic.send(order),
            Self::RabbitMq { queue, .. } => queue.send(order).await,
            Self::Sqs { queue, .. } => queue.send(order).await,
        }
    }

    /// Waits until the brokers have everything.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        match self {
            Self::Kafka { topic, .. } => block_in_place(|| topic.flush()),
            Self::RabbitMq { queue, .. } => queue.flush().await,
            Self::Sqs { queue, .. } => queue.flush().await,
        }
    }

    pub(crate) async fn wait_until_served(&mut self) -> Result<()> {
        match self {
            Self::Kafka { topic, .. } => topic.wait_until_served().await,
            Self::RabbitMq { queue, .. } => queue.wait_until_served().await,
            Self::Sqs { queue, .. } => queue.wait_until_served().await,
        }
    }

    /// An error while a broker is down.
    pub(crate) async fn progress(&mut self, database: &PostgresServer) -> Result<WorkerProgress> {
        Ok(match self {
            Self::Kafka { topic, .. } => {
                let (committed, ends) = block_in_place(|| Ok::<_, anyhow::Error>((topic.committed()?, topic.ends()?)))?;
                WorkerProgress::Offsets { committed, ends }
            }
            Self::RabbitMq { queue, .. } => {
                WorkerProgress::Queue { left: queue.ready().await?, finished: count_finished(database).await? }
            }
            Self::Sqs { queue, .. } => {
                WorkerProgress::Queue { left: queue.left().await?, finished: count_finished(database).await? }
            }
        })
    }

    /// Deletes the topic or the queue, and creates it again. Nothing may be on the way.
    pub(crate) async fn recreate(&mut self) -> Result<()> {
        match self {
            Self::Kafka { topic, .. } => topic.recreate().await,
            Self::RabbitMq { servers, queue } => {
                queue.recreate().await?;
                keep_queues(servers).await
            }
            Self::Sqs { queue, .. } => queue.recreate().await,
        }
    }

    /// Kills one (SIGKILL). One after the other is chosen by growing numbers. The stand-in for SQS ends in order: after
    /// SIGKILL it may have forgotten its queue.
    pub(crate) async fn kill(&self, number: usize) -> Result<()> {
        match self {
            Self::Kafka { servers, .. } => servers[number % servers.len()].kill(),
            Self::RabbitMq { servers, .. } => servers[number % servers.len()].kill(),
            Self::Sqs { server, .. } => drop(server.terminate().await?),
        }
        Ok(())
    }

    pub(crate) async fn restart(&self, number: usize) -> Result<()> {
        match self {
            Self::Kafka { servers, .. } => servers[number % servers.len()].restart().await?,
            Self::RabbitMq { servers, .. } => servers[number % servers.len()].restart().await?,
            Self::Sqs { server, .. } => server.restart().await?,
        }
        Ok(())
    }

    /// As [`kill`](Self::kill), for all of them.
    pub(crate) async fn kill_all(&self) -> Result<()> {
        match self {
            Self::Kafka { servers, .. } => servers.iter().for_each(KafkaServer::kill),
            Self::RabbitMq { servers, .. } => servers.iter().for_each(RabbitMqServer::kill),
            Self::Sqs { server, .. } => drop(server.terminate().await?),
        }
        Ok(())
    }

    pub(crate) async fn restart_all(&self) -> Result<()> {
        match self {
            Self::Kafka { servers, .. } => drop(try_join_all(servers.iter().map(KafkaServer::restart)).await?),
            Self::RabbitMq { servers, .. } => drop(try_join_all(servers.iter().map(RabbitMqServer::restart)).await?),
            Self::Sqs { server, .. } => server.restart().await?,
        }
        Ok(())
    }

    /// The number of messages that are left after all workers have ended. None if the broker keeps them.
    pub(crate) async fn left(&mut self) -> Result<Option<u32>> {
        match self {
            Self::Kafka { .. } => Ok(None),
            Self::RabbitMq { queue, .. } => queue.ready().await.map(Some),
            Self::Sqs { queue, .. } => queue.left().await.map(Some),
        }
    }
}

/// Restarts nodes in order: each keeps the names of its quorum queues in memory for a while. After SIGKILL it takes a
/// young queue for a new one, which has no leader.
async fn keep_queues(servers: &[RabbitMqServer]) -> Result<()> {
    try_join_all(servers.iter().map(RabbitMqServer::terminate)).await?;
    try_join_all(servers.iter().map(RabbitMqServer::restart)).await?;
    Ok(())
}
