//! The faults of a run: when they happen, and how.

use std::time::Duration;

use anyhow::Result;
use hapax_testkit::proxy::{CutPoint, FaultRule, NetworkFault, Proxy};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::bank;
use crate::options::{TortureFault, TortureOptions};
use crate::order::topic;
use crate::random::SplitMix;
use crate::world::TortureWorld;

/// The end of a COMMIT as each driver sends it, in a simple query or to be parsed.
const COMMIT: &[u8] = b"COMMIT\0";

/// How long a cut waits for a COMMIT.
const LONGEST_WAIT_FOR_COMMIT: Duration = Duration::from_secs(10);

/// A fault, and when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedFault {
    pub(crate) fault: TortureFault,
    /// The number of settled transfers after which it happens.
    at: u32,
    /// Its number among the faults of the run.
    number: u64,
    /// What its random numbers begin with.
    seed: u64,
}

/// The faults of a run, spread at random over its first nine tenths.
pub(crate) fn plan(options: &TortureOptions) -> Vec<PlannedFault> {
    let mut random = SplitMix::new(options.seed, topic::FAULTS, 0);
    let kinds = TortureFault::ALL.into_iter();
    let all = kinds.flat_map(|fault| (0..options.number_of(fault)).map(move |_| fault));
    let last = (options.transfers / 10 * 9).max(1);
    let place = |(number, fault)| PlannedFault { fault, at: random.of(0..last), number, seed: options.seed ^ number };
    (0..).zip(all).map(place).collect()
}

impl PlannedFault {
    /// Waits for the time of the fault, and lets it happen. Returns when its servers run again.
    pub(crate) async fn happen(self, world: &TortureWorld, mut settled: watch::Receiver<u32>) -> Result<TortureFault> {
        settled.wait_for(|settled| *settled >= self.at).await?;
        let mut random = SplitMix::new(self.seed, topic::FAULT, self.at.into());
        let outage = random.millis(300);
        match self.fault {
            TortureFault::KillService => world.service.kill_and_restart(outage).await?,
            TortureFault::KillGateway => world.gateway(self.number).kill_and_restart(outage).await?,
            TortureFault::KillRedis => {
                let redis = world.redis()?;
                let _turn = redis.turn.lock().await;
                redis.server.kill();
                sleep(outage).await;
                redis.server.restart().await?;
            }
            TortureFault::KillDatabase => {
                let _turn = world.database_turn.lock().await;
                world.database.kill();
                sleep(outage).await;
                world.database.restart().await?;
            }
            TortureFault::PauseDatabase => {
                let _turn = world.database_turn.lock().await;
                world.database.pause()?;
                sleep(Duration::from_secs(4) + outage).await;
                world.database.resume()?;
            }
            TortureFault::ForgetRecords => {
                let _turn = world.database_turn.lock().await;
                bank::forget_records(&world.database).await?;
            }
            TortureFault::CutCommit => {
                let _turn = world.cut_turn.lock().await;
                cut_commit(&world.database_proxy, &mut random).await;
            }
            TortureFault::CutDatabase => world.database_proxy.inject(cut(&mut random, b"", 100)),
            TortureFault::CutRedis => world.redis()?.proxy.inject(cut(&mut random, b"", 100)),
        }
        Ok(self.fault)
    }
}

/// Cuts a connection at a COMMIT, and waits until that has happened: two faults at one COMMIT would count as one cut.
async fn cut_commit(proxy: &Proxy, random: &mut SplitMix) {
    let cuts = proxy.counts().cuts;
    proxy.inject(cut(random, COMMIT, 4));
    // Near the end of a run there may be no further COMMIT.
    for _ in 0..LONGEST_WAIT_FOR_COMMIT.as_millis() / 10 {
        if proxy.counts().cuts > cuts {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// One cut at a request with these bytes, after up to so many other ones.
fn cut(random: &mut SplitMix, matching: &[u8], skipped: u32) -> FaultRule {
    let points = [CutPoint::Unsent, CutPoint::Sent, CutPoint::Answered];
    let point = points[random.of(0..3) as usize];
    NetworkFault::cut(point, matching).after(random.of(0..skipped) as usize).times(1)
}
