use std::process::ExitCode;

use tokio::runtime::Builder;

use crate::suite::outbox::{OutboxCapability, OutboxCase, OutboxSetup, outbox_cases};
use crate::suite_runner::{AnyCase, SuiteBackend, run_suite};

/// A database that the outbox suite runs against.
pub type OutboxBackend = SuiteBackend<OutboxCase>;

impl AnyCase for OutboxCase {
    type Capability = OutboxCapability;

    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn needs(&self) -> Option<OutboxCapability> {
        self.needs
    }
}

impl OutboxBackend {
    /// A database, with a function that creates an empty one with its tables.
    pub fn new<F, T>(name: &'static str, make: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Future<Output = Box<dyn OutboxSetup>> + 'static,
    {
        Self::running(name, move |case| {
            Builder::new_current_thread().enable_all().build()?.block_on(async {
                let setup = make().await;
                case.run(&*setup).await;
            });
            Ok(())
        })
    }
}

/// Runs every case of the outbox suite against every database, each on a database of its own. Accepts the arguments of
/// a standard test binary.
pub fn outbox_main(backends: &[OutboxBackend]) -> ExitCode {
    run_suite(&outbox_cases(), backends)
}
