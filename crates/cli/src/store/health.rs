//! Repeats the checks of the store while the process runs, and reports whether the process is ready for requests.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax::store::{Finding, Severity};
use hapax::{Error, Gate, OnLapse, OnStoreDown, Policy, Repeatable};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::admin::listener::ReportReadiness;
use crate::serve::metrics::{set_findings, set_records_unknown};
use crate::store::checks::{CheckFailure, StoreChecks, TRIAL_RETENTION, trial_call};
use crate::store::unverified::UnverifiedStore;

/// How often the store is checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckIntervals {
    /// The interval while the store cannot be used.
    pub(crate) retry: Duration,
    /// The interval while the store can be used.
    pub(crate) check: Duration,
}

impl Default for CheckIntervals {
    fn default() -> Self {
        Self { retry: Duration::from_secs(1), check: Duration::from_secs(60) }
    }
}

/// What a process has beside its store that may need an operator.
#[async_trait]
pub(crate) trait ReportFindings: fmt::Debug + Send + Sync {
    /// What was found now.
    async fn findings(&self) -> Vec<Finding>;
}

/// Repeats the checks of the store as long as the process runs.
#[derive(Debug)]
pub(crate) struct StoreHealth {
    checks: StoreChecks,
    /// Refuses begins until the start-up checks pass. None if they passed when the process started.
    unverified: Option<Arc<UnverifiedStore>>,
    gate: Gate,
    /// What is checked beside the store.
    more: Vec<Arc<dyn ReportFindings>>,
    /// The policy of the trial calls that detect that a store is back.
    trial: Policy,
    last: Mutex<LastCheck>,
}

/// The result of the last check.
#[derive(Debug, Default)]
struct LastCheck {
    /// Why the start-up checks failed.
    failure: String,
    /// The findings of the last check and of each readiness request since then.
    findings: Vec<Finding>,
    /// The messages of the last check's findings.
    checked: BTreeSet<String>,
    /// Findings present in both of the last two checks; only these are logged as resolved. A finding that appears once
    /// may be an event, which has no end.
    lasting: BTreeSet<String>,
}

impl StoreHealth {
    pub(crate) fn new(
        checks: StoreChecks,
        gate: Gate,
        unverified: Option<Arc<UnverifiedStore>>,
        more: Vec<Arc<dyn ReportFindings>>,
    ) -> Self {
        let mut trial = Policy::default();
        trial.retention = TRIAL_RETENTION.into();
        trial.on_lapse = OnLapse::Retry(Repeatable::declared("a trial call has no effect"));
        trial.on_store_down = OnStoreDown::Reject;
        Self { checks, unverified, gate, more, trial, last: Mutex::default() }
    }

    fn is_verified(&self) -> bool {
        self.unverified.as_ref().is_none_or(|store| store.is_verified())
    }

    /// Repeats the checks until the process ends.
    pub(crate) async fn run(&self, intervals: CheckIntervals) {
        let mut checked_at = Instant::now();
        self.count_unknown().await;
        loop {
            sleep(intervals.retry).await;
            if !self.is_verified() {
                self.repeat_start_up_checks().await;
            } else if self.gate.is_store_down() {
                self.probe_store().await;
            }
            if self.is_verified() && checked_at.elapsed() >= intervals.check {
                checked_at = Instant::now();
                self.check().await;
            }
        }
    }

    /// Records the result of the start-up checks.
    pub(crate) async fn record_start(&self, passed: Result<Vec<Finding>, CheckFailure>) {
        match passed {
            Ok(findings) => self.record_check(&self.with_more(findings).await),
            Err(failure) => self.log_failure(failure),
        }
    }

    /// The findings about the store and about what is checked beside it.
    async fn findings(&self) -> Result<Vec<Finding>, Error> {
        Ok(self.with_more(self.checks.findings().await?).await)
    }

