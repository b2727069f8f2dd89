use std::cell::Cell;

use anyhow::Context;
use hapax_stores::PostgresTables;
use hapax_systems::{BrokerUrl, TopicPlan};
use hapax_testkit::servers::{
    KafkaServer, NatsServer, PostgresServer, PostgresServerOptions, RedisKind, RedisServer, RedisServerOptions,
};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::stages::StagePlaces;
use crate::subjects::worker::unpack;

/// The servers between the processes of a pipeline.
pub(super) struct PipelineServers {
    pub(super) redis: RedisServer,
    kafka: KafkaServer,
    postgres: PostgresServer,
    nats: NatsServer,
    folder: TempDir,
    created: Cell<usize>,
    // Last: the servers end before the runtime that drives their connections.
    pub(super) runtime: Runtime,
}

impl PipelineServers {
    pub(super) fn start() -> anyhow::Result<Self> {
        for service in ["redis", "kafka", "postgres", "nats"] {
            unpack(service)?;
        }
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let options = RedisServerOptions::new(RedisKind::Redis).with_args(&["--appendonly", "yes"]).with_system_clock();
        Ok(Self {
            redis: runtime.block_on(RedisServer::start(options))?,
            kafka: runtime.block_on(KafkaServer::start(&[]))?,
            postgres: runtime.block_on(PostgresServer::start(PostgresServerOptions::new()))?,
            nats: runtime.block_on(NatsServer::start(&[]))?,
            folder: tempfile::tempdir()?,
            created: Cell::new(0),
            runtime,
        })
    }

    /// The processes of the servers.
    pub(super) fn pids(&self) -> anyhow::Result<[(&'static str, u32); 4]> {
        let running = |pid: Option<u32>| pid.context("a server has ended");
        Ok([
            ("Redis", running(self.redis.pid())?),
            ("Kafka", running(self.kafka.pid())?),
            ("PostgreSQL", running(self.postgres.pid())?),
            ("NATS", running(self.nats.pid())?),
        ])
    }

    /// A topic, a schema and a stream for one run.
    pub(super) async fn prepare(&self) -> anyhow::Result<StagePlaces> {
        let run = self.created.replace(self.created.get() + 1);
        let (topic, schema, subject) = (format!("charges-{run}"), format!("run_{run}"), format!("receipts-{run}"));
        let database = format!("{}?schema={schema}", self.postgres.url());
        PostgresTables::connect(&database.parse()?)?.create().await?;
        let table = format!("create table {schema}.payment (number bigint not null, amount integer not null)");
        self.postgres.client().await?.batch_execute(&table).await?;
        let kafka = self.kafka.address().to_string();
        for (broker, name) in [(self.kafka.url(), &topic), (self.nats.url(), &subject)] {
            broker.parse::<BrokerUrl>()?.create(&TopicPlan::new("", name)).await?;
        }
        let stamps = self.folder.path().join(format!("stamps-{run}"));
        Ok(StagePlaces { kafka, topic, database, nats: self.nats.url(), subject, stamps })
    }
}
