//! One command a file.

pub(crate) mod demo;
pub(crate) mod gateway;

use std::process::ExitCode;

use crate::causes::in_words;

/// Why a command ended badly, and the exit code that says so.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    error: anyhow::Error,
}

impl Failure {
    /// It ran and failed: 1.
    pub(crate) fn failed(error: anyhow::Error) -> Self {
        Self { code: 1, error }
    }

    /// The command line or the configuration is wrong: 2.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self { code: 2, error: error.into() }
    }

    /// Something it needs is not there: 3.
    pub(crate) fn cannot_start(error: impl Into<anyhow::Error>) -> Self {
        Self { code: 3, error: error.into() }
    }

    /// Says it on standard error, with its causes.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("hapax: {}", in_words(self.error.as_ref()));
        ExitCode::from(self.code)
    }
}