    async fn with_more(&self, mut findings: Vec<Finding>) -> Vec<Finding> {
        for more in &self.more {
            findings.extend(more.findings().await);
        }
        findings
    }

    async fn repeat_start_up_checks(&self) {
        let passed = self.checks.run().await;
        if passed.is_ok() {
            tracing::info!("the store has passed its checks; requests that need it are accepted from now on");
            self.unverified.iter().for_each(|store| store.set_verified());
        }
        self.record_start(passed).await;
    }

    /// Logs why the store cannot be used, unless the last check failed for the same reason.
    fn log_failure(&self, failure: CheckFailure) {
        let is_permanent = matches!(failure, CheckFailure::Refused(_));
        let reason = format!("{:#}", failure.into_error());
        let before = std::mem::replace(&mut self.last.lock().failure, reason.clone());
        if before == reason {
            return;
        }
        if is_permanent {
            tracing::error!("the store must not be used: {reason}");
        } else {
            tracing::warn!("the store cannot be used yet; the checks are repeated every second: {reason}");
        }
    }

    /// Makes a trial call, which closes the breaker of the gate if the store is back. While the store is down, the
    /// process is not ready and may get no requests that would do that.
    async fn probe_store(&self) {
        if let Err(error) = self.make_trial_call().await {
            tracing::debug!(?error, "the store is still down");
        }
    }

    async fn make_trial_call(&self) -> Result<(), Error> {
        let call = trial_call(&*self.checks.runtime, &self.checks.namespace)?;
        // The outcome is not needed: the gate closes its breaker if the call succeeds.
        drop(self.gate.with(&self.trial)?.run(call, |_| async { Ok(String::new()) }).await);
        Ok(())
    }

    async fn check(&self) {
        self.count_unknown().await;
        match self.findings().await {
            Ok(findings) => self.record_check(&findings),
            Err(error) => tracing::warn!(?error, "the store could not be checked; the next check is in a minute"),
        }
    }

    /// Counts the records with an unknown outcome, if the store can.
    async fn count_unknown(&self) {
        if let Ok(Some(count)) = self.checks.count_unknown().await {
            set_records_unknown(count);
        }
    }

    /// Logs new findings and resolved ones, and sets the metric to the findings of this check.
    fn record_check(&self, findings: &[Finding]) {
        self.add_findings(findings);
        let messages: BTreeSet<_> = findings.iter().map(|finding| finding.message.clone()).collect();
        let mut last = self.last.lock();
        for resolved in last.lasting.difference(&messages) {
            tracing::info!("resolved: {resolved}");
        }
        last.lasting = last.checked.intersection(&messages).cloned().collect();
        last.checked = messages;
        last.findings = findings.to_vec();
        set_findings(findings);
    }

    /// Logs the findings that are new since the last check, and counts them.
    fn add_findings(&self, findings: &[Finding]) {
        let mut last = self.last.lock();
        for finding in findings {
            if last.findings.contains(finding) {
                continue;
            }
            match finding.severity {
                Severity::Refuse => tracing::error!("the store should no longer be used: {}", finding.message),
                Severity::Warn => tracing::warn!("{}", finding.message),
            }
            last.findings.push(finding.clone());
        }
        set_findings(&last.findings);
    }
}

