use std::time::Duration;

use anyhow::Result;
use hapax_testkit::servers::{
    BrokerKind, BrokerServer, KafkaServer, NatsServer, PostgresServer, PostgresServerOptions, RabbitMqServer,
    RedisKind, RedisServer, RedisServerOptions,
};
use hapax_torture::SplitMix;
use tokio::time::sleep;

/// The broker of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DemoBroker {
    Kafka,
    Nats,
    RabbitMq,
}

impl DemoBroker {
    pub(crate) const ALL: [Self; 3] = [Self::Kafka, Self::Nats, Self::RabbitMq];

    /// The name in URLs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Nats => "nats",
            Self::RabbitMq => "rabbitmq",
        }
    }

    /// The name for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Kafka => "Kafka",
            Self::Nats => "NATS",
            Self::RabbitMq => "RabbitMQ",
        }
    }
}

/// The servers of a run. They end when this is dropped.
pub(crate) struct DemoServers {
    store: RedisServer,
    database: PostgresServer,
    broker: RunningBroker,
}

enum RunningBroker {
    Kafka(KafkaServer),
    Nats(NatsServer),
    RabbitMq(RabbitMqServer),
}

/// How often each server was killed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServerKills {
    pub(crate) store: u32,
    pub(crate) database: u32,
    pub(crate) broker: u32,
}

impl DemoServers {
    /// Starts the three servers. A killed one finds what it had confirmed.
    pub(crate) async fn start(broker: DemoBroker) -> Result<Self> {
        let durable = RedisServerOptions::new(RedisKind::Redis).with_args(&["--appendonly", "yes"]);
        Ok(Self {
            store: RedisServer::start(durable).await?,
            database: PostgresServer::start(PostgresServerOptions::new()).await?,
            broker: match broker {
                DemoBroker::Kafka => RunningBroker::Kafka(KafkaServer::start(&[]).await?),
                DemoBroker::Nats => RunningBroker::Nats(NatsServer::start(&[]).await?),
                DemoBroker::RabbitMq => RunningBroker::RabbitMq(RabbitMqServer::start(&[]).await?),
            },
        })
    }

    /// The flags of the demo that name the servers.
    pub(crate) fn flags(&self) -> [String; 6] {
        let broker = match &self.broker {
            RunningBroker::Kafka(server) => server.url(),
            RunningBroker::Nats(server) => server.url(),
            RunningBroker::RabbitMq(server) => server.url(),
        };
        let [store, database, named] = ["--store", "--database", "--broker"].map(str::to_owned);
        [store, self.store.url(), database, self.database.url(), named, broker]
    }

    /// Lets the broker keep what it has confirmed through every kill from now on.
    pub(crate) async fn keep_queues(&self) -> Result<()> {
        match &self.broker {
            RunningBroker::Kafka(_) | RunningBroker::Nats(_) => {}
            // A node keeps the names of its quorum queues in memory for a while. After SIGKILL it takes a young queue
            // for a new one, which has no leader. So it ends in order first.
            RunningBroker::RabbitMq(server) => {
                server.terminate().await?;
                server.restart().await?;
            }
        }
        Ok(())
    }

    /// Kills one of the servers (SIGKILL), and starts it again within a second.
    pub(crate) async fn kill_one(&self, random: &mut SplitMix, kills: &mut ServerKills) -> Result<()> {
        let outage = Duration::from_millis(u64::from(random.of(0..1000)));
        match random.of(0..3) {
            0 => {
                self.store.kill();
                sleep(outage).await;
                self.store.restart().await?;
                kills.store += 1;
            }
            1 => {
                self.database.kill();
                sleep(outage).await;
                self.database.restart().await?;
                kills.database += 1;
            }
            _ => {
                self.broker.kill_and_restart(outage).await?;
                kills.broker += 1;
            }
        }
        Ok(())
    }
}

impl RunningBroker {
    async fn kill_and_restart(&self, outage: Duration) -> Result<()> {
        match self {
            Self::Kafka(server) => kill_and_restart(server, outage).await,
            Self::Nats(server) => kill_and_restart(server, outage).await,
            Self::RabbitMq(server) => kill_and_restart(server, outage).await,
        }
    }
}

async fn kill_and_restart<K: BrokerKind>(server: &BrokerServer<K>, outage: Duration) -> Result<()> {
    server.kill();
    sleep(outage).await;
    Ok(server.restart().await?)
}
