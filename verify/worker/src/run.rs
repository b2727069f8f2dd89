use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hapax_testkit::servers::{PostgresServer, PostgresServerOptions};
use hapax_torture::SplitMix;
use rustix::process::Signal;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::audit::{AuditScope, WorkerAudit, finished};
use crate::broker::{WorkerBroker, WorkerProgress};
use crate::faults::{self, WorkerFault};
use crate::members::Members;
use crate::order::{ACCOUNTS, BALANCE, FAULTS, WorkerOrder};
use crate::sending::SendPlan;

/// A run that gets on with nothing for so long has failed.
const STALLED: Duration = Duration::from_secs(180);

/// A kind of broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceBroker {
    /// A topic with eight partitions, for one group.
    Kafka,
    /// A quorum queue, which all workers read at the same time.
    RabbitMq,
    /// A FIFO queue of one stand-in for SQS. Each payer is a message group.
    Sqs,
}

impl SourceBroker {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Kafka, Self::RabbitMq, Self::Sqs];

    /// The word of the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::RabbitMq => "rabbitmq",
            Self::Sqs => "sqs",
        }
    }
}

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct WorkerTortureOptions {
    /// The number of transfers.
    pub transfers: u32,
    /// Decides the transfers, their copies and the faults.
    pub seed: u64,
    /// Whether the workers have a ledger. Without one the audit must fail.
    pub has_ledger: bool,
    /// The kind of the brokers.
    pub broker: SourceBroker,
    /// The number of brokers.
    pub brokers: usize,
}

/// What a run gave.
#[derive(Debug)]
pub struct WorkerTortureResult {
    /// How often each fault happened.
    pub faults: BTreeMap<WorkerFault, u32>,
    /// Messages that the producer has sent, copies included.
    pub messages: u32,
    /// How often the committed offsets of Kafka were compared with the finished work.
    pub offset_checks: u32,
    /// Workers that ended by themselves, and were started again.
    pub ended: u32,
    /// Workers that ended because a broker was away at their start or the topic was gone, and were started again.
    pub unavailable: u32,
    /// Workers that did not end with 0 at SIGTERM.
    pub ended_badly: u32,
    /// Effects beyond the first of an operation.
    pub duplicates: u32,
    /// Everything that was found.
    pub damages: Vec<String>,
    /// How long it took.
    pub took: Duration,
}

/// A running world. Everything ends when it is dropped.
pub(crate) struct WorkerWorld {
    pub(crate) members: Members,
    pub(crate) broker: WorkerBroker,
    pub(crate) sending: SendPlan,
    pub(crate) database: PostgresServer,
    pub(crate) ended_badly: u32,
    /// Brokers that were killed one by one.
    pub(crate) killed: usize,
    offset_checks: u32,
    damages: Vec<String>,
}

/// Runs the options, with the log of the workers in a folder.
///
/// # Errors
/// If a process or a server does not start, or if nothing is processed for three minutes.
pub async fn run(options: WorkerTortureOptions, folder: &Path) -> Result<WorkerTortureResult> {
    let begun = Instant::now();
    let orders = (0..options.transfers).map(|number| WorkerOrder::draw(options.seed, number));
    let orders = orders.collect::<Result<Vec<_>>>()?;
    let mut world = WorkerWorld::start(&options, folder).await?;
    let mut random = SplitMix::new(options.seed, FAULTS, 1);
    let plan = faults::plan(&options);
    let mut faults = BTreeMap::new();
    for (number, fault) in (1..).zip(&plan) {
        let end = u64::from(options.transfers) * number / (plan.len() as u64 + 1);
        world.sending.send_until(&mut world.broker, &orders, u32::try_from(end)?).await?;
        sleep(random.millis(600)).await;
        world.check_offsets(&orders).await?;
        faults::happen(*fault, &mut world, &mut random).await?;
        world.members.revive()?;
        *faults.entry(*fault).or_default() += 1;
        println!("  {number} of {} faults, {end} transfers sent, {:.0} s", plan.len(), begun.elapsed().as_secs_f64());
    }
    world.sending.send_until(&mut world.broker, &orders, options.transfers).await?;
    world.sending.send_copies(&mut world.broker, &orders, u32::MAX).await?;
    world.broker.flush().await?;
    world.wait_until_processed().await?;
    world.check_offsets(&orders).await?;
    world.end_workers().await?;
    let scope = AuditScope { has_ledger: options.has_ledger, has_order: world.broker.keeps_order() };
    let audit = WorkerAudit::run(&world.database, &orders, scope).await?;
    world.damages.extend(audit.damages);
    world.damages.extend(ends(world.members.ended, world.ended_badly));
    Ok(WorkerTortureResult {
        faults,
        messages: world.sending.sent,
        offset_checks: world.offset_checks,
        ended: world.members.ended,
        unavailable: world.members.unavailable,
        ended_badly: world.ended_badly,
        duplicates: audit.duplicates,
        damages: world.damages,
        took: begun.elapsed(),
    })
}

