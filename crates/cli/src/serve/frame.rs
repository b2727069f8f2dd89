//! The frame of gateway, worker and relay: how each of them starts, is watched by operators, and stops.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;

use crate::admin::access::AdminAccess;
use crate::admin::api::AdminApi;
use crate::admin::listener::{self, AdminState, ReportReadiness};
use crate::config::{self, AdminConfig};
use crate::serve::bind::bind;
use crate::serve::exit::CommandError;
use crate::serve::history::MetricHistory;
use crate::serve::logs::{self, Log, LogSettings};
use crate::serve::shutdown::Shutdown;
use crate::serve::signals::{self, Reloads, StopSignals};
use crate::serve::{metrics, otlp};
use crate::tls::ServerCertificate;

/// What a process is started with.
#[derive(Debug)]
pub(crate) struct FrameSettings {
    pub(crate) log: LogSettings,
    pub(crate) admin: AdminConfig,
    /// The files with the server certificate and its key.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    /// How long connections are accepted after a stop signal.
    pub(crate) drain_delay: Duration,
    /// How long the whole stop may take.
    pub(crate) drain: Duration,
    /// The end of the log line for a stop signal that arrives before the start is complete.
    pub(crate) nothing_done: &'static str,
}

/// What a process has from its start on.
#[derive(Debug)]
pub(crate) struct ProcessFrame {
    pub(crate) stop: StopSignals,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) metrics: PrometheusHandle,
    pub(crate) history: MetricHistory,
    pub(crate) admin: AdminConfig,
    /// None without TLS for clients.
    pub(crate) certificate: Option<Arc<ServerCertificate>>,
}

impl ProcessFrame {
    /// Handles the stop signals, starts the log and the metrics, and opens what the process needs. `open` may block as
    /// long as a file is a pipe with nobody at its other end. Returns None if a stop signal arrives before all is open.
    ///
    /// # Errors
    /// If a file cannot be used, or those of `open`.
    pub(crate) async fn start<T: Send + 'static>(
        hangups: Signal,
        settings: FrameSettings,
        open: impl FnOnce() -> Result<T, CommandError> + Send + 'static,
    ) -> Result<Option<(Self, T)>, CommandError> {
        let FrameSettings { log, admin, tls, drain_delay, drain, nothing_done } = settings;
        let stop = StopSignals::listen(drain).map_err(CommandError::cannot_start)?;
        let has_log_file = log.file.is_some();
        let opening = spawn_blocking(move || {
            let log = start_log(&log)?;
            let certificate = tls.map(|(cert, key)| ServerCertificate::load(&cert, &key)).transpose();
            Ok::<_, CommandError>((log, certificate.map_err(CommandError::cannot_start)?, open()?))
        });
        let (log, certificate, opened) = tokio::select! {
            opened = opening => opened.map_err(CommandError::cannot_start)??,
            () = stop.first.cancelled() => {
                tracing::warn!("stopped before the start was complete; {nothing_done}");
                return Ok(None);
            }
        };
        let log = has_log_file.then_some(move || log.reopen());
        let loaded = certificate.clone().map(|loaded| move || loaded.reload());
        tokio::spawn(signals::at_each(hangups, Reloads { log, certificate: loaded }));
        let metrics = metrics::install().map_err(CommandError::cannot_start)?;
        let history = MetricHistory::start(metrics.clone());
        let shutdown = Arc::new(Shutdown::new(drain_delay, drain));
        Ok(Some((Self { stop, shutdown, metrics, history, admin, certificate }, opened)))
    }

    /// Listens on the admin address.
    pub(crate) async fn bind_admin(&self) -> Result<TcpListener, CommandError> {
        bind(self.admin.listen).await
    }

    /// Serves the admin listener until the process ends.
    pub(crate) fn serve_admin(&self, private: TcpListener, health: Arc<dyn ReportReadiness>, api: AdminApi) {
        let (metrics, access) = (self.metrics.clone(), AdminAccess::new(&self.admin));
        let api = AdminApi { history: Some(self.history.clone()), ..api };
        let state = AdminState { health, metrics, access, api: Arc::new(api), shutdown: Arc::clone(&self.shutdown) };
        tokio::spawn(listener::serve(private, state));
    }

    /// Waits for the first stop signal, and then for the delay of the stop.
    pub(crate) async fn stopping(&self) {
        self.shutdown.wait(self.stop.first.cancelled()).await;
    }

    /// Ends the process after the second stop signal: waits only until the log is written. If that takes longer than a
    /// second, the thread of the stop signals ends the process.
    pub(crate) fn exit_at_once(&self) -> ! {
        logs::end_with(self.shutdown.left(), logs::report_missing);
        process::exit(1)
    }

    /// Exports the last traces and metrics.
    pub(crate) async fn end_export(&self) {
        otlp::end_within(self.shutdown.left_for_requests()).await;
    }
}

/// Starts the log. Its first lines name the variables that look like settings and are none.
fn start_log(settings: &LogSettings) -> Result<Log, CommandError> {
    let log = Log::start(settings).map_err(CommandError::cannot_start)?;
    for (name, guess) in config::mistyped(std::env::vars_os()) {
        tracing::warn!("{name} is not a setting and is ignored; did you mean {guess}?");
    }
    Ok(log)
}

/// Handles SIGHUP from now on. A process calls it first of all, because an unhandled SIGHUP ends it.
pub(crate) fn handle_hangups() -> Result<Signal, CommandError> {
    signals::hangups().map_err(CommandError::cannot_start)
}

/// Prints what `--check` finds.
pub(crate) fn print_checked(text: &str) -> ExitCode {
    // An error means that the reader has closed the pipe, for instance `hapax gateway --check | head`.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}
