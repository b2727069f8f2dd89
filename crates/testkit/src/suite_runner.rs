//! Runs the cases of a suite against every backend, as tests of one binary.

use std::fmt;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Trial};

use crate::servers::{end_shared, required};

/// What the runner needs to know of a case.
pub trait AnyCase: Copy + Send + Sync + 'static {
    /// What a case may need of a backend.
    type Capability: Copy + fmt::Debug + PartialEq + Send + Sync + 'static;

    /// The name of its test, behind the name of the backend.
    fn name(&self) -> String;

    /// The capability that it needs.
    fn needs(&self) -> Option<Self::Capability>;
}

/// What a suite with cases of the type `C` runs against.
pub struct SuiteBackend<C: AnyCase> {
    pub(crate) name: &'static str,
    run: Arc<RunCase<C>>,
    pub(crate) conditions: Conditions<C::Capability>,
    at_once: usize,
}

type RunCase<C> = dyn Fn(C) -> io::Result<()> + Send + Sync;

/// When the cases of a backend do not run.
#[derive(Clone, Copy)]
pub(crate) struct Conditions<K: 'static> {
    /// The capabilities that the backend lacks, each with the reason. A case that needs one is ignored.
    pub(crate) lacks: &'static [(K, &'static str)],
    /// The services that the backend needs. If one is missing, every case is ignored or fails.
    pub(crate) services: [Option<&'static str>; 2],
}

impl<C: AnyCase> fmt::Debug for SuiteBackend<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SuiteBackend({})", self.name)
    }
}

impl<C: AnyCase> SuiteBackend<C> {
    /// A backend, with a function that runs a case on an empty one of its kind.
    pub(crate) fn running(name: &'static str, run: impl Fn(C) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { name, run: Arc::new(run), conditions: Conditions { lacks: &[], services: [None; 2] }, at_once: 0 }
    }

    /// Declares lacking capabilities, each with the reason that is printed beside the ignored cases.
    #[must_use]
    pub fn lacking(mut self, lacks: &'static [(C::Capability, &'static str)]) -> Self {
        self.conditions.lacks = lacks;
        self
    }

    /// Names the service that the backend needs. If the service is missing, every case is ignored with the reason, or
    /// fails if `HAPAX_REQUIRE` names the service. If the service is broken, every case fails.
    #[must_use]
    pub fn requiring(mut self, service: &'static str) -> Self {
        self.conditions.require(service);
        self
    }

    /// Runs this many cases at once, because cases on a real service mostly wait. One number holds for the whole test
    /// binary: that of its arguments, or else the largest number of its backends.
    #[must_use]
    pub fn at_once(mut self, cases: usize) -> Self {
        self.at_once = cases;
        self
    }

    fn trial(&self, case: C) -> Trial {
        let run = Arc::clone(&self.run);
        self.conditions.trial(format!("{}::{}", self.name, case.name()), case.needs(), move || run(case))
    }
}

impl<K: Copy + PartialEq + Send> Conditions<K> {
    /// Adds a service to those that the backend needs.
    pub(crate) fn require(&mut self, service: &'static str) {
        let free = self.services.iter_mut().find(|service| service.is_none());
        *free.expect("a backend names two services at most") = Some(service);
    }

    /// A test that is ignored, or fails, without the service, and is ignored without the capability.
    pub(crate) fn trial(
        &self,
        name: String,
        needs: Option<K>,
        body: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Trial {
        let lacking = self.lacks.iter().find(|(capability, _)| Some(*capability) == needs).map(|(_, reason)| *reason);
        let services = self.services;
        Trial::ignorable_test(name, move || {
            if let Some(Err(missing)) = services.into_iter().flatten().map(required).find(Result::is_err) {
                return missing.outcome();
            }
            if let Some(reason) = lacking {
                return Ok(Completion::ignored_with(reason));
            }
            body()?;
            Ok(Completion::Completed)
        })
    }
}

/// Runs every case against every backend. Accepts the arguments of a standard test binary.
pub(crate) fn run_suite<C: AnyCase>(cases: &[C], backends: &[SuiteBackend<C>]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let at_once = backends.iter().map(|backend| backend.at_once).max().filter(|cases| *cases > 0);
    arguments.test_threads = arguments.test_threads.or(at_once);
    let trials = backends.iter().flat_map(|backend| cases.iter().map(|case| backend.trial(*case))).collect();
    run_trials(arguments, trials)
}

/// Runs tests, as many at once as the arguments say, or the variable of standard test binaries, or as there are cores.
pub(crate) fn run_trials(mut arguments: Arguments, trials: Vec<Trial>) -> ExitCode {
    let variable = || std::env::var("RUST_TEST_THREADS").ok()?.parse().ok();
    arguments.test_threads = arguments.test_threads.or_else(variable);
    let conclusion = libtest_mimic::run(&arguments, trials);
    end_shared();
    conclusion.exit_code()
}
