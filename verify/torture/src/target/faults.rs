//! The faults of a run: when they happen, and how.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::random::SplitMix;
use crate::target::options::{TargetFault, TargetOptions};
use crate::target::source::TargetQueue;
use crate::target::world::{LEASE, TargetWorld};

/// How long a worker that was started finds no broker.
const AWAY: Duration = Duration::from_secs(2);

/// A fault, and when it happens.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedTargetFault {
    fault: TargetFault,
    /// The number of acknowledged messages after which it happens.
    at: usize,
    seed: u64,
}

/// When a fault may have kept a worker from knowing or recording an answer, in milliseconds since the unix epoch. A kill
/// touches what runs at its moment, and a stop what runs at its beginning and at its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultWindow {
    pub(super) from: u64,
    pub(super) to: u64,
}

/// The faults of a run, spread at random over its first nine tenths.
pub(super) fn plan(options: &TargetOptions, messages: usize) -> Vec<PlannedTargetFault> {
    let mut random = SplitMix::new(options.seed, 101, 0);
    let all = TargetFault::ALL.into_iter();
    let all = all.flat_map(|fault| (0..options.number_of(fault)).map(move |_| fault));
    let last = u32::try_from(messages / 10 * 9).unwrap_or(u32::MAX).max(1);
    let place = |(number, fault)| {
        let at = random.of(0..last) as usize;
        PlannedTargetFault { fault, at, seed: options.seed ^ number }
    };
    (0..).zip(all).map(place).collect()
}

impl PlannedTargetFault {
    /// Waits for the time of the fault, and lets it happen. Returns when its processes run again.
    pub(super) async fn happen(
        self,
        world: &TargetWorld,
        mut acknowledged: watch::Receiver<usize>,
    ) -> Result<(TargetFault, Vec<FaultWindow>)> {
        acknowledged.wait_for(|acknowledged| *acknowledged >= self.at).await?;
        let mut random = SplitMix::new(self.seed, 102, u64::try_from(self.at)?);
        sleep(random.millis(100)).await;
        let outage = random.millis(300);
        let worker = &world.workers[random.of(0..2) as usize % world.workers.len()];
        let _turn = match self.fault {
            TargetFault::KillWorker
            | TargetFault::PauseWorker
            | TargetFault::StartWithoutBroker
            | TargetFault::StopWorker => Some(worker.turn().await),
            TargetFault::KillService => Some(world.service.turn().await),
            TargetFault::KillBroker | TargetFault::CutConnections => None,
        };
        let mut windows = vec![FaultWindow::at(now())];
        match self.fault {
            TargetFault::KillWorker => worker.kill_and_restart(outage).await?,
            TargetFault::PauseWorker => {
                worker.pause(LEASE + Duration::from_secs(2) + outage).await?;
                windows.push(FaultWindow::at(now()));
            }
            TargetFault::KillService => world.service.kill_and_restart(outage).await?,
            TargetFault::KillBroker => {
                // The records are elsewhere.
                windows.clear();
                if let TargetQueue::Nats(stream) = &world.queue {
                    let _turn = world.broker_turn.lock().await;
                    stream.server.kill();
                    sleep(outage).await;
                    stream.server.restart().await?;
                }
            }
            TargetFault::StopWorker => {
                // It finishes what it has begun.
                windows.clear();
                worker.stop_and_restart().await?;
            }
            TargetFault::CutConnections => {
                windows.clear();
                if let TargetQueue::Nats(stream) = &world.queue {
                    stream.proxy.reset();
                }
            }
            TargetFault::StartWithoutBroker => {
                if let TargetQueue::Nats(stream) = &world.queue {
                    let _turn = world.broker_turn.lock().await;
                    stream.server.kill();
                    windows.push(FaultWindow::at(now()));
                    worker.kill_and_restart(outage).await?;
                    sleep(AWAY + outage).await;
                    stream.server.restart().await?;
                }
            }
        }
        Ok((self.fault, windows))
    }
}

impl FaultWindow {
    /// The signal may arrive a little later, and what it held up another moment after that.
    fn at(from: u64) -> Self {
        Self { from, to: from + 1000 }
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
