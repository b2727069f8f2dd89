//! Whether requests can be taken, from the start of the process to its end.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hapax::store::{Finding, Severity};
use hapax::{Error, Gate, OnLapse, OnStoreDown, Policy, Repeatable};
use tokio::time::{Instant, sleep};

use crate::ops::metrics::found;
use crate::store::checks::{CheckFailure, StoreChecks, TRIAL, trial};
use crate::store::unverified::UnverifiedStore;

/// How often a store is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckIntervals {
    /// While it cannot be used.
    pub(crate) again: Duration,
    /// While it can.
    pub(crate) check: Duration,
}

impl Default for CheckIntervals {
    fn default() -> Self {
        Self { again: Duration::from_secs(1), check: Duration::from_secs(60) }
    }
}

/// Looks at the store for as long as the process runs.
#[derive(Debug)]
pub(crate) struct StoreHealth {
    start_up: StoreChecks,
    /// Closed until the start-up checks have passed; none if they had when the process started.
    guard: Option<Arc<UnverifiedStore>>,
    gate: Gate,
    /// Of the trial calls that find out whether a store that was down is back.
    trial: Policy,
    seen: Mutex<LastCheck>,
}

/// What was seen last.
#[derive(Debug, Default)]
struct LastCheck {
    hindrance: String,
    /// What the last check found, and whatever a look since then has.
    findings: Vec<Finding>,
    /// What the last check found.
    checked: BTreeSet<String>,
    /// Of these, such as the check before found, too. What is found once may be an event, and no event is ever over.
    lasting: BTreeSet<String>,
}

impl StoreHealth {
    pub(crate) fn new(start_up: StoreChecks, gate: Gate, guard: Option<Arc<UnverifiedStore>>) -> Self {
        let mut trial = Policy::default();
        trial.retention = TRIAL.into();
        trial.on_lapse = OnLapse::Retry(Repeatable::declared("it does nothing"));
        trial.on_store_down = OnStoreDown::Reject;
        Self { start_up, guard, gate, trial, seen: Mutex::default() }
    }

    /// Says why no requests should be sent here now, if they should not.
    pub(crate) async fn is_ready(&self) -> Result<(), String> {
        if !self.may_be_used() {
            return Err(self.seen.lock().unwrap_or_else(PoisonError::into_inner).hindrance.clone());
        }
        let findings = self.start_up.findings().await.map_err(|error| error.to_string())?;
        // A store tells once what has happened, to whoever asks: what it tells now stays until the next check.
        self.add(&findings);
        if let Some(refusal) = findings.into_iter().find(|finding| finding.severity == Severity::Refuse) {
            return Err(refusal.message);
        }
        if self.gate.is_store_down() {
            return Err("the store has not taken records for a while; it is tried again every second".into());
        }
        Ok(())
    }

    fn may_be_used(&self) -> bool {
        self.guard.as_ref().is_none_or(|guard| guard.is_open())
    }

    /// Goes on until the process ends.
    pub(crate) async fn go_on(&self, pace: CheckIntervals) {
        let mut checked = Instant::now();
        loop {
            sleep(pace.again).await;
            if !self.may_be_used() {
                self.try_to_start().await;
            } else if self.gate.is_store_down() {
                self.try_a_call().await;
            }
            if self.may_be_used() && checked.elapsed() >= pace.check {
                checked = Instant::now();
                self.check().await;
            }
        }
    }

    /// What the first look at the store came to.
    pub(crate) fn began(&self, passed: Result<Vec<Finding>, CheckFailure>) {
        match passed {
            Ok(findings) => self.tell(&findings),
            Err(hindrance) => self.hindered(hindrance),
        }
    }

    async fn try_to_start(&self) {
        let passed = self.start_up.pass().await;
        if passed.is_ok() {
            tracing::info!("the store can be used; requests that need it are taken from now on");
            self.guard.iter().for_each(|guard| guard.open());
        }
        self.began(passed);
    }

