//! Takes what the server sends at once, with the time of its arrival: a lease begins when the server sends a message.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, Subscriber};
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use hapax_core::runtime::Runtime;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::driver::Driver;

/// What the server sent, and when it arrived.
pub(super) struct Arrived {
    pub(super) message: Message,
    pub(super) at: Duration,
    /// How often the connection had been made by then.
    pub(super) connects: u64,
}

/// The channel from the task, and what ends the task.
pub(super) struct Pump {
    pub(super) arrived: UnboundedReceiver<Arrived>,
    /// Ends the subscription. What the server has sent by then still arrives, then the channel ends.
    pub(super) stop: Arc<Notify>,
}

/// Starts the task, which also ends with its receiver. The requests of the puller bound what waits in the channel.
pub(super) fn start(subscriber: Subscriber, driver: &Arc<Driver>, runtime: &Arc<dyn Runtime>) -> Pump {
    let (sender, arrived) = unbounded_channel();
    let stop = Arc::new(Notify::new());
    let clock = (Arc::clone(driver), Arc::clone(runtime));
    runtime.spawn(Box::pin(run(subscriber, sender, Arc::clone(&stop), clock)));
    Pump { arrived, stop }
}

async fn run(
    mut subscriber: Subscriber,
    sender: UnboundedSender<Arrived>,
    stop: Arc<Notify>,
    (driver, runtime): (Arc<Driver>, Arc<dyn Runtime>),
) {
    // Fails once nobody receives.
    let forward = |message| {
        let arrived = Arrived { message, at: runtime.boottime_now(), connects: driver.connects() };
        sender.send(arrived).is_ok()
    };
    let mut is_there = true;
    while is_there {
        match select(subscriber.next(), pin!(told(&sender, &stop))).await {
            Either::Left((Some(message), _)) => is_there = forward(message),
            Either::Left((None, _)) => is_there = false,
            Either::Right(_) => break,
        }
    }
    if is_there && subscriber.drain().await.is_ok() {
        while let Some(message) = subscriber.next().await
            && forward(message)
        {}
    }
    // Before the channel ends, so that the server knows it when the source is closed.
    drop(subscriber.unsubscribe().await);
    drop(sender);
}

/// Waits until somebody stops the task.
async fn told(sender: &UnboundedSender<Arrived>, stop: &Notify) {
    let (closed, stopped) = (pin!(sender.closed()), pin!(stop.notified()));
    select(closed, stopped).await;
}
