use async_trait::async_trait;
use hapax::store::Finding;

use super::dead::DeadLetterPlace;
use super::sources::SourceUrl;
use crate::store::health::ReportFindings;

/// The SQLite files that a process has open beside its store.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    #[cfg(feature = "sqlite")]
    files: parking_lot::Mutex<Vec<hapax::stores::SqliteFile>>,
}

impl OpenFiles {
    /// Watches the file of the source from now on, if it has one.
    pub(crate) fn watch_source(&self, source: &SourceUrl) -> hapax::Result<()> {
        match *source {
            #[cfg(feature = "sqlite")]
            SourceUrl::Sqlite { ref path, .. } => self.watch(path),
            #[cfg(feature = "kafka")]
            SourceUrl::Kafka(_) => Ok(()),
            #[cfg(feature = "nats")]
            SourceUrl::Nats(_) => Ok(()),
        }
    }

    /// Watches the file of the dead letters from now on, if they have one.
    pub(crate) fn watch_dead_letters(&self, place: &DeadLetterPlace) -> hapax::Result<()> {
        match place {
            #[cfg(feature = "sqlite")]
            DeadLetterPlace::Kept(super::StoreUrl::Sqlite(path)) => self.watch(path),
            DeadLetterPlace::Kept(_) | DeadLetterPlace::Published(_) => Ok(()),
        }
    }

    #[cfg(feature = "sqlite")]
    fn watch(&self, path: &std::path::Path) -> hapax::Result<()> {
        self.files.lock().push(hapax::stores::SqliteFile::at(path)?);
        Ok(())
    }
}

#[async_trait]
impl ReportFindings for OpenFiles {
    #[cfg(feature = "sqlite")]
    async fn findings(&self) -> Vec<Finding> {
        let files = self.files.lock();
        let moved = files.iter().filter_map(|file| file.check().err());
        let refuse =
            |moved: hapax::Error| Finding { severity: hapax::store::Severity::Refuse, message: moved.to_string() };
        moved.map(refuse).collect()
    }

    #[cfg(not(feature = "sqlite"))]
    async fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }
}
