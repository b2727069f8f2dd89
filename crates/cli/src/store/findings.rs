//! The log of the findings of repeated checks. A finding is logged once, and once more when it is resolved.

use std::collections::BTreeSet;

use hapax::store::{Finding, Severity};
use parking_lot::Mutex;

use crate::serve::metrics::set_findings;

/// The findings of a process, from check to check.
#[derive(Debug)]
pub(crate) struct FindingLog {
    /// The checked thing, as the subject of a log line: "the store".
    what: &'static str,
    last: Mutex<LastCheck>,
}

/// The result of the last check.
#[derive(Debug, Default)]
struct LastCheck {
    /// The findings of the last check and of each readiness request since then.
    findings: Vec<Finding>,
    /// The messages of the last check's findings.
    checked: BTreeSet<String>,
    /// Findings present in both of the last two checks; only these are logged as resolved. A finding that appears once
    /// may be an event, which has no end.
    lasting: BTreeSet<String>,
}

impl FindingLog {
    pub(crate) fn of(what: &'static str) -> Self {
        Self { what, last: Mutex::default() }
    }

    /// Logs new findings and resolved ones, and sets the metric to the findings of this check.
    pub(crate) fn record(&self, findings: &[Finding]) {
        self.add(findings);
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
    pub(crate) fn add(&self, findings: &[Finding]) {
        let mut last = self.last.lock();
        for finding in findings {
            if last.findings.contains(finding) {
                continue;
            }
            match finding.severity {
                Severity::Refuse => tracing::error!("{} should no longer be used: {}", self.what, finding.message),
                Severity::Warn => tracing::warn!("{}", finding.message),
            }
            last.findings.push(finding.clone());
        }
        set_findings(&last.findings);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;

    use metrics_exporter_prometheus::PrometheusBuilder;
    use tracing::Dispatch;

    use super::*;

    #[derive(Clone, Default)]
    pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }

        /// A subscriber that writes to this log.
        pub(crate) fn dispatch(&self) -> Dispatch {
            let writer = self.clone();
            Dispatch::new(tracing_subscriber::fmt().with_writer(move || writer.clone()).finish())
        }
    }

    #[tokio::test]
    async fn a_finding_is_logged_once_and_counted_until_it_is_resolved() {
        let finding = |severity, message: &str| Finding { severity, message: message.into() };
        let no_disk = finding(Severity::Warn, "persistence is off");
        let evicts = finding(Severity::Refuse, "records may be evicted");
        let event = finding(Severity::Warn, "records were lost");
        let (findings_log, log, recorder) =
            (FindingLog::of("the store"), Log::default(), PrometheusBuilder::new().build_recorder());
        let dispatch = log.dispatch();
        let page = |findings: &[Finding]| {
            tracing::dispatcher::with_default(&dispatch, || {
                metrics::with_local_recorder(&recorder, || findings_log.record(findings));
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
        let log = log.text();
        assert_eq!(log.matches("persistence is off").count(), 1, "{log}");
        assert_eq!(log.matches("should no longer be used: records may be evicted").count(), 1, "{log}");
        assert_eq!(log.matches("records were lost").count(), 1, "an event is logged once and never resolved: {log}");
        assert_eq!(log.matches("resolved: records may be evicted").count(), 1, "{log}");
    }

    #[tokio::test]
    async fn a_finding_of_a_readiness_request_is_counted_until_the_next_check() {
        let (findings_log, recorder) = (FindingLog::of("the store"), PrometheusBuilder::new().build_recorder());
        let lost = Finding { severity: Severity::Warn, message: "records were lost".into() };
        metrics::with_local_recorder(&recorder, || {
            let warnings = |count| {
                let series = format!("hapax_store_findings{{severity=\"warn\"}} {count}\n");
                assert!(recorder.handle().render().contains(&series), "{}", recorder.handle().render());
            };
            findings_log.add(&[lost]);
            findings_log.add(&[]);
            warnings(1);
            findings_log.record(&[]);
            warnings(0);
        });
    }
}