    /// Says once why the store cannot be used.
    fn hindered(&self, hindrance: CheckFailure) {
        let is_lasting = matches!(hindrance, CheckFailure::Refused(_));
        let why = format!("{:#}", hindrance.into_error());
        let before = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut seen.hindrance, why.clone())
        };
        if before == why {
            return;
        }
        if is_lasting {
            tracing::error!("the store must not be used: {why}");
        } else {
            tracing::warn!("the store cannot be used yet; it is tried again every second: {why}");
        }
    }

    /// Nobody may be sent here while it is not known that the store is back: so this finds out.
    async fn try_a_call(&self) {
        if let Err(error) = self.call().await {
            tracing::debug!(?error, "the store is not back");
        }
    }

    async fn call(&self) -> Result<(), Error> {
        let call = trial(&*self.start_up.runtime, &self.start_up.namespace)?;
        // What becomes of it, the gate knows.
        drop(self.gate.with(&self.trial)?.run(call, |_| async { Ok(String::new()) }).await);
        Ok(())
    }

    async fn check(&self) {
        match self.start_up.findings().await {
            Ok(findings) => self.tell(&findings),
            Err(error) => tracing::warn!(?error, "the store could not be checked; it is tried again in a minute"),
        }
    }

    /// Each finding is logged when it comes, and counted for as long as it stays.
    fn tell(&self, findings: &[Finding]) {
        self.add(findings);
        let now: BTreeSet<_> = findings.iter().map(|finding| finding.message.clone()).collect();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in seen.lasting.difference(&now) {
            tracing::info!("no longer so: {gone}");
        }
        seen.lasting = seen.checked.intersection(&now).cloned().collect();
        seen.checked = now;
        seen.findings = findings.to_vec();
        found(findings);
    }

    fn add(&self, findings: &[Finding]) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for finding in findings {
            if seen.findings.contains(finding) {
                continue;
            }
            match finding.severity {
                Severity::Refuse => tracing::error!("the store should not be used any more: {}", finding.message),
                Severity::Warn => tracing::warn!("{}", finding.message),
            }
            seen.findings.push(finding.clone());
        }
        found(&seen.findings);
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
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn watch() -> StoreHealth {
        let runtime = Arc::new(Tokio::current());
        let store = Arc::new(Memory::with(Arc::clone(&runtime) as _, MemorySettings::default()));
        let gate = Gate::builder(Arc::clone(&store) as _, Settings::default()).build().unwrap();
        let (inspect, store): (Arc<dyn Inspect>, Arc<dyn Store>) = (Arc::clone(&store) as _, store);
        let (namespace, timeout) = ("test".to_owned(), Duration::from_secs(60));
        StoreHealth::new(StoreChecks { store, inspect, runtime, namespace, secret: None, timeout }, gate, None)
    }

    #[tokio::test]
    async fn a_finding_is_logged_once_and_counted_for_as_long_as_it_stays() {
        let finding = |severity, message: &str| Finding { severity, message: message.into() };
        let no_disk = finding(Severity::Warn, "persistence is off");
        let evicts = finding(Severity::Refuse, "records may be evicted");
        let forgot = finding(Severity::Warn, "records were lost");
        let (watch, log, recorder) = (watch(), Log::default(), PrometheusBuilder::new().build_recorder());
        let writer = log.clone();
        let dispatch = Dispatch::new(tracing_subscriber::fmt().with_writer(move || writer.clone()).finish());
        let page = |findings: &[Finding]| {
            tracing::dispatcher::with_default(&dispatch, || {
                metrics::with_local_recorder(&recorder, || watch.tell(findings));
            });
            recorder.handle().render()
        };
        let all = [forgot, no_disk, evicts];
        for (findings, warnings) in [(&all[..], 2), (&all[1..], 1), (&all[1..2], 1)] {
            let page = page(findings);
            for (severity, count) in [("warn", warnings), ("refuse", findings.len() - warnings)] {
                let series = format!("hapax_gateway_store_findings{{severity=\"{severity}\"}} {count}\n");
                assert!(page.contains(&series), "{series} {page}");
            }
        }
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log.matches("persistence is off").count(), 1, "{log}");
        assert_eq!(log.matches("should not be used any more: records may be evicted").count(), 1, "{log}");
        assert_eq!(log.matches("records were lost").count(), 1, "what happened is over as soon as it is told: {log}");
        assert_eq!(log.matches("no longer so: records may be evicted").count(), 1, "{log}");
    }

    #[tokio::test]
    async fn what_a_look_finds_is_shown_until_the_next_check() {
        let (watch, recorder) = (watch(), PrometheusBuilder::new().build_recorder());
        let lost = Finding { severity: Severity::Warn, message: "records were lost".into() };
        metrics::with_local_recorder(&recorder, || {
            let warnings = |count| {
                let series = format!("hapax_gateway_store_findings{{severity=\"warn\"}} {count}\n");
                assert!(recorder.handle().render().contains(&series), "{}", recorder.handle().render());
            };
            watch.add(&[lost]);
            watch.add(&[]);
            warnings(1);
            watch.tell(&[]);
            warnings(0);
        });
    }

    #[tokio::test]
    async fn what_is_found_when_readiness_is_asked_for_is_logged() {
        let (watch, log) = (watch(), Log::default());
        let writer = log.clone();
        let dispatch = Dispatch::new(tracing_subscriber::fmt().with_writer(move || writer.clone()).finish());
        let _here = tracing::dispatcher::set_default(&dispatch);
        assert_eq!(watch.is_ready().await, Ok(()));
        assert_eq!(watch.is_ready().await, Ok(()));
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log.matches("the memory store forgets every key").count(), 1, "{log}");
    }
}
