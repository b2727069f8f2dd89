//! Traces and metrics for a collector of OpenTelemetry, over OTLP in HTTP. The feature `otlp` builds the export in;
//! without it, a collector in the settings is an error.

#[cfg(feature = "otlp")]
mod export;
#[cfg(not(feature = "otlp"))]
#[path = "otlp/without_export.rs"]
mod export;
pub(crate) mod spans;

pub(crate) use export::{end_within, inject, join_fields, join_message, push_metrics, start, traced};

use anyhow::{anyhow, bail};
use http::Uri;
use tracing_subscriber::{Layer, Registry};

/// Makes spans from what the code reports. None: nothing is exported.
pub(crate) type SpanLayer = Option<Box<dyn Layer<Registry> + Send + Sync>>;

/// The address of a collector, from `--otlp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CollectorUrl(String);

impl CollectorUrl {
    /// Reads a URL such as `http://127.0.0.1:4318`. Credentials belong into the variable for headers.
    ///
    /// # Errors
    /// If the text is no such URL.
    pub(crate) fn parse(text: &str) -> Result<Self, anyhow::Error> {
        let write = || anyhow!("write the URL of a collector for OTLP in HTTP, for instance http://127.0.0.1:4318");
        let url: Uri = text.parse().map_err(|_| write())?;
        let is_http = matches!(url.scheme_str(), Some("http" | "https"));
        let authority = url.authority().filter(|_| is_http && url.query().is_none()).ok_or_else(write)?;
        if authority.as_str().contains('@') {
            bail!("write no credentials into the URL; use OTEL_EXPORTER_OTLP_HEADERS");
        }
        Ok(Self(text.trim_end_matches('/').to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_has_a_url_without_credentials() {
        for good in ["http://127.0.0.1:4318", "https://collector.example/otlp/"] {
            assert_eq!(CollectorUrl::parse(good).unwrap().0, good.trim_end_matches('/'));
        }
        for wrong in ["", "collector:4317", "grpc://c:4317", "http://user:secret@c", "http://c/?token=secret"] {
            let error = CollectorUrl::parse(wrong).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
