//! What the server denies a user. It replies nothing to a request that is denied, and reports it apart from that.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;

use async_nats::{Event, ServerError};
use futures_util::future::{Either, select};
use hapax_core::Error;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::errors::unusable;

/// The last report of a connection.
#[derive(Clone)]
pub(super) struct Denials(Arc<watch::Sender<String>>);

impl Denials {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(String::new())))
    }

    /// Takes an event of the connection.
    pub(super) fn note(&self, event: &Event) {
        if *event == Event::Disconnected {
            warn!("the connection to the NATS server is lost; it is being restored");
        }
        let Event::ServerError(ServerError::Other(report)) = event else {
            debug!(%event, "the connection to NATS");
            return;
        };
        warn!("the NATS server reports: {report}");
        if report.to_lowercase().contains("permissions violation") {
            self.0.send_replace(report.clone());
        }
    }

    /// Runs requests, until the server denies something that has to do with `subject`.
    ///
    /// # Errors
    /// `Unusable` with the report of the server.
    pub(super) async fn watch<T>(&self, subject: &str, requests: impl Future<Output = T> + Send) -> Result<T, Error> {
        let mut reports = self.0.subscribe();
        let denied = async {
            // An error would mean that the sender is gone, and it lives as long as this value.
            while reports.changed().await.is_ok() {
                let report = reports.borrow_and_update().clone();
                if report.contains(subject) {
                    return report;
                }
            }
            pending().await
        };
        match select(pin!(requests), pin!(denied)).await {
            Either::Left((result, _)) => Ok(result),
            Either::Right((report, _)) => {
                Err(unusable(format!("the NATS user lacks a right that this program needs: {report}")))
            }
        }
    }
}
