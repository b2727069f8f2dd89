//! The error of a command, with its exit code.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use hapax::ErrorKind;

use crate::causes::in_words;
use crate::serve::logs::escape_controls;

/// The error of a command, with its exit code.
#[derive(Debug)]
pub(crate) struct CommandError {
    code: u8,
    error: anyhow::Error,
}

impl CommandError {
    /// The command ran and failed: exit code 1.
    pub(crate) fn failed(error: anyhow::Error) -> Self {
        Self { code: 1, error }
    }

    /// The command line or the configuration is wrong: exit code 2.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self { code: 2, error: error.into() }
    }

    /// Something that the command needs is missing: exit code 3.
    pub(crate) fn cannot_start(error: impl Into<anyhow::Error>) -> Self {
        Self { code: 3, error: error.into() }
    }

    /// The same error, which names what it is about.
    pub(crate) fn about(self, subject: impl fmt::Display + Send + Sync + 'static) -> Self {
        Self { error: self.error.context(subject.to_string()), ..self }
    }

    /// Prints the error and its causes on standard error.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("hapax: {}", escape_controls(&in_words(self.error.as_ref())));
        ExitCode::from(self.code)
    }
}

/// How long a request of a command may take. The stores themselves set no deadline.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Waits for a request of a command.
pub(crate) async fn request<T>(call: impl Future<Output = hapax::Result<T>>) -> Result<T, CommandError> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) if error.kind() == ErrorKind::Invalid => Err(CommandError::usage(error)),
        Ok(Err(error)) => Err(CommandError::cannot_start(error)),
        Err(_) => Err(CommandError::cannot_start(anyhow!("the store does not reply within {DEADLINE:?}"))),
    }
}
