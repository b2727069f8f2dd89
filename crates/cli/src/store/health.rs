//! Repeats the checks of the store while the process runs, and reports whether the process is ready for requests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax::store::{Finding, Severity};
use hapax::{Error, Gate, OnLapse, OnStoreDown, Policy, Repeatable};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::admin::listener::ReportReadiness;
use crate::serve::metrics::set_records_unknown;
use crate::store::checks::{CheckFailure, StoreChecks, TRIAL_RETENTION, trial_call};
use crate::store::findings::FindingLog;
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

    /// Whether something else was found since the last question, which should not wait for the next check.
    fn has_news(&self) -> bool {
        false
    }
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
    /// Why the start-up checks failed.
    failure: Mutex<String>,
    log: FindingLog,
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
        Self { checks, unverified, gate, more, trial, failure: Mutex::default(), log: FindingLog::of("the store") }
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
            // Each is asked, so that none keeps its news for a later check.
            let has_news = self.more.iter().filter(|more| more.has_news()).count() > 0;
            if self.is_verified() && (has_news || checked_at.elapsed() >= intervals.check) {
                checked_at = Instant::now();
                self.check().await;
            }
        }
    }

    /// Records the result of the start-up checks.
    pub(crate) async fn record_start(&self, passed: Result<Vec<Finding>, CheckFailure>) {
        match passed {
            Ok(findings) => self.log.record(&self.with_more(findings).await),
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
        let before = std::mem::replace(&mut *self.failure.lock(), reason.clone());
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
            Ok(findings) => self.log.record(&findings),
            Err(error) => tracing::warn!(?error, "the store could not be checked; the next check is in a minute"),
        }
    }

    /// Counts the records with an unknown outcome, if the store can.
    async fn count_unknown(&self) {
        if let Ok(Some(count)) = self.checks.count_unknown().await {
            set_records_unknown(count);
        }
    }
}

#[async_trait]
impl ReportReadiness for StoreHealth {
    async fn readiness(&self) -> Result<(), String> {
        if !self.is_verified() {
            return Err(self.failure.lock().clone());
        }
        let findings = self.findings().await.map_err(|error| error.to_string())?;
        // A store reports an event to only one check, so a finding of this one is kept until the next periodic check.
        self.log.add(&findings);
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
    use hapax::runtime::Tokio;
    use hapax::store::{Memory, MemorySettings};
    use hapax::{Inspect, Settings, Store};

    use super::*;
    use crate::store::findings::tests::Log;

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
    async fn a_finding_of_a_readiness_request_is_logged() {
        let (health, log) = (store_health(), Log::default());
        let _here = tracing::dispatcher::set_default(&log.dispatch());
        assert_eq!(health.readiness().await, Ok(()));
        assert_eq!(health.readiness().await, Ok(()));
        let log = log.text();
        assert_eq!(log.matches("the memory store forgets every key").count(), 1, "{log}");
    }
}
