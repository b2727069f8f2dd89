//! The signals of the process: SIGTERM and SIGINT to stop, SIGHUP to reload.

use std::convert::Infallible;
use std::process;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How long the process may take to log its last lines after the limit of the drain, and after the second signal.
const TIME_FOR_LAST_LINES: Duration = Duration::from_secs(1);

/// The first signal asks for an orderly stop, the second one to stop at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopSignals {
    /// Cancelled at the first SIGTERM or SIGINT.
    pub(crate) first: CancellationToken,
    /// Cancelled at the second one.
    pub(crate) second: CancellationToken,
}

impl StopSignals {
    /// Handles the signals from now on, so that one that arrives before it is awaited is not lost. If the process has
    /// not ended soon after `limit` from the first signal, or soon after the second one, it ends with exit code 1.
    ///
    /// All of this happens on a thread of its own that logs nothing. Every other thread may be blocked, for instance
    /// because nobody reads the log.
    pub(crate) fn listen(limit: Duration) -> Result<Self, anyhow::Error> {
        let this = Self::default();
        let signals = this.clone();
        let (sender, is_listening) = mpsc::channel();
        let watch = move || {
            let Err(error) = this.watch(limit, &sender);
            let _ = sender.send(Err(error));
        };
        thread::Builder::new().name("stop-signals".into()).spawn(watch).context("the system has no thread left")?;
        is_listening.recv().context("cannot listen for signals")??;
        Ok(signals)
    }

    /// Ends the process. Returns only if the signals cannot be handled.
    fn watch(
        &self,
        limit: Duration,
        is_listening: &mpsc::Sender<Result<(), anyhow::Error>>,
    ) -> Result<Infallible, anyhow::Error> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        runtime.context("cannot listen for signals")?.block_on(async {
            let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
            let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
            let _ = is_listening.send(Ok(()));
            wait_for_either(&mut terminate, &mut interrupt).await;
            self.first.cancel();
            let second = wait_for_either(&mut terminate, &mut interrupt);
            if timeout(limit.saturating_add(TIME_FOR_LAST_LINES), second).await.is_ok() {
                self.second.cancel();
                sleep(TIME_FOR_LAST_LINES).await;
            }
            process::exit(1)
        })
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
pub(crate) async fn at_each(mut hangups: Signal, reload: impl Fn() + Clone + Send + 'static) {
    while hangups.recv().await.is_some() {
        // Blocks as long as a file is a pipe to which nobody writes. An error is a panic, which has been printed.
        let _ = spawn_blocking(reload.clone()).await;
    }
}
