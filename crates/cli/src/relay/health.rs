//! Whether a relay can work: its database and its sink, at its start, each minute and for `/readyz`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use async_trait::async_trait;
use hapax::outbox::Outbox;
use hapax::store::{Finding, Severity};
use tokio::time::sleep;

use crate::admin::listener::ReportReadiness;
use crate::relay::trial::WriteTrial;
use crate::store::checks::{CheckFailure, StoreChecks, usable, within_limit};
use crate::store::findings::FindingLog;
use crate::store::waiting::SinkSlot;

/// How often the checks are repeated.
const CHECK_EVERY: Duration = Duration::from_secs(60);

const RECORDS: &str = "records in its database";

/// The checks of a relay.
#[derive(Debug)]
pub(crate) struct RelayHealth {
    pub(crate) checks: StoreChecks,
    pub(crate) outbox: Arc<dyn Outbox>,
    pub(crate) sink: Arc<SinkSlot>,
    pub(crate) log: FindingLog,
    pub(super) trial: WriteTrial,
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
            (RECORDS, self.checks.run().await),
            ("sink", self.check_sink().await),
        ];
        let mut findings = Vec::new();
        for (what, checked) in checked {
            match checked {
                Ok(found) => findings.extend(named(what, found)),
                Err(CheckFailure::Refused(error)) => return Err(error),
                Err(CheckFailure::Unreachable(error)) => {
                    tracing::warn!("the {what} cannot be used yet; the relay tries again: {error:#}");
                }
            }
        }
        self.log.record(&findings);
        Ok(())
    }

    /// Repeats the checks each minute, until the process ends.
    pub(crate) async fn run(&self) {
        loop {
            sleep(CHECK_EVERY).await;
            self.check_again().await;
        }
    }

    /// Checks again, and logs findings that are new or resolved. If a part cannot be checked now, no finding counts as
    /// resolved.
    async fn check_again(&self) {
        let sink = async {
            match self.sink.opened() {
                Ok(sink) => sink.check().await,
                Err(_not_open_yet) => Ok(Vec::new()),
            }
        };
        let checked = [
            ("outbox", within_limit(self.outbox.check()).await),
            (RECORDS, self.checks.findings().await),
            ("sink", within_limit(sink).await),
        ];
        let (mut findings, mut is_complete) = (Vec::new(), true);
        for (what, checked) in checked {
            match checked {
                Ok(found) => findings.extend(named(what, found)),
                Err(error) => {
                    tracing::warn!(%error, "the {what} could not be checked; the next check is in a minute");
                    is_complete = false;
                }
            }
        }
        findings.extend(self.trial_finding().await);
        match is_complete {
            true => self.log.record(&findings),
            // A failed check says nothing about its earlier findings: they may still be true.
            false => self.log.add(&findings),
        }
    }

    /// The finding of the last trial to write, so that an alert tells of a full disk.
    async fn trial_finding(&self) -> Option<Finding> {
        let reason = self.trial.failure(&self.checks).await?;
        Some(Finding { severity: Severity::Refuse, message: format!("the {RECORDS}: {reason}") })
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

/// The findings, with the name of what was checked.
fn named(what: &str, findings: Vec<Finding>) -> impl Iterator<Item = Finding> {
    findings.into_iter().map(move |Finding { severity, message }| {
        let message = format!("the {what}: {message}");
        Finding { severity, message }
    })
}

#[async_trait]
impl ReportReadiness for RelayHealth {
    async fn readiness(&self) -> Result<(), String> {
        let findings = self.checks.findings().await.map_err(|error| format!("the database: {error}"))?;
        // A store reports an event to only one check.
        self.log.add(&named(RECORDS, findings.clone()).collect::<Vec<_>>());
        if let Some(refusal) = findings.into_iter().find(|finding| finding.severity == Severity::Refuse) {
            return Err(format!("the database: {}", refusal.message));
        }
        if let Some(finding) = self.trial_finding().await {
            self.log.add(std::slice::from_ref(&finding));
            return Err(finding.message);
        }
        self.check_outbox().await.map_err(|failure| format!("the outbox: {:#}", failure.into_error()))?;
        self.check_sink().await.map(drop).map_err(|failure| format!("the sink: {:#}", failure.into_error()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};

    use hapax::outbox::{MemoryOutbox, OutgoingEvent, Published, Sink};
    use hapax::runtime::Tokio;
    use hapax::store::{Memory, MemorySettings};
    use hapax::{Error, ErrorKind};
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::store::findings::tests::Log;

    fn health(sink: SinkSlot) -> RelayHealth {
        let runtime = Arc::new(Tokio::current());
        let store = Arc::new(Memory::with(Arc::clone(&runtime) as _, MemorySettings::default()));
        let (inspect, namespace) = (Arc::clone(&store) as _, "test".to_owned());
        let outbox = Arc::new(MemoryOutbox::new(Arc::clone(&runtime) as _));
        let checks = StoreChecks { store, inspect, runtime, namespace, secret: None, timeout: CHECK_EVERY };
        RelayHealth {
            checks,
            outbox,
            sink: Arc::new(sink),
            log: FindingLog::of("what the relay needs"),
            trial: WriteTrial::default(),
        }
    }

    #[tokio::test]
    async fn what_a_repeated_check_finds_is_logged_once_and_counted() {
        let health = health(SinkSlot::of("sink"));
        let (log, recorder) = (Log::default(), PrometheusBuilder::new().build_recorder());
        let _logged = tracing::dispatcher::set_default(&log.dispatch());
        let _counted = metrics::set_default_local_recorder(&recorder);
        health.check_again().await;
        health.check_again().await;
        let log = log.text();
        assert_eq!(log.matches("the records in its database: the memory store forgets every key").count(), 1, "{log}");
        let page = recorder.handle().render();
        assert!(page.contains("hapax_store_findings{severity=\"warn\"} 1\n"), "{page}");
    }

    /// A sink with one finding at its first two checks. It cannot be reached for the third one, and has no finding
    /// then.
    #[derive(Debug)]
    struct TestSink {
        name: Arc<str>,
        checks: AtomicU8,
    }

    #[async_trait]
    impl Sink for TestSink {
        fn name(&self) -> &Arc<str> {
            &self.name
        }

        fn max_len(&self) -> usize {
            usize::MAX
        }

        fn window(&self) -> Option<Duration> {
            None
        }

        async fn check(&self) -> hapax::Result<Vec<Finding>> {
            match self.checks.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => Ok(vec![Finding { severity: Severity::Warn, message: "it may lose events".into() }]),
                2 => Err(Error::new(ErrorKind::NotApplied, "it is away")),
                _ => Ok(Vec::new()),
            }
        }

        async fn publish(&self, _event: &Arc<OutgoingEvent>) -> Published {
            unreachable!("nothing is published")
        }

        async fn close(&self) {}
    }

    #[tokio::test]
    async fn a_check_that_fails_resolves_nothing() {
        let sink = TestSink { name: "test".into(), checks: AtomicU8::new(0) };
        let health = health(SinkSlot::with(Arc::new(sink)));
        let (log, recorder) = (Log::default(), PrometheusBuilder::new().build_recorder());
        let _logged = tracing::dispatcher::set_default(&log.dispatch());
        let _counted = metrics::set_default_local_recorder(&recorder);
        for (warnings, resolved) in [(2, 0), (2, 0), (2, 0), (1, 1)] {
            health.check_again().await;
            let (log, page) = (log.text(), recorder.handle().render());
            assert!(page.contains(&format!("hapax_store_findings{{severity=\"warn\"}} {warnings}\n")), "{page}");
            assert_eq!(log.matches("resolved: the sink: it may lose events").count(), resolved, "{log}");
            // Once at its start, and once when it is resolved.
            assert_eq!(log.matches("the sink: it may lose events").count(), 1 + resolved, "{log}");
        }
    }
}
