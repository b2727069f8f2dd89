//! What goes wrong between the gateway and the API: the log line, the metric and the response of each failure.

use std::io;
use std::time::Duration;

use hapax::http::{Outcome, Problem, ProblemDetails, ShowProblem};
use hapax::{BoxError, RecordKey};
use http::Response;
use tracing::field::{debug, display};

use crate::serve::metrics::UpstreamErrorKind;
use crate::upstream::SendError;

/// Why the client gets a problem instead of the response of the API.
#[derive(Debug)]
pub(super) enum UpstreamFailure {
    /// The API did not answer within this time.
    TimedOut(Duration),
    /// The API switched to another protocol unasked.
    Switched,
    /// The end of the response is uncertain, for this reason.
    Framing(&'static str),
    /// The API has not processed the request.
    Unsent(BoxError),
    /// The API may have processed the request.
    Cut(BoxError),
    /// The client sent its body too slowly (`TimedOut`), or broke it off. The API got a request without an end.
    Upload(io::ErrorKind),
}

impl From<SendError> for UpstreamFailure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Unsent(error) => Self::Unsent(error),
            SendError::Cut(error) => Self::Cut(error),
        }
    }
}

impl UpstreamFailure {
    /// Logs and counts the failure, and returns the problem that declares its outcome. `rk` is the record key of a
    /// protected request.
    pub(super) fn response<B: From<bytes::Bytes>>(self, rk: Option<RecordKey>) -> Response<B> {
        self.log(rk);
        let (kind, problem, outcome) = match self {
            Self::Upload(io::ErrorKind::TimedOut) => (None, Problem::BodyTimeout, Outcome::Unknown),
            Self::Upload(_) => (None, Problem::BodyCut, Outcome::Unknown),
            Self::TimedOut(_) => (Some(UpstreamErrorKind::Timeout), Problem::UpstreamTimeout, Outcome::Unknown),
            Self::Switched | Self::Framing(_) | Self::Cut(_) => {
                (Some(UpstreamErrorKind::Cut), Problem::UpstreamCut, Outcome::Unknown)
            }
            Self::Unsent(_) => {
                (Some(UpstreamErrorKind::Unreachable), Problem::UpstreamUnreachable, Outcome::NotApplied)
            }
        };
        if let Some(kind) = kind {
            kind.count();
        }
        outcome.declare_on(ProblemDetails::default().show(&problem, rk.as_ref()).map(B::from))
    }

    fn log(&self, rk: Option<RecordKey>) {
        let (rk, operation) = (rk.map(debug), rk.map(|rk| display(rk.operation())));
        match self {
            Self::Upload(kind) => {
                tracing::debug!(%kind, "a client did not send its body completely");
            }
            Self::TimedOut(limit) => {
                let timeout_s = limit.as_secs();
                tracing::warn!(rk, operation, timeout_s, "the API timed out; outcome unknown");
            }
            Self::Switched => {
                tracing::warn!(rk, operation, "the API switched protocols unasked; outcome unknown");
            }
            Self::Framing(why) => {
                tracing::warn!(rk, operation, "the end of an answer of the API is uncertain: {why}; outcome unknown");
            }
            Self::Unsent(error) => {
                tracing::warn!(rk, operation, %error, "the API is unreachable, or it rejected the stream unprocessed");
            }
            Self::Cut(error) => {
                let message = "the connection to the API failed during the request; outcome unknown";
                tracing::warn!(rk, operation, %error, "{message}");
            }
        }
    }
}
