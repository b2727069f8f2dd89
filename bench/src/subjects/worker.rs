//! The worker, beside loops that do the same without it. Client, broker and database share the cores.
//!
//! ```text
//! drain.rs    runs a worker until it has processed a number of messages
//! loops.rs    what a loop without the worker does with its messages
//! kafka.rs    topics, and loops that read them with the driver alone
//! nats.rs     the same for streams of JetStream
//! rabbitmq.rs the same for queues of RabbitMQ
//! sqs.rs      the same for queues of SQS
//! sqlite.rs   a queue and a ledger in one file
//! backlog.rs  the memory of a worker process
//! ```

mod backlog;
mod drain;
mod kafka;
mod loops;
mod nats;
mod rabbitmq;
mod sqlite;
mod sqs;

use std::cell::OnceCell;
use std::process::{Command, Stdio};
use std::rc::Rc;

use hapax_core::ledger::Terms;
use hapax_stores::{PostgresLedger, PostgresUrl};
use hapax_testkit::servers::{PostgresServer, PostgresServerOptions};
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use crate::harness::{BatchResult, Limit, MeasuredBatch, Subject};
use crate::subjects::statements::TABLES;
pub(crate) use backlog::drain_and_report;
use drain::DrainPlan;
use kafka::KafkaTopics;
use loops::LoopKind;
pub(crate) use rabbitmq::connect as connect_to_rabbitmq;

/// The messages of one transaction.
const BATCH: usize = 256;

/// The messages of one measurement: few where each has a transaction of its own, which waits for the disk.
const BATCHED: usize = 160 * BATCH;
const SINGLE: usize = 4_000;

/// How many transactions run at once where that is not one. It is the default of the worker.
const AT_ONCE: usize = 4;

/// A message that is sent: its key, and its payload.
const PAYLOAD: &[u8] = b"{\"account\":\"acme-0042\",\"amount\":500,\"currency\":\"eur\"}";

pub(crate) fn all() -> anyhow::Result<Vec<Subject>> {
    let servers = Rc::new(Servers::start()?);
    let mut subjects = in_batches(&servers);
    subjects.extend(one_by_one(&servers));
    subjects.push(duplicates(&servers));
    subjects.push(nats::batches(&servers));
    subjects.push(rabbitmq::batches(&servers));
    subjects.push(sqs::batches(&servers));
    subjects.push(sqlite::batches());
    subjects.extend(published_patterns(&servers));
    subjects.push(backlog::memory(&servers, 100_000));
    Ok(subjects)
}

/// The memory of a worker process in front of a backlog of this many messages.
pub(crate) fn backlog(messages: usize) -> anyhow::Result<Vec<Subject>> {
    Ok(vec![backlog::memory(&Rc::new(Servers::start()?), messages)])
}

fn in_batches(servers: &Rc<Servers>) -> Vec<Subject> {
    let bare = |loops| LoopPlan { kind: LoopKind::Claims, loops, batch: BATCH, messages: BATCHED };
    let ledger = LoopPlan { kind: LoopKind::Ledger, loops: 1, batch: BATCH, messages: BATCHED };
    let worker = |at_once| DrainPlan::new(BATCHED, at_once, BATCH);
    vec![
        Subject {
            name: "worker, Kafka to PostgreSQL, batches",
            what: "an insert with its row of the ledger, 256 to a transaction, 4 transactions at once",
            run: servers.by_worker(worker(AT_ONCE)),
            limit: Some(Limit {
                what: "the same set-based inserts with bare claim rows, 256 to a transaction, by a bare loop",
                run: servers.by_loops(bare(1)),
                at_least: Some(0.7),
            }),
        },
        Subject {
            name: "worker, Kafka to PostgreSQL, batches, beside 4 loops",
            what: "the same",
            run: servers.by_worker(worker(AT_ONCE)),
            limit: Some(Limit {
                what: "the same by 4 bare loops",
                run: servers.by_loops(bare(AT_ONCE)),
                at_least: None,
            }),
        },
        Subject {
            name: "worker, Kafka to PostgreSQL, one batch at once",
            what: "the same with one transaction at once",
            run: servers.by_worker(worker(1)),
            limit: Some(Limit { what: "the same by a bare loop", run: servers.by_loops(bare(1)), at_least: None }),
        },
        Subject {
            name: "worker, its own share",
            what: "the same with one transaction at once",
            run: servers.by_worker(worker(1)),
            limit: Some(Limit {
                what: "the ledger in a loop without the worker",
                run: servers.by_loops(ledger),
                at_least: None,
            }),
        },
    ]
}

fn one_by_one(servers: &Rc<Servers>) -> Vec<Subject> {
    let subject = |name, what, limit, at_once| Subject {
        name,
        what,
        run: servers.by_worker(DrainPlan::new(SINGLE, at_once, 1)),
        limit: Some(Limit {
            what: limit,
            run: servers.by_loops(LoopPlan { kind: LoopKind::Claims, loops: at_once, batch: 1, messages: SINGLE }),
            at_least: Some(0.9),
        }),
    };
    vec![
        subject(
            "worker, Kafka to PostgreSQL, single",
            "an insert in a transaction of its own, with its row of the ledger; 4 at once",
            "the same insert with a bare claim row, by 4 bare loops",
            AT_ONCE,
        ),
        subject(
            "worker, Kafka to PostgreSQL, single, one at once",
            "the same with one transaction at once",
            "the same by a bare loop",
            1,
        ),
    ]
}

