use async_trait::async_trait;
use hapax::store::{Finding, Severity};
use hapax_systems::{SourceUrl, WatchedFile};
use parking_lot::Mutex;

use super::dead::DeadLetterPlace;
use crate::store::health::ReportFindings;

/// The files that a process has open beside its store.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles(Mutex<Vec<Box<dyn WatchedFile>>>);

impl OpenFiles {
    /// Watches the file of the source from now on, if it has one.
    pub(crate) fn watch_source(&self, source: &SourceUrl) -> hapax::Result<()> {
        self.0.lock().extend(source.watch()?);
        Ok(())
    }

    /// Watches the file of the dead letters from now on, if they have one.
    pub(crate) fn watch_dead_letters(&self, place: &DeadLetterPlace) -> hapax::Result<()> {
        match place {
            #[cfg(feature = "sqlite")]
            DeadLetterPlace::Kept(super::StoreUrl::Sqlite(path)) => {
                self.0.lock().push(Box::new(hapax::stores::SqliteFile::at(path)?));
                Ok(())
            }
            DeadLetterPlace::Kept(_) | DeadLetterPlace::Published(_) => Ok(()),
        }
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
