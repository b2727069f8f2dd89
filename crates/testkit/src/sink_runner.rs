use std::process::ExitCode;
use std::sync::Arc;

use tokio::runtime::Builder;

use crate::suite::sink::{SinkCapability, SinkCase, SinkSetup, sink_cases};
use crate::suite_runner::{AnyCase, SuiteBackend, run_suite};

/// A sink that the sink suite runs against.
pub type SinkBackend = SuiteBackend<SinkCase>;

impl AnyCase for SinkCase {
    type Capability = SinkCapability;

    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn needs(&self) -> Option<SinkCapability> {
        self.needs
    }
}

impl SinkBackend {
    /// A sink, with a function that runs a case on an empty one of its kind.
    pub fn new(name: &'static str, run: impl Fn(SinkCase) + Send + Sync + 'static) -> Self {
        Self::running(name, move |case| {
            run(case);
            Ok(())
        })
    }
}

/// Runs a case in real time.
///
/// # Panics
/// If the sink violates the case.
pub fn run_sink_case<S, F>(case: SinkCase, setup: impl FnOnce() -> F)
where
    S: SinkSetup + 'static,
    F: Future<Output = S>,
{
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { case.run(Arc::new(setup().await)).await });
}

/// Runs every case of the sink suite against every sink. Accepts the arguments of a standard test binary.
pub fn sink_main(backends: &[SinkBackend]) -> ExitCode {
    run_suite(&sink_cases(), backends)
}
