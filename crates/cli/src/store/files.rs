use async_trait::async_trait;
use hapax::store::{Finding, Severity};
use hapax_systems::WatchedFile;
use parking_lot::Mutex;

use crate::store::health::ReportFindings;

/// The files that a process has open beside its store.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles(Mutex<Vec<Box<dyn WatchedFile>>>);

impl OpenFiles {
    /// Watches a file from now on, if there is one.
    pub(crate) fn watch(&self, file: Option<Box<dyn WatchedFile>>) {
        self.0.lock().extend(file);
    }
}

#[async_trait]
impl ReportFindings for OpenFiles {
    async fn findings(&self) -> Vec<Finding> {
        let files = self.0.lock();
        let moved = files.iter().filter_map(|file| file.check().err());
        let refuse = |moved: hapax::Error| Finding { severity: Severity::Refuse, message: moved.to_string() };
        moved.map(refuse).collect()
    }
}
