use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Trial};

use crate::servers::{end_shared, required};
use crate::suite::sink::{SinkCapability, SinkCase, SinkSetup, sink_cases};

type RunSinkCase = dyn Fn(SinkCase) + Send + Sync;

/// A sink that the sink suite runs against.
#[derive(Clone)]
pub struct SinkBackend {
    name: &'static str,
    run: Arc<RunSinkCase>,
    lacks: &'static [(SinkCapability, &'static str)],
    service: Option<&'static str>,
    at_once: usize,
}

impl fmt::Debug for SinkBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SinkBackend({})", self.name)
    }
}

impl SinkBackend {
    /// A sink, with a function that runs a case on an empty one of its kind.
    pub fn new(name: &'static str, run: impl Fn(SinkCase) + Send + Sync + 'static) -> Self {
        Self { name, run: Arc::new(run), lacks: &[], service: None, at_once: 0 }
    }

    /// Declares lacking capabilities, each with the reason that is printed beside the ignored cases.
    #[must_use]
    pub fn lacking(mut self, lacks: &'static [(SinkCapability, &'static str)]) -> Self {
        self.lacks = lacks;
        self
    }

    /// Runs this many cases at once, unless the arguments say otherwise: those of a real one mostly wait.
    #[must_use]
    pub fn at_once(mut self, cases: usize) -> Self {
        self.at_once = cases;
        self
    }

    /// Names the service that the sink needs. If [`required`](crate::servers::required) does not find the service,
    /// every case is ignored with the reason, or fails.
    #[must_use]
    pub fn requiring(mut self, service: &'static str) -> Self {
        self.service = Some(service);
        self
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { case.run(Arc::new(setup().await)).await });
}

/// Runs every case of the sink suite against every sink. Accepts the arguments of a standard test binary.
pub fn sink_main(backends: &[SinkBackend]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let at_once = backends.iter().map(|backend| backend.at_once).max().filter(|cases| *cases > 0);
    arguments.test_threads = arguments.test_threads.or(at_once);
    let mut trials = Vec::new();
    for backend in backends {
        trials.extend(sink_cases().into_iter().map(|case| trial(backend.clone(), case)));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    end_shared();
    conclusion.exit_code()
}

fn trial(backend: SinkBackend, case: SinkCase) -> Trial {
    let lacking = backend.lacks.iter().find(|(capability, _)| Some(*capability) == case.needs);
    let lacking = lacking.map(|(_, reason)| *reason);
    Trial::ignorable_test(format!("{}::{}", backend.name, case.name), move || {
        if let Some(Err(missing)) = backend.service.map(required) {
            return missing.outcome();
        }
        if let Some(reason) = lacking {
            return Ok(Completion::ignored_with(reason));
        }
        (backend.run)(case);
        Ok(Completion::Completed)
    })
}