/// What is wrong with the ends of the workers. No fault may make one end by itself that has reached the broker.
fn ends(by_themselves: u32, badly: u32) -> impl Iterator<Item = String> {
    let ends = [(by_themselves, "ended by themselves"), (badly, "did not end with 0 at SIGTERM")];
    ends.into_iter().filter(|(count, _)| *count > 0).map(|(count, how)| format!("{count} workers {how}"))
}

impl WorkerWorld {
    async fn start(options: &WorkerTortureOptions, folder: &Path) -> Result<Self> {
        let mut broker = WorkerBroker::start(options.broker, options.brokers).await?;
        let database = PostgresServer::start(PostgresServerOptions::new()).await?;
        let client = database.client().await?;
        client.batch_execute(include_str!("../../../examples/worker-kafka/bank.sql")).await?;
        let open = "insert into account select 'account-' || n, $2 from generate_series(0, $1::bigint - 1) n";
        client.execute(open, &[&i64::from(ACCOUNTS), &BALANCE]).await?;
        broker.wait_until_served().await?;
        let program = if options.has_ledger { broker.program() } else { "hapax-worker-torture-bare" };
        let members = Members::start(program, broker.url(), database.url(), folder)?;
        let (ended_badly, killed, offset_checks, damages) = (0, 0, 0, Vec::new());
        Ok(Self {
            members,
            broker,
            sending: SendPlan::default(),
            database,
            ended_badly,
            killed,
            offset_checks,
            damages,
        })
    }

    /// Lets all workers end. Copies that they give back to a queue are for another one.
    async fn end_workers(&mut self) -> Result<()> {
        for _ in 0..10 {
            while self.members.count() > 0 {
                self.ended_badly += u32::from(!self.members.leave().await?);
            }
            if self.broker.left().await?.is_none_or(|left| left == 0) {
                return Ok(());
            }
            self.members.join()?;
            sleep(Duration::from_secs(1)).await;
        }
        self.damages.push("messages stay in the queue".to_owned());
        Ok(())
    }

    /// Checks that every message below a committed offset has its effect. The workers stand still meanwhile. A queue
    /// has no offsets.
    async fn check_offsets(&mut self, orders: &[WorkerOrder]) -> Result<()> {
        let WorkerBroker::Kafka { topic, .. } = &mut self.broker else { return Ok(()) };
        self.members.signal_all(Signal::STOP);
        let committed = block_in_place(|| topic.committed());
        let finished = finished(&self.database).await;
        self.members.signal_all(Signal::CONT);
        let finished = finished?;
        // A broker that was just killed has no answer.
        let Ok(mut committed) = committed else { return Ok(()) };
        let Ok(ends) = block_in_place(|| topic.ends()) else { return Ok(()) };
        for (partition, (committed, end)) in committed.iter_mut().zip(ends).enumerate() {
            if *committed > end {
                self.damages.push(format!("partition {partition} ends at {end}, and offset {committed} is committed"));
                *committed = end;
            }
        }
        for key in block_in_place(|| topic.read_until(&committed))? {
            let number = key.strip_prefix("order-").and_then(|number| number.parse::<usize>().ok());
            if !number.is_some_and(|number| finished.contains(&orders[number].operation)) {
                self.damages.push(format!("an offset beyond {key} is committed, which has no effect yet"));
            }
        }
        self.offset_checks += 1;
        Ok(())
    }

    /// Waits until the workers have processed everything that was sent.
    pub(crate) async fn wait_until_processed(&mut self) -> Result<()> {
        let (mut last, mut changed) = (None::<WorkerProgress>, Instant::now());
        loop {
            if let Ok(progress) = self.broker.progress(&self.database).await {
                if progress.is_complete(self.sending.transfers()) {
                    return Ok(());
                }
                if last.as_ref() != Some(&progress) {
                    (last, changed) = (Some(progress), Instant::now());
                }
            }
            ensure!(changed.elapsed() < STALLED, "nothing is processed for {STALLED:?}: {last:?}");
            self.members.revive()?;
            sleep(Duration::from_millis(100)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_ends_by_itself_or_badly_is_a_finding() {
        let found = |by_themselves, badly| ends(by_themselves, badly).collect::<Vec<_>>();
        assert!(found(0, 0).is_empty());
        assert_eq!(found(2, 0), ["2 workers ended by themselves"]);
        assert_eq!(found(0, 1), ["1 workers did not end with 0 at SIGTERM"]);
    }
}
