use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::outbox::{EventRow, Horizon, MarkedRows, OpenRows, Outbox, ParkedRow, ReadRequest};
use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, Result};
use hapax_testkit::Process;

use super::plan::OutboxFault;
use super::world::SimulatedRelays;

/// The outbox as one relay sees it.
pub(super) struct FaultyDatabase {
    pub(super) world: Arc<SimulatedRelays>,
    pub(super) process: Arc<Process>,
}

impl FaultyDatabase {
    /// A call that takes a while, and may fail before or behind its effect.
    async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.travel().await;
        if self.world.breaks(OutboxFault::FailedCall, 3) {
            return Err(Error::new(ErrorKind::NotApplied, "no connection"));
        }
        let result = call.await;
        self.travel().await;
        if self.world.breaks(OutboxFault::LostReply, 3) {
            return Err(Error::new(ErrorKind::Unknown, "no reply"));
        }
        result
    }

    async fn travel(&self) {
        self.process.sleep(self.world.dice.up_to(Duration::from_millis(8))).await;
    }

    async fn mark_some(&self, rows: &[EventRow], republications: u64) -> Result<MarkedRows> {
        if self.world.breaks(OutboxFault::LostMarks, 5) {
            return Ok(MarkedRows { marked: rows.len(), ..MarkedRows::default() });
        }
        let is_locked = |_: &&EventRow| self.world.breaks(OutboxFault::Locked, 5);
        let (locked, free): (Vec<_>, Vec<_>) = rows.iter().partition(is_locked);
        let marked = self.world.outbox.mark(&free, republications).await?;
        Ok(if marked.is_rewound { marked } else { MarkedRows { locked, ..marked } })
    }
}

#[async_trait]
impl Outbox for FaultyDatabase {
    async fn read(&self, request: &ReadRequest) -> Result<OpenRows> {
        self.call(self.world.outbox.read(request)).await
    }

    async fn mark(&self, rows: &[EventRow], republications: u64) -> Result<MarkedRows> {
        self.call(self.mark_some(rows, republications)).await
    }

    async fn park(&self, rows: &[ParkedRow]) -> Result<Vec<EventRow>> {
        self.call(self.world.outbox.park(rows)).await
    }

    async fn set_aside(&self, rows: &[EventRow]) -> Result<()> {
        self.call(self.world.outbox.set_aside(rows)).await
    }

    async fn horizon(&self) -> Result<Horizon> {
        self.call(self.world.outbox.horizon()).await
    }

    async fn wait_for_rows(&self) {
        self.world.outbox.wait_for_rows().await;
    }
}

impl fmt::Debug for FaultyDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyDatabase")
    }
}
