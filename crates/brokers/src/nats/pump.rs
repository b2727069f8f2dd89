//! Takes what the server sends at once, with the time of its arrival: a lease begins when the server sends a message.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, Subscriber};
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use hapax_core::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What the server sent, and when it arrived.
pub(super) struct Arrived {
    pub(super) message: Message,
    pub(super) at: Duration,
}

/// Starts the task, which ends with its receiver. The requests of the puller bound what waits in the channel.
pub(super) fn start(subscriber: Subscriber, runtime: &Arc<dyn Runtime>) -> UnboundedReceiver<Arrived> {
    let (sender, receiver) = unbounded_channel();
    runtime.spawn(Box::pin(run(subscriber, sender, Arc::clone(runtime))));
    receiver
}

async fn run(mut subscriber: Subscriber, sender: UnboundedSender<Arrived>, runtime: Arc<dyn Runtime>) {
    loop {
        let closed = std::pin::pin!(sender.closed());
        let Either::Left((Some(message), _)) = select(subscriber.next(), closed).await else { break };
        let arrived = Arrived { message, at: runtime.boottime_now() };
        if sender.send(arrived).is_err() {
            break;
        }
    }
    // Before the channel ends, so that the server knows it when the source is closed.
    drop(subscriber.unsubscribe().await);
    drop(sender);
}
