//! Whether a relay can work: its database and its sink.

use std::sync::Arc;

use anyhow::anyhow;
use async_trait::async_trait;
use hapax::outbox::Outbox;
use hapax::store::{Finding, Severity};

use crate::admin::listener::ReportReadiness;
use crate::relay::opening::SinkSlot;
use crate::store::checks::{CheckFailure, StoreChecks, usable};

/// The checks of a relay, at its start and for `/readyz`.
#[derive(Debug)]
pub(crate) struct RelayHealth {
    pub(crate) checks: StoreChecks,
    pub(crate) outbox: Arc<dyn Outbox>,
    pub(crate) sink: Arc<SinkSlot>,
}

impl RelayHealth {
    /// Checks the database and the sink, and logs what an operator should know.
    ///
    /// # Errors
    /// If one of them must not be used, or cannot be used until an operator changes something. What cannot be reached
    /// is no error: the relay tries again.
    pub(crate) async fn check_start(&self) -> Result<(), anyhow::Error> {
        let checked = [
            ("outbox", self.check_outbox().await),
            ("records in its database", self.checks.run().await),
            ("sink", self.check_sink().await),
        ];
        for (what, checked) in checked {
            match checked {
                Ok(findings) => findings.iter().for_each(|finding| tracing::warn!("the {what}: {}", finding.message)),
                Err(CheckFailure::Refused(error)) => return Err(error),
                Err(CheckFailure::Unreachable(error)) => {
                    tracing::warn!("the {what} cannot be used yet; the relay tries again: {error:#}");
                }
            }
        }
        Ok(())
    }

    /// The findings of the outbox: its tables, and the rights of the relay.
    async fn check_outbox(&self) -> Result<Vec<Finding>, CheckFailure> {
        usable(self.outbox.check()).await
    }

    /// The findings of the sink.
    async fn check_sink(&self) -> Result<Vec<Finding>, CheckFailure> {
        let sink = self.sink.opened().map_err(|reason| CheckFailure::Unreachable(anyhow!(reason)))?;
        usable(sink.check()).await
    }
}

#[async_trait]
impl ReportReadiness for RelayHealth {
    async fn readiness(&self) -> Result<(), String> {
        let findings = self.checks.findings().await.map_err(|error| format!("the database: {error}"))?;
        if let Some(refusal) = findings.into_iter().find(|finding| finding.severity == Severity::Refuse) {
            return Err(format!("the database: {}", refusal.message));
        }
        self.check_outbox().await.map_err(|failure| format!("the outbox: {:#}", failure.into_error()))?;
        self.check_sink().await.map(drop).map_err(|failure| format!("the sink: {:#}", failure.into_error()))
    }
}
