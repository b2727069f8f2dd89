//! The faults of a run. In each round, every process is killed or paused once, messages are delivered again, and the
//! broker forgets which events it has seen; in some rounds old events are published again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures_util::future::try_join_all;
use tokio::time::sleep;

use super::Scenario;
use super::member::{PipelineProcess, ProcessFault};
use super::shop::Shop;
use super::system::{Remains, System};
use crate::OmittedLayer;
use crate::progress::Progress;
use crate::random::{RandomStream, RandomTopic};

/// The processes, and what is done to them.
#[derive(Debug)]
pub(super) struct Faults {
    seed: u64,
    payments: u32,
    rounds: u32,
    has_outbox: bool,
    system: System,
    shop: Arc<Shop>,
}

impl Faults {
    /// The faults of this scenario.
    pub(super) fn new(scenario: &Scenario, system: System, shop: Arc<Shop>) -> Self {
        let has_outbox = scenario.has(OmittedLayer::Outbox);
        let &Scenario { seed, payments, rounds, .. } = scenario;
        Self { seed, payments, rounds, has_outbox, system, shop }
    }

    /// Lets all rounds happen, spread over the run. Returns only if a process ends by itself or does not start again.
    pub(super) async fn repeat(&mut self, progress: &Progress) -> anyhow::Error {
        for round in 0..self.rounds {
            let due = u64::from(self.payments) * u64::from(round) / (u64::from(self.rounds) + 1);
            progress.wait_for_settled(u32::try_from(due).unwrap_or(self.payments)).await;
            if let Err(error) = self.round(round).await {
                return error;
            }
            progress.count_crash();
        }
        loop {
            sleep(Duration::from_millis(200)).await;
            if let Err(error) = self.system.members.iter_mut().try_for_each(PipelineProcess::check) {
                return error;
            }
        }
    }

    /// Ends all processes.
    pub(super) async fn end(self) -> Result<Remains> {
        self.system.end().await
    }

    async fn round(&mut self, round: u32) -> Result<()> {
        let (seed, has_outbox) = (self.seed, self.has_outbox);
        let members = self.system.members.iter_mut().enumerate();
        let shop = &*self.shop;
        let suffering = try_join_all(members.map(|(number, member)| async move {
            let (delay, fault) = fault(seed, round, number);
            sleep(delay).await;
            shop.wait_for_work().await;
            member.suffer(fault).await
        }));
        let copies = self.payments.div_ceil(10 * self.rounds);
        let disturbing = async {
            shop.books.redeliver((seed, round), copies).await?;
            if has_outbox && round % 4 == 3 {
                shop.replay(2 * copies).await?;
            }
            for _ in 0..FORGETS {
                shop.books.forget().await?;
                sleep(Duration::from_millis(300)).await;
            }
            anyhow::Ok(())
        };
        tokio::try_join!(suffering, disturbing).map(drop)
    }
}

/// How often the broker forgets in one round.
const FORGETS: u32 = 6;

/// When a process suffers in this round, and what. Kills and pauses take turns.
fn fault(seed: u64, round: u32, member: usize) -> (Duration, ProcessFault) {
    let mut random = RandomStream::new(seed, RandomTopic::Faults, &[round.into(), member as u64]);
    let delay = Duration::from_millis(random.in_range(0, 800));
    let fault = if (u64::from(round) + member as u64).is_multiple_of(2) {
        ProcessFault::Kill(Duration::from_millis(random.in_range(0, 150)))
    } else {
        ProcessFault::Pause(Duration::from_millis(random.in_range(1_600, 2_000)))
    };
    (delay, fault)
}
