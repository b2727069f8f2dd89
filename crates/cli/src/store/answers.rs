//! Large answers beside the store: what `--answers` names.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax::Policy;
use hapax::runtime::Runtime;
use hapax::store::{Finding, Severity};
use hapax_systems::{AnswersUrl, OpenedAnswers, OpenedStore};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::serve::exit::CommandError;
use crate::store::checks::within_limit;
use crate::store::health::ReportFindings;

/// A journal may hold a completion until the end of the time for which an outcome may stay unknown. Lifecycle rules
/// count whole days.
const ROUNDING: Duration = Duration::from_secs(24 * 3600);

/// Where answers above a limit are kept.
#[derive(Clone, Debug)]
pub(crate) struct FarAnswersConfig {
    pub(crate) url: AnswersUrl,
    /// The largest answer that stays in its record, in bytes.
    pub(crate) inline: usize,
}

/// How often the place is checked. A check writes and removes an object, which a bucket with versions keeps.
const INTERVAL: Duration = Duration::from_secs(600);

/// The open place of large answers, among what a process checks. Nothing waits for a check of it: the store works
/// without the place.
#[derive(Clone, Debug)]
pub(crate) struct CheckedAnswers {
    opened: Arc<dyn OpenedAnswers>,
    last: Arc<Mutex<LastAnswersCheck>>,
}

#[derive(Debug, Default)]
struct LastAnswersCheck {
    /// When it began.
    begun: Option<Instant>,
    findings: Vec<Finding>,
    has_news: bool,
}

impl FarAnswersConfig {
    /// Opens the place, and lets it keep the large answers of this store. `policies` are those under which answers are
    /// recorded.
    pub(crate) fn around<'a>(
        &self,
        store: OpenedStore,
        policies: impl Iterator<Item = &'a Policy>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<(OpenedStore, CheckedAnswers), CommandError> {
        let life = |policy: &Policy| {
            policy.retention.max(policy.final_retention.unwrap_or_default()) + policy.unknown_retention + ROUNDING
        };
        let opened =
            self.url.open(policies.map(life).max(), Arc::clone(&runtime)).map_err(CommandError::cannot_start)?;
        Ok((opened.around(store, self.inline, runtime), CheckedAnswers { opened, last: Arc::default() }))
    }
}

impl CheckedAnswers {
    async fn check(self) {
        let found = within_limit(async { Ok(self.opened.check().await) }).await;
        let late = |error| Finding {
            severity: Severity::Warn,
            message: format!("the place for answers above --inline cannot be checked: {error}"),
        };
        let found = found.unwrap_or_else(|error| vec![late(error)]);
        let mut last = self.last.lock();
        last.has_news |= last.findings != found;
        last.findings = found;
    }
}

#[async_trait]
impl ReportFindings for CheckedAnswers {
    /// The findings of the last check. Begins another check in the background if one is due.
    async fn findings(&self) -> Vec<Finding> {
        let mut last = self.last.lock();
        if last.begun.is_none_or(|begun| begun.elapsed() >= INTERVAL) {
            last.begun = Some(Instant::now());
            tokio::spawn(self.clone().check());
        }
        last.findings.clone()
    }

    fn has_news(&self) -> bool {
        std::mem::take(&mut self.last.lock().has_news)
    }
}
