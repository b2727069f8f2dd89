//! The log of the process, on standard error or in a file.

mod access;
mod flood;
mod levels;
mod output;
mod queue;

use std::io::IsTerminal;
use std::iter;
use std::path::PathBuf;
use std::sync::Arc;

use hapax::telemetry::SPANS;
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::FilterExt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::serve::otlp::{self, CollectorUrl};
use flood::FloodLimit;
use output::{LogOutput, QueueWriter};

pub(crate) use access::AccessLine;
pub(crate) use flood::report_missing;
pub(crate) use levels::LogLevels;
pub(crate) use output::{end_with, escape_controls, lost_lines};

/// The target of the access log.
pub(crate) const ACCESS: &str = "hapax::access";

/// Which lines are logged, where, and in which format.
#[derive(Clone, Debug)]
pub(crate) struct LogSettings {
    pub(crate) levels: LogLevels,
    /// Without a format: text on a terminal, JSON otherwise.
    pub(crate) format: Option<LogFormat>,
    /// Without a file, the log goes to standard error.
    pub(crate) file: Option<PathBuf>,
    /// Where traces and metrics are exported to. Without it, the variables of OpenTelemetry decide.
    pub(crate) collector: Option<CollectorUrl>,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// The running log.
#[derive(Clone, Debug)]
pub(crate) struct Log(Arc<LogOutput>);

impl Log {
    /// Starts the log and the export of traces. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If the file cannot be opened, or if the settings of the export cannot be used.
    pub(crate) fn start(settings: &LogSettings) -> Result<Self, anyhow::Error> {
        let output = Arc::new(LogOutput::open(settings.file.as_deref())?);
        let is_terminal = settings.file.is_none() && std::io::stderr().is_terminal();
        let default = if is_terminal { LogFormat::Text } else { LogFormat::Json };
        let format = settings.format.unwrap_or(default);
        let lines = lines_to(QueueWriter, format);
        // Spans are for the export only.
        let levels = settings.levels.0.clone().with_target(SPANS, LevelFilter::OFF);
        let lines = lines.with_filter(levels.and(FloodLimit)).boxed();
        let layers: Vec<_> = iter::once(lines).chain(otlp::start(settings.collector.as_ref())?).collect();
        tracing_subscriber::registry().with(layers).init();
        if settings.levels.0.would_enable(ACCESS, &Level::INFO) {
            access::start(format);
        }
        tokio::spawn(flood::report_every_second());
        Ok(Self(output))
    }

    /// Opens the file of the log again, after it was renamed.
    pub(crate) fn reopen(&self) {
        match self.0.reopen() {
            Ok(()) => tracing::info!("the log file is open again"),
            Err(error) => tracing::error!("{error:#}; the log goes on in the file that is open"),
        }
    }
}

/// Formats events, and writes them there.
fn lines_to<W>(writer: W, format: LogFormat) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // The output escapes the control characters of colours, too.
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
    match format {
        LogFormat::Text => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}
