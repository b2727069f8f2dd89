//! The relay, beside a loop that reads rows, publishes them and marks them. Relay, database and broker share the cores.
//!
//! ```text
//! drain.rs     runs a relay until all rows are published
//! bare.rs      the same without the relay
//! brokers.rs   what both publish to: nats.rs, kafka.rs, rabbitmq.rs
//! latency.rs   from the insert of an event to its delivery
//! takeover.rs  from the death of a relay process to the delivery of its events
//! ```

mod bare;
mod brokers;
mod drain;
mod kafka;
mod latency;
mod nats;
mod rabbitmq;
mod takeover;

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use hapax_stores::{PostgresTables, PostgresUrl};
use hapax_testkit::servers::{PostgresServer, PostgresServerOptions};
use tokio::runtime::{Builder, Runtime};

use crate::harness::{Limit, MeasuredBatch, Subject, once};
use brokers::BenchBroker;
use kafka::KafkaBroker;
use latency::LatencyPlan;
use nats::NatsBroker;
use rabbitmq::RabbitMqBroker;
pub(crate) use takeover::publish_until_end;

/// The events of one measurement.
const EVENTS: usize = 60_000;

/// The events of a large and of a small backlog.
const LARGE: usize = 1_000_000;
const SMALL: usize = 100_000;

pub(crate) fn all() -> anyhow::Result<Vec<Subject>> {
    let bench = Rc::new(RelayBench::start()?);
    let mut subjects = vec![
        throughput(&bench, "relay, PostgreSQL to NATS", BrokerName::Nats),
        throughput(&bench, "relay, PostgreSQL to Kafka", BrokerName::Kafka),
        throughput(&bench, "relay, PostgreSQL to RabbitMQ", BrokerName::RabbitMq),
    ];
    subjects.extend(latencies(&bench));
    subjects.push(takeover(&bench));
    Ok(subjects)
}

/// The rate at which a relay drains a large backlog.
pub(crate) fn backlog() -> anyhow::Result<Vec<Subject>> {
    let bench = Rc::new(RelayBench::start()?);
    Ok(vec![Subject {
        name: "relay, a backlog of 1,000,000 rows",
        what: "an event from PostgreSQL to NATS",
        run: once(bench.by_relay(BrokerName::Nats, LARGE)),
        limit: Some(Limit {
            what: "the same with a backlog of 100,000 rows",
            run: once(bench.by_relay(BrokerName::Nats, SMALL)),
            at_least: Some(0.8),
        }),
    }])
}

fn throughput(bench: &Rc<RelayBench>, name: &'static str, broker: BrokerName) -> Subject {
    Subject {
        name,
        what: "an event of 53 bytes, read, published, confirmed and marked; 10,000 ordering keys, 1,024 in flight",
        run: bench.by_relay(broker, EVENTS),
        limit: Some(Limit {
            what: "a bare loop that selects 1,024 rows, publishes all of them with the driver, waits, and marks them",
            run: bench.by_bare_loop(broker, EVENTS),
            at_least: Some(0.7),
        }),
    }
}

fn latencies(bench: &Rc<RelayBench>) -> Vec<Subject> {
    let subject = |name, what, plan: LatencyPlan| Subject {
        name,
        what,
        run: bench.delivers(plan.with_notifications()),
        limit: Some(Limit { what: "microseconds without LISTEN", run: bench.delivers(plan), at_least: None }),
    };
    vec![
        subject(
            "relay, insert to delivery at 1,000 events a second",
            "no rate: microseconds of the p99, from before the insert until a consumer of JetStream has the event; \
             with LISTEN, a notification every 20 ms at most; 50,000 is the aim",
            LatencyPlan::busy(),
        ),
        subject(
            "relay, insert to delivery at 5 events a second",
            "no rate: microseconds of the p99, as above",
            LatencyPlan::quiet(),
        ),
    ]
}

fn takeover(bench: &Rc<RelayBench>) -> Subject {
    let this = Rc::clone(bench);
    Subject {
        name: "relay, after kill -9 of one of two",
        what: "no rate: milliseconds from the kill until the last of 640 events that were emitted behind it is \
               delivered; the lease is 10 s, so 11,000 is the aim",
        run: Box::new(move || {
            let nats = this.nats()?;
            this.runtime.block_on(takeover::measure(&this, &nats))
        }),
        limit: None,
    }
}

#[derive(Clone, Copy)]
enum BrokerName {
    Nats,
    Kafka,
    RabbitMq,
}

