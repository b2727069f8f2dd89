use std::env;
use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::runtime::BoxFuture;
use hapax_core::store::Inspect;
use hapax_core::{RecordKey, Store};
use libtest_mimic::{Arguments, Completion, Trial};
use tokio::runtime::Builder;

use crate::differential::differential;
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

    /// The stored form of this record, of stores that keep one value per record as [`Record::encode`](hapax_core::Record::encode) writes it.
    async fn value(&self, _rk: &RecordKey) -> Option<Bytes> {
        None
    }
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
    sequences: u64,
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
        Self {
            name,
            make: Arc::new(Box::new(move || Box::pin(make()))),
            lacks: &[],
            service: None,
            sequences: SEQUENCES,
        }
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

    /// How many sequences it is compared by, 2,000 by default: for stores that sync to a disk.
    #[must_use]
    pub fn sequences(mut self, sequences: u64) -> Self {
        self.sequences = sequences;
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

/// By how many sequences a store is compared with the one in memory; `HAPAX_SEQUENCES` is for long runs.
const SEQUENCES: u64 = 2_000;

/// Runs every case against every backend, each on a store of its own, and compares each with the store in memory
/// ([`differential`]). Takes the arguments of a usual test binary.
pub fn main(backends: &[Backend]) -> ExitCode {
    let arguments = Arguments::from_args();
    let cases = |backend| super::cases().into_iter().map(move |case| trial(backend, case));
    let trials = backends.iter().flat_map(|backend| cases(backend).chain([compared(backend)])).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(backend: &Backend, case: Case) -> Trial {
    let name = format!("{}::{}::clause_{:02}", backend.name, case.name, case.clause);
    on(backend, Plan { name, needs: case.needs, is_concurrent: true }, move |setup| (case.run)(setup))
}

fn compared(backend: &Backend) -> Trial {
    let told = env::var("HAPAX_SEQUENCES").ok();
    let sequences = told.map_or(backend.sequences, |count| count.parse().expect("HAPAX_SEQUENCES is a number"));
    // One step after the other: threads would spend their time on waking each other.
    let plan = Plan { name: format!("{}::differential", backend.name), needs: None, is_concurrent: false };
    on(backend, plan, move |setup| {
        Box::pin(async move {
            let steps = differential(setup, 0..sequences).await;
            println!("{sequences} sequences, {steps} steps, no difference");
        })
    })
}

struct Plan {
    name: String,
    needs: Option<Capability>,
    is_concurrent: bool,
}

fn on(
    backend: &Backend,
    plan: Plan,
    body: impl for<'a> FnOnce(&'a dyn Setup) -> BoxFuture<'a, ()> + Send + 'static,
) -> Trial {
    let (make, lack, service) = (Arc::clone(&backend.make), backend.lack(plan.needs), backend.service);
    Trial::ignorable_test(plan.name, move || {
        if let Some(Err(missing)) = service.map(required) {
            return missing.verdict();
        }
        if let Some(reason) = lack {
            return Ok(Completion::ignored_with(reason));
        }
        let mut runtime = if plan.is_concurrent { Builder::new_multi_thread() } else { Builder::new_current_thread() };
        let runtime = runtime.worker_threads(2).enable_all().build()?;
        runtime.block_on(async move {
            let setup = make().await;
            body(&*setup).await;
        });
        Ok(Completion::Completed)
    })
}
