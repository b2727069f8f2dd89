use std::time::Duration;

use anyhow::Result;
use hapax_testkit::proxy::{Direction, NetworkFault, Proxy};
use hapax_torture::SplitMix;
use rustix::process::Signal;
use tokio::time::sleep;

use crate::nats::{LONG_WINDOW, SHORT_WINDOW};
use crate::relays::{LEASE, RELAYS};
use crate::run::{RelayTortureOptions, RelayWorld};
use crate::sale::FAULTS;

/// A fault that is so short leaves a relay its buckets.
const WITHIN_LEASE: Duration = Duration::from_millis(1200);

/// A fault of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RelayFault {
    /// `kill -9` of all relays at once, whose last publications were lost. They are started again.
    KillUnsent,
    /// The same, but their last confirmations were lost.
    KillUnconfirmed,
    /// `kill -9` of a relay. It is started again.
    Kill,
    /// A relay stops for longer than its leases, and continues.
    Pause,
    /// A relay reaches its broker no more, for a while.
    CutFromBroker,
    /// A relay reaches its database no more, for longer than its leases.
    CutFromDatabase,
    /// `kill -9` of the broker.
    KillBroker,
    /// `kill -9` of the broker, and a relay that is started before it is there again.
    StartWithoutBroker,
    /// The broker loses everything that its consumer has read, and `hapax outbox republish` fills it again.
    PurgeStream,
    /// `kill -9` of PostgreSQL and all of its processes.
    KillDatabase,
}

impl RelayFault {
    /// All faults.
    pub const ALL: [Self; 10] = [
        Self::KillUnsent,
        Self::KillUnconfirmed,
        Self::Kill,
        Self::Pause,
        Self::CutFromBroker,
        Self::CutFromDatabase,
        Self::KillBroker,
        Self::StartWithoutBroker,
        Self::PurgeStream,
        Self::KillDatabase,
    ];

    /// What the report calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::KillUnsent => "times that all relays were killed, and their last publications lost",
            Self::KillUnconfirmed => "times that all relays were killed, and their last confirmations lost",
            Self::Kill => "relays killed",
            Self::Pause => "relays stopped for longer than their leases",
            Self::CutFromBroker => "relays cut off from the broker",
            Self::CutFromDatabase => "relays cut off from the database for longer than their leases",
            Self::KillBroker => "brokers killed",
            Self::StartWithoutBroker => "relays started while the broker was away",
            Self::PurgeStream => "streams or queues purged, and their events published again",
            Self::KillDatabase => "PostgreSQL killed",
        }
    }

    /// How often it happens among so many events.
    fn count(self, events: u32) -> u32 {
        match self {
            Self::KillUnsent | Self::KillUnconfirmed | Self::Kill => (events / 3000).max(1),
            Self::Pause | Self::CutFromBroker | Self::CutFromDatabase => (events / 5000).max(1),
            Self::KillBroker | Self::StartWithoutBroker | Self::KillDatabase => (events / 10_000).max(1),
            // Each one publishes everything again that was published before.
            Self::PurgeStream => (events / 50_000).max(1),
        }
    }
}

/// The faults of a run, in the order of their time.
pub(crate) fn plan(options: &RelayTortureOptions) -> Vec<RelayFault> {
    let mut random = SplitMix::new(options.seed, FAULTS, 0);
    let mut plan: Vec<RelayFault> = Vec::new();
    for fault in &options.faults {
        for _ in 0..fault.count(options.events) {
            let places = u32::try_from(plan.len()).unwrap_or_default() + 1;
            plan.insert(random.of(0..places) as usize, *fault);
        }
    }
    plan
}

/// Lets a fault happen. Returns when it is over.
pub(crate) async fn happen(fault: RelayFault, world: &mut RelayWorld, random: &mut SplitMix) -> Result<()> {
    let (place, soon) = (random.of(0..1000), random.millis(600));
    sleep(soon).await;
    let beyond_lease = LEASE + Duration::from_secs(1) + random.millis(500);
    match fault {
        RelayFault::KillUnsent => kill_all(world, Direction::ToServer).await?,
        RelayFault::KillUnconfirmed => kill_all(world, Direction::ToClient).await?,
        RelayFault::Kill => world.relays.kill(place).await?,
        RelayFault::Pause => {
            world.relays.get(place).signal(Signal::STOP);
            sleep(beyond_lease).await;
            world.relays.get(place).signal(Signal::CONT);
        }
        RelayFault::CutFromBroker => {
            // At first only the confirmations are lost.
            let proxy = &world.relays.get(place).to_broker;
            proxy.inject(NetworkFault::HalfOpen(Direction::ToClient));
            sleep(WITHIN_LEASE).await;
            cut(proxy, beyond_lease).await?;
        }
        RelayFault::CutFromDatabase => cut(&world.relays.get(place).to_database, beyond_lease).await?,
        RelayFault::KillBroker => {
            world.broker.kill();
            sleep(random.millis(1000)).await;
            world.broker.restart().await?;
        }
        RelayFault::StartWithoutBroker => {
            world.broker.kill();
            world.relays.kill(place).await?;
            sleep(beyond_lease).await;
            world.broker.restart().await?;
        }
        RelayFault::PurgeStream => {
            // As with the settings of production: the broker recognizes what it has lost.
            world.broker.recognize_repetitions(LONG_WINDOW).await?;
            sleep(beyond_lease).await;
            world.catch_up().await?;
            world.broker.purge_what_is_read().await?;
            world.republish().await?;
            world.catch_up().await?;
            world.broker.recognize_repetitions(SHORT_WINDOW).await?;
        }
        RelayFault::KillDatabase => {
            world.database.kill();
            sleep(random.millis(1000)).await;
            world.database.restart().await?;
        }
    }
    Ok(())
}

/// Kills all relays after everything to or from their broker was lost for a while.
async fn kill_all(world: &mut RelayWorld, lost: Direction) -> Result<()> {
    for place in 0..RELAYS {
        world.relays.get(place).to_broker.inject(NetworkFault::HalfOpen(lost));
    }
    sleep(WITHIN_LEASE).await;
    for place in 0..RELAYS {
        world.relays.kill(place).await?;
        heal(&world.relays.get(place).to_broker).await?;
    }
    Ok(())
}

/// Resets all connections, and refuses new ones for a while.
async fn cut(proxy: &Proxy, length: Duration) -> Result<()> {
    proxy.refuse().await;
    proxy.reset();
    sleep(length).await;
    heal(proxy).await
}

async fn heal(proxy: &Proxy) -> Result<()> {
    proxy.heal().await?;
    slow_down(proxy);
    Ok(())
}

/// Lets everything take a while, as between hosts, so that a relay that dies leaves events without a mark.
pub(crate) fn slow_down(proxy: &Proxy) {
    proxy.inject(NetworkFault::Latency { delay: Duration::from_millis(20), jitter: Duration::from_millis(15) });
}
