//! The signals of the process: SIGTERM and SIGINT to stop, SIGHUP to reload.

use std::convert::Infallible;
use std::process;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
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
    /// because the log is a pipe without a reader.
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

/// The functions that open files again at a SIGHUP. A function may block, for instance while its file is a pipe without
/// a writer. It reports its own result.
pub(crate) struct Reloads<L, C> {
    /// Opens the log file, if there is one.
    pub(crate) log: Option<L>,
    /// Loads the server certificate, if there is one.
    pub(crate) certificate: Option<C>,
}

/// Opens the files again at each SIGHUP, also at one that arrived before. Never returns.
pub(crate) async fn at_each<L, C>(mut hangups: Signal, reloads: Reloads<L, C>)
where
    L: Fn() + Clone + Send + 'static,
    C: Fn() + Clone + Send + 'static,
{
    let names = [reloads.log.as_ref().map(|_| "the log file"), reloads.certificate.as_ref().map(|_| "the certificate")];
    let what = names.into_iter().flatten().collect::<Vec<_>>().join(" and ");
    let is_certificate_due = Arc::new(Notify::new());
    if let Some(load) = reloads.certificate {
        tokio::spawn(load_when_due(load, Arc::clone(&is_certificate_due)));
    }
    while hangups.recv().await.is_some() {
        if what.is_empty() {
            tracing::info!("SIGHUP: there is no log file and no server certificate to open again");
        } else {
            tracing::info!("SIGHUP: opening {what} again");
        }
        if let Some(open) = &reloads.log {
            // Before the certificate is loaded: in the old file nobody looks for the lines about it. An error is a
            // panic, which has been printed.
            let _ = spawn_blocking(open.clone()).await;
        }
        is_certificate_due.notify_one();
    }
}

/// Loads the certificate each time that it is due, and once more for all signals that arrive while it is loaded.
async fn load_when_due(load: impl Fn() + Clone + Send + 'static, is_due: Arc<Notify>) {
    loop {
        is_due.notified().await;
        let _ = spawn_blocking(load.clone()).await;
    }
}
