use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hapax_testkit::servers::{KafkaServer, PostgresServer, PostgresServerOptions};
use hapax_torture::SplitMix;
use rustix::process::Signal;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::audit::{WorkerAudit, finished};
use crate::faults::{self, SESSION, WorkerFault};
use crate::members::Members;
use crate::order::{ACCOUNTS, BALANCE, FAULTS, WorkerOrder};
use crate::topic::TransferTopic;

/// A run whose committed offsets stand still for so long has failed.
const STALLED: Duration = Duration::from_secs(180);

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct WorkerTortureOptions {
    /// The number of transfers.
    pub transfers: u32,
    /// Decides the transfers, their copies and the faults.
    pub seed: u64,
    /// Whether the workers have a ledger. Without one the audit must fail.
    pub has_ledger: bool,
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
    /// How often the committed offsets were compared with the finished work.
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
    pub(crate) brokers: Vec<KafkaServer>,
    pub(crate) database: PostgresServer,
    pub(crate) ended_badly: u32,
    pub(crate) topic: TransferTopic,
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
        world.topic.send_until(&orders, u32::try_from(end)?)?;
        sleep(random.millis(600)).await;
        world.check_offsets(&orders).await?;
        faults::happen(*fault, &mut world, &mut random).await?;
        world.members.revive()?;
        *faults.entry(*fault).or_default() += 1;
        println!("  {number} of {} faults, {end} transfers sent, {:.0} s", plan.len(), begun.elapsed().as_secs_f64());
    }
    world.topic.send_until(&orders, options.transfers)?;
    world.topic.send_copies(&orders, u32::MAX)?;
    block_in_place(|| world.topic.flush())?;
    world.wait_until_processed().await?;
    world.check_offsets(&orders).await?;
    while world.members.count() > 0 {
        world.ended_badly += u32::from(!world.members.leave().await?);
    }
    let audit = WorkerAudit::run(&world.database, &orders, options.has_ledger).await?;
    world.damages.extend(audit.damages);
    world.damages.extend(ends(world.members.ended, world.ended_badly));
    Ok(WorkerTortureResult {
        faults,
        messages: world.topic.sent,
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
        let brokers = match options.brokers {
            1 => vec![KafkaServer::start(&[]).await?],
            count => KafkaServer::start_cluster(count).await?,
        };
        let database = PostgresServer::start(PostgresServerOptions::new()).await?;
        let client = database.client().await?;
        client.batch_execute(include_str!("../../../examples/worker-kafka/bank.sql")).await?;
        let open = "insert into account select 'account-' || n, $2 from generate_series(0, $1::bigint - 1) n";
        client.execute(open, &[&i64::from(ACCOUNTS), &BALANCE]).await?;
        let hosts: Vec<String> = brokers.iter().map(|broker| broker.address().to_string()).collect();
        let hosts = hosts.join(",");
        let topic = TransferTopic::create(&hosts, brokers.len().min(3)).await?;
        topic.wait_until_served().await?;
        let url = format!("kafka://{hosts}/transfers?group=bank&session-timeout={}", SESSION.as_secs());
        let program = if options.has_ledger { "example-worker-kafka" } else { "hapax-worker-torture-bare" };
        let members = Members::start(program, url, database.url(), folder)?;
        let (ended_badly, offset_checks, damages) = (0, 0, Vec::new());
        Ok(Self { members, brokers, database, ended_badly, topic, offset_checks, damages })
    }

    /// Checks that every message below a committed offset has its effect. The workers stand still meanwhile.
    async fn check_offsets(&mut self, orders: &[WorkerOrder]) -> Result<()> {
        self.members.signal_all(Signal::STOP);
        let committed = block_in_place(|| self.topic.committed());
        let finished = finished(&self.database).await;
        self.members.signal_all(Signal::CONT);
        let finished = finished?;
        // A broker that was just killed has no answer.
        let Ok(mut committed) = committed else { return Ok(()) };
        let Ok(ends) = block_in_place(|| self.topic.ends()) else { return Ok(()) };
        for (partition, (committed, end)) in committed.iter_mut().zip(ends).enumerate() {
            if *committed > end {
                self.damages.push(format!("partition {partition} ends at {end}, and offset {committed} is committed"));
                *committed = end;
            }
        }
        for key in block_in_place(|| self.topic.read_until(&committed))? {
            let number = key.strip_prefix("order-").and_then(|number| number.parse::<usize>().ok());
            if !number.is_some_and(|number| finished.contains(&orders[number].operation)) {
                self.damages.push(format!("an offset beyond {key} is committed, which has no effect yet"));
            }
        }
        self.offset_checks += 1;
        Ok(())
    }

    /// Waits until the group has committed the end of each partition.
    pub(crate) async fn wait_until_processed(&mut self) -> Result<()> {
        let (mut last, mut changed) = (Vec::new(), Instant::now());
        loop {
            let read = block_in_place(|| Ok::<_, anyhow::Error>((self.topic.committed()?, self.topic.ends()?)));
            if let Ok((committed, ends)) = read {
                if committed == ends {
                    return Ok(());
                }
                if committed != last {
                    (last, changed) = (committed, Instant::now());
                }
            }
            ensure!(changed.elapsed() < STALLED, "nothing is processed for {STALLED:?}; committed: {last:?}");
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