#[async_trait]
impl ReportReadiness for StoreHealth {
    async fn readiness(&self) -> Result<(), String> {
        if !self.is_verified() {
            return Err(self.last.lock().failure.clone());
        }
        let findings = self.findings().await.map_err(|error| error.to_string())?;
        // A store reports an event to only one check, so a finding of this one is kept until the next periodic check.
        self.add_findings(&findings);
        if let Some(refusal) = findings.into_iter().find(|finding| finding.severity == Severity::Refuse) {
            return Err(refusal.message);
        }
        if self.gate.is_store_down() {
            return Err("the store does not take records; a trial call tests it every second".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use hapax::runtime::Tokio;
    use hapax::store::{Memory, MemorySettings};
    use hapax::{Inspect, Settings, Store};
    use metrics_exporter_prometheus::PrometheusBuilder;
    use tracing::Dispatch;

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn store_health() -> StoreHealth {
        let runtime = Arc::new(Tokio::current());
        let store = Arc::new(Memory::with(Arc::clone(&runtime) as _, MemorySettings::default()));
        let gate = Gate::builder(Arc::clone(&store) as _, Settings::default()).build().unwrap();
        let (inspect, store): (Arc<dyn Inspect>, Arc<dyn Store>) = (Arc::clone(&store) as _, store);
        let (namespace, timeout) = ("test".to_owned(), Duration::from_secs(60));
        StoreHealth::new(
            StoreChecks { store, inspect, runtime, namespace, secret: None, timeout },
            gate,
            None,
            Vec::new(),
        )
    }

    #[tokio::test]
    async fn a_finding_is_logged_once_and_counted_until_it_is_resolved() {
        let finding = |severity, message: &str| Finding { severity, message: message.into() };
        let no_disk = finding(Severity::Warn, "persistence is off");
        let evicts = finding(Severity::Refuse, "records may be evicted");
        let event = finding(Severity::Warn, "records were lost");
        let (health, log, recorder) = (store_health(), Log::default(), PrometheusBuilder::new().build_recorder());
        let writer = log.clone();
        let dispatch = Dispatch::new(tracing_subscriber::fmt().with_writer(move || writer.clone()).finish());
        let page = |findings: &[Finding]| {
            tracing::dispatcher::with_default(&dispatch, || {
                metrics::with_local_recorder(&recorder, || health.record_check(findings));
            });
            recorder.handle().render()
        };
        let all = [event, no_disk, evicts];
        for (findings, warnings) in [(&all[..], 2), (&all[1..], 1), (&all[1..2], 1)] {
            let page = page(findings);
            for (severity, count) in [("warn", warnings), ("refuse", findings.len() - warnings)] {
                let series = format!("hapax_store_findings{{severity=\"{severity}\"}} {count}\n");
                assert!(page.contains(&series), "{series} {page}");
            }
        }
        let log = String::from_utf8(log.0.lock().clone()).unwrap();
        assert_eq!(log.matches("persistence is off").count(), 1, "{log}");
        assert_eq!(log.matches("should no longer be used: records may be evicted").count(), 1, "{log}");
        assert_eq!(log.matches("records were lost").count(), 1, "an event is logged once and never resolved: {log}");
        assert_eq!(log.matches("resolved: records may be evicted").count(), 1, "{log}");
    }

    #[tokio::test]
    async fn a_finding_of_a_readiness_request_is_counted_until_the_next_check() {
        let (health, recorder) = (store_health(), PrometheusBuilder::new().build_recorder());
        let lost = Finding { severity: Severity::Warn, message: "records were lost".into() };
        metrics::with_local_recorder(&recorder, || {
            let warnings = |count| {
                let series = format!("hapax_store_findings{{severity=\"warn\"}} {count}\n");
                assert!(recorder.handle().render().contains(&series), "{}", recorder.handle().render());
            };
            health.add_findings(&[lost]);
            health.add_findings(&[]);
            warnings(1);
            health.record_check(&[]);
            warnings(0);
        });
    }

    #[tokio::test]
    async fn a_finding_of_a_readiness_request_is_logged() {
        let (health, log) = (store_health(), Log::default());
        let writer = log.clone();
        let dispatch = Dispatch::new(tracing_subscriber::fmt().with_writer(move || writer.clone()).finish());
        let _here = tracing::dispatcher::set_default(&dispatch);
        assert_eq!(health.readiness().await, Ok(()));
        assert_eq!(health.readiness().await, Ok(()));
        let log = String::from_utf8(log.0.lock().clone()).unwrap();
        assert_eq!(log.matches("the memory store forgets every key").count(), 1, "{log}");
    }
}
