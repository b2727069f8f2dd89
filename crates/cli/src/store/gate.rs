//! A gate over the store of a command: start-up checks, journal, and the tasks that keep both in order.

use std::path::Path;
use std::sync::Arc;

use hapax::journal::{FileJournal, FileJournalSettings, StorePlace};
use hapax::runtime::Runtime;
use hapax::{Gate, Identity, Settings};
use hapax_systems::OpenedStore;

use crate::serve::exit::CommandError;
use crate::serve::shutdown::Shutdown;
use crate::store::checks::{CheckFailure, StoreChecks};
use crate::store::foreign::OwnJournal;
use crate::store::health::{CheckIntervals, ReportFindings, StoreHealth};
use crate::store::sweep::sweep;
use crate::store::unverified::UnverifiedStore;

/// The shortest timeout of a check of the store. A store reports after a second why it cannot connect, and the check
/// must not end before that.
const SHORTEST_CHECK: std::time::Duration = std::time::Duration::from_secs(3);

/// What a gate is started with.
pub(crate) struct GateStart<'a> {
    pub(crate) opened: OpenedStore,
    /// Where the store is. The journal carries it.
    pub(crate) place: StorePlace,
    pub(crate) namespace: &'a str,
    /// The configured secret, if there is one.
    pub(crate) secret: Option<Identity>,
    pub(crate) settings: &'a Settings,
    /// The directory of the journal. None without one.
    pub(crate) data_dir: Option<&'a Path>,
    /// What is checked beside the store and the journal.
    pub(crate) more: Vec<Arc<dyn ReportFindings>>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) intervals: CheckIntervals,
}

/// A gate that runs.
pub(crate) struct StartedGate {
    pub(crate) gate: Gate,
    pub(crate) journal: Option<Arc<FileJournal>>,
    pub(crate) health: Arc<StoreHealth>,
}

impl GateStart<'_> {
    /// Checks the store and starts the gate. An unreachable store does not prevent the start: until the checks pass,
    /// the gate treats the store as down.
    pub(crate) async fn start(self) -> Result<StartedGate, CommandError> {
        let checks = StoreChecks {
            store: Arc::clone(&self.opened.store),
            inspect: Arc::clone(&self.opened.inspect),
            runtime: Arc::clone(&self.runtime),
            namespace: self.namespace.to_owned(),
            secret: self.secret.clone(),
            timeout: self.settings.store_timeout.max(SHORTEST_CHECK),
        };
        let checked = checks.run().await;
        if let Err(CheckFailure::Refused(error)) = checked {
            return Err(CommandError::cannot_start(error));
        }
        let unverified = checked.is_err().then(|| Arc::new(UnverifiedStore::new(Arc::clone(&self.opened.store))));
        let journal = self.open_journal()?;
        let store = unverified.clone().map_or(self.opened.store, |unverified| unverified as _);
        let mut gate = Gate::builder(store, self.settings.clone()).runtime(self.runtime);
        if let Some(journal) = &journal {
            gate = gate.journal(Arc::clone(journal) as _);
        }
        let gate = gate.build().map_err(CommandError::cannot_start)?;
        let own = journal.clone().map(|journal| Arc::new(OwnJournal { journal, place: self.place }) as _);
        let more = self.more.into_iter().chain(own).collect();
        let health = Arc::new(StoreHealth::new(checks, gate.clone(), unverified, more));
        health.record_start(checked).await;
        let repeated = Arc::clone(&health);
        let intervals = self.intervals;
        tokio::spawn(async move { repeated.run(intervals).await });
        tokio::spawn(sweep(self.opened.inspect));
        Ok(StartedGate { gate, journal, health })
    }

    /// Opens the journal for answers that the store did not confirm.
    fn open_journal(&self) -> Result<Option<Arc<FileJournal>>, CommandError> {
        let Some(directory) = self.data_dir else {
            return Ok(None);
        };
        let journal =
            FileJournal::with(directory, &self.place, Arc::clone(&self.runtime), FileJournalSettings::default());
        journal.map(|journal| Some(Arc::new(journal))).map_err(CommandError::cannot_start)
    }
}

/// Closes the journal, within what is left of the drain.
pub(crate) async fn close_journal(journal: Option<&FileJournal>, shutdown: &Shutdown) {
    if let Some(journal) = journal
        && tokio::time::timeout(shutdown.left(), journal.close()).await.is_err()
    {
        tracing::warn!("the journal was not closed in time; its answers are kept, and the next start records them");
    }
}
