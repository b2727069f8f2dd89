//! The signals of the process: SIGTERM and SIGINT to stop, SIGHUP to reload.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The first signal asks for an orderly stop, the second one to stop at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopSignals {
    /// Cancelled at the first SIGTERM or SIGINT.
    pub(crate) first: CancellationToken,
    /// Cancelled at the second one.
    pub(crate) second: CancellationToken,
}

impl StopSignals {
    /// Handles the signals from now on, so that one that arrives before it is awaited is not lost.
    pub(crate) fn listen() -> Result<Self, anyhow::Error> {
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let this = Self::default();
        let signals = this.clone();
        tokio::spawn(async move {
            for token in [this.first, this.second] {
                wait_for_either(&mut terminate, &mut interrupt).await;
                token.cancel();
            }
        });
        Ok(signals)
    }
}

async fn wait_for_either(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Handles SIGHUP from now on: it no longer ends the process.
pub(crate) fn hangups() -> Result<Signal, anyhow::Error> {
    signal(SignalKind::hangup()).context("cannot listen for SIGHUP")
}

/// Calls the function at each SIGHUP, also at one that arrived before. Ends never.
pub(crate) async fn at_each(mut hangups: Signal, reload: impl Fn()) {
    while hangups.recv().await.is_some() {
        tracing::info!("SIGHUP: the log file and the server certificate are opened again");
        reload();
    }
}
