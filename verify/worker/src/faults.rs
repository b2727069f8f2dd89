use std::time::Duration;

use anyhow::Result;
use hapax_torture::SplitMix;
use rustix::process::Signal;
use tokio::time::sleep;

use crate::order::FAULTS;
use crate::run::{WorkerTortureOptions, WorkerWorld};

/// The session timeout of the group.
pub(crate) const SESSION: Duration = Duration::from_secs(6);

/// A fault of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerFault {
    /// `kill -9` of a worker, which is started again.
    Kill,
    /// A worker stops for longer than the session timeout of Kafka, and continues.
    Pause,
    /// A worker joins the group.
    Join,
    /// A worker leaves the group in order.
    Leave,
    /// `kill -9` of a broker, and the end of the stand-in for SQS. They take turns, so that the leader of a queue is
    /// among three of them.
    KillBroker,
    /// `kill -9` of all brokers, and a worker that is started before they are there again.
    StartWithoutBroker,
    /// The topic or the queue is deleted and created again while the workers run.
    RecreateTopic,
    /// `kill -9` of PostgreSQL and all of its processes.
    KillDatabase,
}

impl WorkerFault {
    /// All faults.
    pub const ALL: [Self; 8] = [
        Self::Kill,
        Self::Pause,
        Self::Join,
        Self::Leave,
        Self::KillBroker,
        Self::StartWithoutBroker,
        Self::RecreateTopic,
        Self::KillDatabase,
    ];

    /// What the report calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "workers killed",
            Self::Pause => "workers stopped for longer than the session timeout",
            Self::Join => "workers that joined",
            Self::Leave => "workers that left",
            Self::KillBroker => "brokers killed",
            Self::StartWithoutBroker => "workers started while all brokers were away",
            Self::RecreateTopic => "topics or queues deleted and created again",
            Self::KillDatabase => "PostgreSQL killed",
        }
    }

    /// How often it happens among so many transfers.
    fn count(self, transfers: u32) -> u32 {
        match self {
            Self::Kill => (transfers / 1000).max(2),
            Self::Join | Self::Leave | Self::Pause => (transfers / 5000).max(1),
            Self::KillBroker | Self::StartWithoutBroker | Self::RecreateTopic | Self::KillDatabase => {
                (transfers / 10_000).max(1)
            }
        }
    }
}

/// The faults of a run, in the order of their time.
pub(crate) fn plan(options: &WorkerTortureOptions) -> Vec<WorkerFault> {
    let mut random = SplitMix::new(options.seed, FAULTS, 0);
    let mut plan: Vec<WorkerFault> = Vec::new();
    for fault in WorkerFault::ALL {
        for _ in 0..fault.count(options.transfers) {
            let places = u32::try_from(plan.len()).unwrap_or_default() + 1;
            plan.insert(random.of(0..places) as usize, fault);
        }
    }
    plan
}

/// Lets a fault happen. Returns when its servers run again.
pub(crate) async fn happen(fault: WorkerFault, world: &mut WorkerWorld, random: &mut SplitMix) -> Result<()> {
    let place = random.of(0..1000);
    world.members.expect_no_ends();
    match fault {
        WorkerFault::Kill => world.members.kill(place).await?,
        WorkerFault::Pause => {
            world.members.signal(place, Signal::STOP);
            sleep(SESSION + Duration::from_secs(2)).await;
            world.members.signal(place, Signal::CONT);
        }
        WorkerFault::Join => world.members.join()?,
        WorkerFault::Leave => {
            let has_ended_well = world.members.leave().await?;
            world.ended_badly += u32::from(!has_ended_well);
            if world.members.count() < 4 {
                world.members.join()?;
            }
        }
        WorkerFault::KillBroker => {
            let number = world.killed;
            world.killed += 1;
            world.members.excuse_starts();
            world.broker.kill(number).await?;
            sleep(random.millis(1000)).await;
            world.broker.restart(number).await?;
            world.broker.wait_until_served().await?;
        }
        WorkerFault::StartWithoutBroker => {
            world.members.excuse_starts();
            world.broker.kill_all().await?;
            world.members.kill(place).await?;
            world.members.excuse_starts();
            // Half of them wait for longer than the driver does.
            let patience = if random.percent(50) { Duration::from_secs(12) } else { Duration::ZERO };
            sleep(patience + random.millis(2000)).await;
            world.broker.restart_all().await?;
            world.broker.wait_until_served().await?;
        }
        WorkerFault::RecreateTopic => {
            // What is deleted with the topic could have no effect.
            world.broker.flush().await?;
            world.wait_until_processed().await?;
            world.members.excuse_ends();
            world.broker.recreate().await?;
            world.broker.wait_until_served().await?;
        }
        WorkerFault::KillDatabase => {
            world.database.kill();
            sleep(random.millis(1000)).await;
            world.database.restart().await?;
        }
    }
    Ok(())
}
