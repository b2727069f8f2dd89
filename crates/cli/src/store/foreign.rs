//! Answers for other stores in the directory of the journal, as findings.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use hapax::journal::{FileJournal, StorePlace};
use hapax::store::{Finding, Severity};

use crate::store::health::ReportFindings;

/// The journal of a process, and the place of its store.
#[derive(Clone, Debug)]
pub(crate) struct OwnJournal {
    pub(crate) journal: Arc<FileJournal>,
    pub(crate) place: StorePlace,
}

#[async_trait]
impl ReportFindings for OwnJournal {
    /// One finding for each other store whose answers are in the directory.
    async fn findings(&self) -> Vec<Finding> {
        let mut answers: BTreeMap<String, usize> = BTreeMap::new();
        for file in self.journal.foreign() {
            *answers.entry(file.place.to_string()).or_default() += file.answers;
        }
        let (directory, own) = (self.journal.directory().display(), &self.place);
        let found = answers.iter().map(|(from, count)| {
            let message = format!(
                "answers for another store are left alone in the journal: {count} of {from} in {directory}; if this \
                 store has replaced that one, run: hapax journal adopt --data-dir '{directory}' --from '{from}' \
                 --store '{own}', with the credentials of the store"
            );
            Finding { severity: Severity::Warn, message }
        });
        found.collect()
    }
}
