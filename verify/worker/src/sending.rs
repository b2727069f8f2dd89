use std::collections::BTreeMap;

use anyhow::Result;

use crate::broker::WorkerBroker;
use crate::order::WorkerOrder;

/// What the producer has sent, and what it has to send again.
#[derive(Debug, Default)]
pub(crate) struct SendPlan {
    /// The copies to be sent once this transfer is sent.
    due: BTreeMap<u32, Vec<u32>>,
    next: u32,
    pub(crate) sent: u32,
}

impl SendPlan {
    /// Sends the transfers before this number, and the copies that are due.
    pub(crate) async fn send_until(
        &mut self,
        broker: &mut WorkerBroker,
        orders: &[WorkerOrder],
        end: u32,
    ) -> Result<()> {
        for number in self.next..end {
            let order = &orders[number as usize];
            self.send(broker, order).await?;
            for distance in &order.copies {
                self.due.entry(number + distance).or_default().push(number);
            }
            self.send_copies(broker, orders, number).await?;
        }
        self.next = end;
        Ok(())
    }

    /// Sends the copies that are due by this transfer.
    pub(crate) async fn send_copies(
        &mut self,
        broker: &mut WorkerBroker,
        orders: &[WorkerOrder],
        until: u32,
    ) -> Result<()> {
        while let Some(first) = self.due.first_entry().filter(|first| *first.key() <= until) {
            for number in first.remove() {
                self.send(broker, &orders[number as usize]).await?;
            }
        }
        Ok(())
    }

    async fn send(&mut self, broker: &mut WorkerBroker, order: &WorkerOrder) -> Result<()> {
        broker.send(order).await?;
        self.sent += 1;
        Ok(())
    }

    /// The number of transfers that were sent.
    pub(crate) fn transfers(&self) -> usize {
        self.next as usize
    }
}