fn duplicates(servers: &Rc<Servers>) -> Subject {
    let plan = DrainPlan::new(BATCHED, AT_ONCE, BATCH);
    let drained = Rc::new(OnceCell::new());
    let (first, again) = (Rc::clone(servers), Rc::clone(servers));
    let topic = Rc::clone(&drained);
    Subject {
        name: "worker, Kafka to PostgreSQL, duplicates",
        what: "a message whose operation has ended, 256 to a transaction, 4 transactions at once",
        run: Box::new(move || {
            if topic.get().is_none() {
                let fresh = again.kafka.topic(&again.runtime, plan.messages)?;
                again.drain(&fresh, plan)?;
                topic.set(fresh).ok();
            }
            again.drain(topic.get().expect("the lines above set it"), plan.caught())
        }),
        limit: Some(Limit { what: "the first pass", run: first.by_worker(plan), at_least: Some(2.0) }),
    }
}

fn published_patterns(servers: &Rc<Servers>) -> Vec<Subject> {
    let subject = |name, what, kind| Subject {
        name,
        what,
        run: servers.by_loops(LoopPlan { kind, loops: AT_ONCE, batch: 1, messages: SINGLE }),
        limit: Some(Limit {
            what: "the worker, 4 single transactions at once",
            run: servers.by_worker(DrainPlan::new(SINGLE, AT_ONCE, 1)),
            at_least: None,
        }),
    };
    vec![
        subject(
            "published pattern, SELECT FOR UPDATE",
            "INSERT, SELECT FOR UPDATE, the effect and UPDATE for each message, in a transaction of its own; 4 loops",
            LoopKind::Locked,
        ),
        subject(
            "published pattern, Redis keys",
            "SET NX of a lock, GET of a result, the effect, SET of the result, DEL of the lock; 4 loops. A crash \
             between effect and result repeats the effect",
            LoopKind::RedisKeys,
        ),
    ]
}

/// Loops that process a topic without the worker.
#[derive(Clone, Copy)]
struct LoopPlan {
    kind: LoopKind,
    loops: usize,
    batch: usize,
    messages: usize,
}

/// The servers of the benchmark.
struct Servers {
    // End before the runtime that drives their connections.
    kafka: KafkaTopics,
    postgres: PostgresServer,
    redis: OnceCell<hapax_testkit::servers::RedisServer>,
    runtime: Runtime,
}

impl Servers {
    fn start() -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let kafka = KafkaTopics::start(&runtime)?;
        let postgres = runtime.block_on(async {
            let server = PostgresServer::start(PostgresServerOptions::new()).await?;
            server.client().await?.batch_execute(TABLES).await?;
            anyhow::Ok(server)
        })?;
        let servers = Self { kafka, postgres, redis: OnceCell::new(), runtime };
        servers.runtime.block_on(servers.ledger()?.create_tables())?;
        Ok(servers)
    }

    fn ledger(&self) -> anyhow::Result<PostgresLedger> {
        let _inside = self.runtime.enter();
        ledger(&self.postgres.url())
    }

    /// Drains a new topic by a worker.
    fn by_worker(self: &Rc<Self>, plan: DrainPlan) -> MeasuredBatch {
        let this = Rc::clone(self);
        Box::new(move || this.drain(&this.kafka.topic(&this.runtime, plan.messages)?, plan))
    }

    fn drain(&self, topic: &kafka::Topic, plan: DrainPlan) -> anyhow::Result<BatchResult> {
        let process = loops::process(&self.ledger()?);
        self.runtime.block_on(async {
            let source = Box::new(topic.source(&Uuid::from_bytes(random()?).to_string()).await?);
            drain::drain(source, process, plan).await
        })
    }

    /// Drains a new topic by loops without the worker.
    fn by_loops(self: &Rc<Self>, plan: LoopPlan) -> MeasuredBatch {
        let this = Rc::clone(self);
        Box::new(move || {
            let topic = this.kafka.topic(&this.runtime, plan.messages)?;
            topic.drain_in_loops(&this.runtime, plan, || this.body(plan.kind))
        })
    }

    fn body(&self, kind: LoopKind) -> anyhow::Result<loops::LoopBody> {
        let redis = match kind {
            LoopKind::RedisKeys => Some(self.redis_url()?),
            LoopKind::Claims | LoopKind::Locked | LoopKind::Ledger => None,
        };
        loops::LoopBody::open(kind, &self.runtime, &self.postgres.url(), redis.as_deref())
    }

    fn redis_url(&self) -> anyhow::Result<String> {
        use hapax_testkit::servers::{RedisKind, RedisServer, RedisServerOptions};
        if self.redis.get().is_none() {
            unpack("redis")?;
            let options = RedisServerOptions::new(RedisKind::Redis).with_system_clock();
            self.redis.set(self.runtime.block_on(RedisServer::start(options))?).ok();
        }
        Ok(self.redis.get().expect("the lines above set it").url())
    }
}

fn ledger(url: &str) -> anyhow::Result<PostgresLedger> {
    let url: PostgresUrl = format!("{url}?connections=8").parse()?;
    Ok(PostgresLedger::connect(&url, Terms::new("bench")?)?)
}

fn random() -> anyhow::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// Unpacks the programs of a service, unless they are unpacked already or on PATH.
pub(super) fn unpack(service: &str) -> anyhow::Result<()> {
    Command::new(format!("fixtures/{service}/unpack.sh")).stdout(Stdio::null()).status()?;
    Ok(())
}
