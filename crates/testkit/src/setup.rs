use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::runtime::BoxFuture;
use hapax_core::store::Inspect;
use hapax_core::{RecordKey, Store};
use libtest_mimic::{Arguments, Completion, Trial};

use crate::servers::required;

/// One empty store, and the means to bring it where a case wants it, so that nothing sleeps. A server implements them by its own means.
#[async_trait]
pub trait Setup: Send + Sync {
    /// The store under test.
    fn store(&self) -> Arc<dyn Store>;

    /// The same store's upkeep.
    fn inspect(&self) -> Arc<dyn Inspect>;

    /// Lets the lease of this record run out.
    async fn lapse(&self, rk: &RecordKey);

    /// Lets the life of this record run out.
    async fn expire(&self, rk: &RecordKey);

    /// Steps the store's clock.
    async fn step_clock(&self, step: Step);

    /// Damages the stored form of this record. Only called where `Capability::StoredForm` is not lacking.
    async fn corrupt(&self, rk: &RecordKey);

    /// Puts the golden record of version 1 into the store: completed, under [`golden_call`](crate::golden_call), with the
    /// answer [`GOLDEN_ANSWER`](crate::GOLDEN_ANSWER). Only called where `Capability::StoredForm` is not lacking.
    async fn put_golden(&self);
}

/// A step of a store's clock.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// This much ahead.
    Forward(Duration),
    /// This much back.
    Back(Duration),
}

/// What a store may lack, by its own declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Records lie in a form that can be damaged, and read by a later version.
    StoredForm,
    /// A store with no room left for a begin still has room for a completion.
    RoomToComplete,
    /// A mark counts the tokens of all keys: they grow also where a record is gone and the clock stepped back.
    Mark,
}

type MakeSetup = Box<dyn Fn() -> BoxFuture<'static, Box<dyn Setup>> + Send + Sync>;

/// A kind of store that the suite runs against.
pub struct Backend {
    name: &'static str,
    make: Arc<MakeSetup>,
    lacks: &'static [(Capability, &'static str)],
    service: Option<&'static str>,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backend({})", self.name)
    }
}

impl Backend {
    /// A kind of store, by a function that makes an empty one.
    pub fn new<F, T>(name: &'static str, make: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Future<Output = Box<dyn Setup>> + Send + 'static,
    {
        Self { name, make: Arc::new(Box::new(move || Box::pin(make()))), lacks: &[], service: None }
    }

    /// Declares what it lacks, each with the reason that is shown beside the ignored case.
    #[must_use]
    pub fn lacking(mut self, lacks: &'static [(Capability, &'static str)]) -> Self {
        self.lacks = lacks;
        self
    }

    /// Names the service behind it: without it, every case is shown as ignored with the reason, or fails where
    /// [`required`](crate::servers::required) says so.
    #[must_use]
    pub fn requiring(mut self, service: &'static str) -> Self {
        self.service = Some(service);
        self
    }

    fn lack(&self, needs: Option<Capability>) -> Option<&'static str> {
        self.lacks.iter().find(|(capability, _)| Some(*capability) == needs).map(|(_, reason)| *reason)
    }
}

/// One case of the suite: panics if the store does not keep the clause.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its stable name.
    pub name: &'static str,
    /// The clause of the store's contract.
    pub clause: u8,
    /// What the store must be able to do.
    pub needs: Option<Capability>,
    /// The case.
    pub run: for<'a> fn(&'a dyn Setup) -> BoxFuture<'a, ()>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (clause {})", self.name, self.clause)
    }
}

/// Runs every case against every backend, each on a store of its own. Takes the arguments of a usual test binary.
pub fn main(backends: &[Backend]) -> ExitCode {
    let arguments = Arguments::from_args();
    let trials =
        backends.iter().flat_map(|backend| super::cases().into_iter().map(move |case| trial(backend, case))).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(backend: &Backend, case: Case) -> Trial {
    let name = format!("{}::{}::clause_{:02}", backend.name, case.name, case.clause);
    let (make, lack, service) = (Arc::clone(&backend.make), backend.lack(case.needs), backend.service);
    Trial::ignorable_test(name, move || {
        if let Some(Err(missing)) = service.map(required) {
            return missing.verdict();
        }
        if let Some(reason) = lack {
            return Ok(Completion::ignored_with(reason));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(async move {
            let setup = make().await;
            (case.run)(&*setup).await;
        });
        Ok(Completion::Completed)
    })
}
