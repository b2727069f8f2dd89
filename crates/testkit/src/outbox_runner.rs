use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Completion, Trial};
use tokio::runtime::Builder;

use crate::servers::{end_shared, required};
use crate::suite::outbox::{OutboxCapability, OutboxCase, OutboxSetup, outbox_cases};

type MakeOutbox = Box<dyn Fn() -> LocalBoxFuture<'static, Box<dyn OutboxSetup>> + Send + Sync>;

/// A database that the outbox suite runs against.
pub struct OutboxBackend {
    name: &'static str,
    make: Arc<MakeOutbox>,
    lacks: &'static [(OutboxCapability, &'static str)],
    service: Option<&'static str>,
}

impl fmt::Debug for OutboxBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OutboxBackend({})", self.name)
    }
}

impl OutboxBackend {
    /// A database, with a function that creates an empty one with its tables.
    pub fn new<F, T>(name: &'static str, make: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Future<Output = Box<dyn OutboxSetup>> + 'static,
    {
        Self { name, make: Arc::new(Box::new(move || Box::pin(make()))), lacks: &[], service: None }
    }

    /// Declares lacking capabilities, each with the reason that is printed beside the ignored cases.
    #[must_use]
    pub fn lacking(mut self, lacks: &'static [(OutboxCapability, &'static str)]) -> Self {
        self.lacks = lacks;
        self
    }

    /// Names the service that the database needs. If [`required`](crate::servers::required) does not find the service,
    /// every case is ignored with the reason, or fails.
    #[must_use]
    pub fn requiring(mut self, service: &'static str) -> Self {
        self.service = Some(service);
        self
    }
}

/// Runs every case of the outbox suite against every database, each on a database of its own. Accepts the arguments of
/// a standard test binary.
pub fn outbox_main(backends: &[OutboxBackend]) -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for backend in backends {
        trials.extend(outbox_cases().into_iter().map(|case| trial(backend, case)));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    end_shared();
    conclusion.exit_code()
}

fn trial(backend: &OutboxBackend, case: OutboxCase) -> Trial {
    let lacking = backend.lacks.iter().find(|(capability, _)| Some(*capability) == case.needs);
    let (make, lacking, service) = (Arc::clone(&backend.make), lacking.map(|(_, reason)| *reason), backend.service);
    Trial::ignorable_test(format!("{}::{}", backend.name, case.name), move || {
        if let Some(Err(missing)) = service.map(required) {
            return missing.outcome();
        }
        if let Some(reason) = lacking {
            return Ok(Completion::ignored_with(reason));
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async move {
            let setup = make().await;
            case.run(&*setup).await;
        });
        Ok(Completion::Completed)
    })
}
