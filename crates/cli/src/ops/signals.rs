//! The signals that stop the process.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Returns a future that completes at the first SIGTERM or SIGINT, which asks for an orderly stop. A second signal ends
/// the process at once.
pub(crate) fn stop_signal() -> Result<impl Future<Output = ()>, anyhow::Error> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    // The handlers are registered now, so that a signal that arrives before the first poll is not lost.
    Ok(async move {
        wait_for_either(&mut terminate, &mut interrupt).await;
        tokio::spawn(async move {
            wait_for_either(&mut terminate, &mut interrupt).await;
            tracing::warn!(
                "stopped at once with requests still running; their leases will expire and retries follow --on-lapse"
            );
            std::process::exit(1);
        });
    })
}

async fn wait_for_either(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
