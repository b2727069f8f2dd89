use std::env;
use std::fmt;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use hapax_core::runtime::BoxFuture;
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Builder;

use crate::differential::differential;
use crate::setup::{Capability, Setup, SuiteCase};
use crate::suite::store::cases;
use crate::suite_runner::{Conditions, run_trials};

type MakeSetup = Box<dyn Fn() -> BoxFuture<'static, Box<dyn Setup>> + Send + Sync>;

/// A kind of store that the suite runs against.
pub struct Backend {
    name: &'static str,
    make: Arc<MakeSetup>,
    conditions: Conditions<Capability>,
    sequences: u64,
    setups: u64,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backend({})", self.name)
    }
}

impl Backend {
    /// A kind of store, with a function that creates an empty one.
    pub fn new<F, T>(name: &'static str, make: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Future<Output = Box<dyn Setup>> + Send + 'static,
    {
        Self {
            name,
            make: Arc::new(Box::new(move || Box::pin(make()))),
            conditions: Conditions { lacks: &[], services: [None; 2] },
            sequences: SEQUENCES,
            setups: 1,
        }
    }

    /// Declares lacking capabilities, each with the reason that is printed beside the ignored cases.
    #[must_use]
    pub fn lacking(mut self, lacks: &'static [(Capability, &'static str)]) -> Self {
        self.conditions.lacks = lacks;
        self
    }

    /// Names a service that the store needs, two at most. If [`required`](crate::servers::required) does not find it,
    /// every case is ignored with the reason, or fails.
    #[must_use]
    pub fn requiring(mut self, service: &'static str) -> Self {
        self.conditions.require(service);
        self
    }

    /// Sets how many random sequences compare the store with the one in memory: 2,000 by default, fewer for stores that
    /// sync to a disk.
    #[must_use]
    pub fn sequences(mut self, sequences: u64) -> Self {
        self.sequences = sequences;
        self
    }

    /// Compares so many sequences at once, each on a store of its own: most of the time, a store that syncs to a disk
    /// waits.
    #[must_use]
    pub fn sequences_at_once(mut self, setups: u64) -> Self {
        self.setups = setups;
        self
    }
}

/// The default number of random sequences. `HAPAX_SEQUENCES` replaces it for long runs.
const SEQUENCES: u64 = 2_000;

/// Runs every case against every backend, each on a store of its own, and compares each with the store in memory
/// ([`differential`]). Accepts the arguments of a standard test binary.
pub fn main(backends: &[Backend]) -> ExitCode {
    let case_trials = |backend| cases().into_iter().map(move |case| case_trial(backend, case));
    let trials =
        backends.iter().flat_map(|backend| case_trials(backend).chain([differential_trial(backend)])).collect();
    run_trials(Arguments::from_args(), trials)
}

fn case_trial(backend: &Backend, case: SuiteCase) -> Trial {
    let name = format!("{}::{}::clause_{:02}", backend.name, case.name, case.clause);
    let make = Arc::clone(&backend.make);
    backend.conditions.trial(name, case.needs, move || {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(async {
            let setup = make().await;
            (case.run)(&*setup).await;
        });
        Ok(())
    })
}

fn differential_trial(backend: &Backend) -> Trial {
    let requested = env::var("HAPAX_SEQUENCES").ok();
    let sequences =
        requested.map_or(backend.sequences, |count| count.parse().expect("HAPAX_SEQUENCES is not a number"));
    let (make, setups) = (Arc::clone(&backend.make), backend.setups);
    // Both stores must judge each lease alike.
    let needs = Some(Capability::ExactClock);
    backend.conditions.trial(format!("{}::differential", backend.name), needs, move || {
        // The steps are sequential: several threads would only spend time on waking each other.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let begun = Instant::now();
        let steps = runtime.block_on(join_all((0..setups).map(async |number| {
            let setup = make().await;
            differential(&*setup, share(sequences, number, setups)).await
        })));
        let (steps, took) = (steps.into_iter().sum::<usize>(), begun.elapsed().as_secs());
        println!("{sequences} sequences, {steps} steps in {took} s, no difference");
        Ok(())
    })
}

/// The seeds of one of several setups.
fn share(sequences: u64, number: u64, setups: u64) -> Range<u64> {
    let first = |number| sequences * number / setups;
    first(number)..first(number + 1)
}