/// The servers of the benchmark. A broker starts with the first measurement that needs it.
struct RelayBench {
    // End before the runtime that drives their connections.
    nats: OnceCell<Rc<NatsBroker>>,
    kafka: OnceCell<Rc<KafkaBroker>>,
    rabbitmq: OnceCell<Rc<RabbitMqBroker>>,
    postgres: PostgresServer,
    topics: Cell<usize>,
    runtime: Runtime,
}

impl RelayBench {
    fn start() -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let postgres = runtime.block_on(async {
            let server = PostgresServer::start(PostgresServerOptions::new()).await?;
            PostgresTables::connect(&server.url().parse()?)?.create().await?;
            server.client().await?.batch_execute(include_str!("relay/tables.sql")).await?;
            anyhow::Ok(server)
        })?;
        let (nats, kafka, rabbitmq) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Ok(Self { nats, kafka, rabbitmq, postgres, topics: Cell::new(0), runtime })
    }

    fn url(&self) -> anyhow::Result<PostgresUrl> {
        Ok(self.postgres.url().parse()?)
    }

    fn nats(&self) -> anyhow::Result<Rc<NatsBroker>> {
        if self.nats.get().is_none() {
            self.nats.set(Rc::new(NatsBroker::start(&self.runtime)?)).ok();
        }
        Ok(Rc::clone(self.nats.get().expect("the lines above set it")))
    }

    fn kafka(&self) -> anyhow::Result<Rc<KafkaBroker>> {
        if self.kafka.get().is_none() {
            self.kafka.set(Rc::new(KafkaBroker::start(&self.runtime)?)).ok();
        }
        Ok(Rc::clone(self.kafka.get().expect("the lines above set it")))
    }

    fn rabbitmq(&self) -> anyhow::Result<Rc<RabbitMqBroker>> {
        if self.rabbitmq.get().is_none() {
            self.rabbitmq.set(Rc::new(RabbitMqBroker::start(&self.runtime)?)).ok();
        }
        Ok(Rc::clone(self.rabbitmq.get().expect("the lines above set it")))
    }

    fn broker(&self, name: BrokerName) -> anyhow::Result<Rc<dyn BenchBroker>> {
        match name {
            BrokerName::Nats => Ok(self.nats()?),
            BrokerName::Kafka => Ok(self.kafka()?),
            BrokerName::RabbitMq => Ok(self.rabbitmq()?),
        }
    }

    /// A name that no topic had before.
    fn new_topic(&self) -> String {
        self.topics.set(self.topics.get() + 1);
        format!("topic-{}", self.topics.get())
    }

    fn by_relay(self: &Rc<Self>, broker: BrokerName, events: usize) -> MeasuredBatch {
        let this = Rc::clone(self);
        Box::new(move || {
            let (broker, topic) = (this.broker(broker)?, this.new_topic());
            this.runtime.block_on(async {
                broker.create(&topic).await?;
                this.fill("hapax_outbox", include_str!("relay/fill.sql"), &topic, events).await?;
                let result = drain::drain(&this.url()?, broker.sink().await?, events).await?;
                broker.remove(&topic).await?;
                Ok(result)
            })
        })
    }

    fn by_bare_loop(self: &Rc<Self>, broker: BrokerName, events: usize) -> MeasuredBatch {
        let this = Rc::clone(self);
        Box::new(move || {
            let (broker, topic) = (this.broker(broker)?, this.new_topic());
            this.runtime.block_on(async {
                broker.create(&topic).await?;
                this.fill("bare_outbox", include_str!("relay/fill_bare.sql"), &topic, events).await?;
                let result = bare::drain(&this.postgres, &*broker, &topic, events).await?;
                broker.remove(&topic).await?;
                Ok(result)
            })
        })
    }

    fn delivers(self: &Rc<Self>, plan: LatencyPlan) -> MeasuredBatch {
        let this = Rc::clone(self);
        Box::new(move || {
            let nats = this.nats()?;
            this.runtime.block_on(latency::measure(&this, &nats, plan))
        })
    }

    /// Leaves nothing in the table but these events.
    async fn fill(&self, table: &str, sql: &str, topic: &str, events: usize) -> anyhow::Result<()> {
        let client = self.postgres.client().await?;
        client.batch_execute(&format!("truncate {table}")).await?;
        client.execute(sql, &[&topic, &i64::try_from(events)?]).await?;
        client.batch_execute(&format!("vacuum (analyze) {table}")).await?;
        Ok(client.batch_execute("checkpoint").await?)
    }
}
