use std::process::ExitCode;

use tokio::runtime::Builder;

use crate::suite::ledger::{LedgerCapability, LedgerCase, LedgerSetup, Way, ledger_cases};
use crate::suite_runner::{AnyCase, SuiteBackend, run_suite};

/// A database that the ledger suite runs against.
pub type LedgerBackend = SuiteBackend<LedgerTrial>;

/// A case of the ledger suite in one of its ways.
#[derive(Clone, Copy, Debug)]
pub struct LedgerTrial(LedgerCase, Way);

impl AnyCase for LedgerTrial {
    type Capability = LedgerCapability;

    fn name(&self) -> String {
        self.0.name_by(self.1)
    }

    fn needs(&self) -> Option<LedgerCapability> {
        let of_way = (self.1 == Way::OwnSavepoint).then_some(LedgerCapability::Savepoints);
        self.0.needs.or(of_way)
    }
}

impl LedgerBackend {
    /// A database, with a function that creates an empty one with its tables.
    pub fn new<F, T>(name: &'static str, make: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Future<Output = Box<dyn LedgerSetup>> + 'static,
    {
        Self::running(name, move |LedgerTrial(case, way)| {
            Builder::new_current_thread().enable_all().build()?.block_on(async {
                let setup = make().await;
                case.run(&*setup, way).await;
            });
            Ok(())
        })
    }
}

/// Runs every case of the ledger suite in each of its ways against every database, each on a database of its own.
/// Accepts the arguments of a standard test binary.
pub fn ledger_main(backends: &[LedgerBackend]) -> ExitCode {
    let in_all_ways = |case: LedgerCase| case.ways.iter().map(move |&way| LedgerTrial(case, way));
    let trials: Vec<_> = ledger_cases().into_iter().flat_map(in_all_ways).collect();
    run_suite(&trials, backends)
}
