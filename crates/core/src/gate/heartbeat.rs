use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use std::pin::pin;
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::error::Result;
use crate::gate::Shared;
use crate::gate::settle::Held;
use crate::machine::{Claim, Grant, Renewed};
use crate::record::Millis;
use crate::store::Protocol;

/// Renews a grant every third of its lease, until it is stopped or dropped, the grant is lost, or the handler ran for too long.
pub(super) struct Heartbeat {
    stop: DropGuard,
    ended: oneshot::Receiver<()>,
    confirmed: Arc<AtomicU64>,
    lease: Duration,
}

impl Heartbeat {
    /// Starts it. `cancellation` is fired when the handler should stop.
    pub(super) fn start(held: &Held, cancellation: CancellationToken) -> Self {
        let stop = CancellationToken::new();
        let (end, ended) = oneshot::channel();
        let shared = Arc::clone(&held.gate().shared);
        let confirmed = Arc::new(AtomicU64::new(millis(held.begun())));
        let beat = Beat {
            grant: held.grant(),
            lease: held.gate().terms.lease,
            ends: held.begun().saturating_add(held.gate().terms.max_execution),
            confirmed: Arc::clone(&confirmed),
            cancellation,
        };
        let stopped = stop.clone();
        held.gate().shared.spawn(async move {
            beat.run(&shared, stopped).await;
            let _ = end.send(());
        });
        Self { stop: stop.drop_guard(), ended, confirmed, lease: held.gate().terms.lease.into() }
    }

    /// Until when, on the boot clock, the store is known to have believed the grant: counted from when the last confirmed
    /// call was sent.
    pub(super) fn believed_until(&self) -> Duration {
        Duration::from_millis(self.confirmed.load(Ordering::Acquire)) + self.lease
    }

    /// Stops it and waits for a renewal that is under way, so that none arrives after what follows.
    pub(super) async fn stop(self) {
        drop(self.stop);
        let _ = self.ended.await;
    }
}

struct Beat {
    grant: Grant,
    lease: Millis,
    ends: Duration,
    confirmed: Arc<AtomicU64>,
    cancellation: CancellationToken,
}

impl Beat {
    async fn run(self, shared: &Shared, stopped: CancellationToken) {
        loop {
            let pause = shared.runtime.sleep(self.interval(shared));
            if let Either::Left(_) = select(pin!(stopped.cancelled()), pause).await {
                return;
            }
            let sent = shared.runtime.boot();
            if sent >= self.ends {
                tracing::warn!(rk = ?self.grant.rk, "a handler ran for longer than max_execution; its lease is no longer renewed");
                return self.cancellation.cancel();
            }
            match self.renew(shared).await {
                Ok(Renewed::Yes) => self.confirmed.store(millis(sent), Ordering::Release),
                Ok(Renewed::Lost) => {
                    tracing::warn!(rk = ?self.grant.rk, token = self.grant.token.0, "a grant was lost while its handler ran");
                    return self.cancellation.cancel();
                }
                // The store forgot: nobody else can be told, so the attempt goes on and its answer recreates the record.
                Ok(Renewed::Gone) => {
                    tracing::warn!(rk = ?self.grant.rk, "the store has forgotten a record that is in progress");
                }
                Err(error) => tracing::warn!(rk = ?self.grant.rk, ?error, "a renewal failed"),
            }
        }
    }

    async fn renew(&self, shared: &Shared) -> Result<Renewed> {
        let claim = Claim::from(&self.grant);
        shared.ask(|protocol: Protocol<'_>| protocol.renew(&self.grant.rk, &claim)).await
    }

    /// A third of the lease, give or take a tenth of it, so that attempts begun together do not renew together.
    fn interval(&self, shared: &Shared) -> Duration {
        let mut byte = [0];
        shared.runtime.fill(&mut byte);
        let third = Duration::from(self.lease) / 3;
        third.mul_f64(0.9 + 0.2 * f64::from(byte[0]) / 255.0)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
