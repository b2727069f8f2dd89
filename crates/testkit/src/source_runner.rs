use std::process::ExitCode;
use std::sync::Arc;

use tokio::runtime::Builder;

use crate::suite::source::{SourceCapability, SourceCase, SourceSetup, source_cases};
use crate::suite_runner::{AnyCase, SuiteBackend, run_suite};

/// A source that the source suite runs against.
pub type SourceBackend = SuiteBackend<SourceCase>;

impl AnyCase for SourceCase {
    type Capability = SourceCapability;

    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn needs(&self) -> Option<SourceCapability> {
        self.needs
    }
}

impl SourceBackend {
    /// A source, with a function that runs a case on an empty one of its kind.
    pub fn new(name: &'static str, run: impl Fn(SourceCase) + Send + Sync + 'static) -> Self {
        Self::running(name, move |case| {
            run(case);
            Ok(())
        })
    }
}

/// Runs a case in real time.
///
/// # Panics
/// If the source violates the case.
pub fn run_source_case<S, F>(case: SourceCase, setup: impl FnOnce() -> F)
where
    S: SourceSetup + 'static,
    F: Future<Output = S>,
{
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { case.run(Arc::new(setup().await)).await });
}

/// Runs every case of the source suite against every source. Accepts the arguments of a standard test binary.
pub fn source_main(backends: &[SourceBackend]) -> ExitCode {
    run_suite(&source_cases(), backends)
}
