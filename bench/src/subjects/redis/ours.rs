use std::sync::Arc;

use anyhow::ensure;
use bytes::Bytes;
use hapax_core::machine::{Claim, Renewed};
use hapax_core::store::Inserted;
use hapax_core::{Call, Gate, Identity, Scope, Settings, Store};

use super::load::Operation;
use super::{OPERATIONS, Step};
use crate::subjects::{ANSWER, beginning, begun, call, full_cycle};

/// A step on the store.
#[derive(Clone)]
pub(super) struct Ours {
    pub(super) store: Arc<dyn Store>,
    pub(super) step: Step,
}

/// A call, and the grant that was got for it, where one was.
#[derive(Clone)]
pub(super) struct Task {
    call: Call,
    claim: Option<Claim>,
}

impl Task {
    pub(super) fn new(call: Call) -> Self {
        Self { call, claim: None }
    }
}

impl Ours {
    /// What stands there before the step: these tasks, begun or completed.
    pub(super) async fn prepared(&self, calls: &[Call]) -> anyhow::Result<Vec<Task>> {
        let mut tasks = Vec::with_capacity(calls.len());
        for &call in calls {
            let mut task = Task::new(call);
            match self.step {
                Step::Begin | Step::Cycle => {}
                Step::Replay | Step::Read => full_cycle(&*self.store, call).await?,
                Step::Renew => task.claim = Some(Claim::from(&begun(&*self.store, call).await?)),
            }
            tasks.push(task);
        }
        Ok(tasks)
    }
}

impl Operation for Ours {
    type Task = Task;
    const NAME: &'static str = "store";

    async fn once(&self, task: &Task) -> anyhow::Result<()> {
        let (store, rk) = (&*self.store, task.call.record_key());
        match (self.step, &task.claim) {
            (Step::Cycle, _) => full_cycle(store, task.call).await?,
            (Step::Replay, _) => {
                let begun = store.begin(&beginning(task.call)).await?;
                ensure!(matches!(begun, Inserted::Found(_)), "the key is known");
            }
            (Step::Renew, Some(claim)) => {
                ensure!(store.renew(&rk, claim).await? == Renewed::Yes, "the grant is held");
            }
            (Step::Read, _) => ensure!(store.read(&rk).await?.record.is_some(), "the record is there"),
            (Step::Begin | Step::Renew, _) => drop(begun(store, task.call).await?),
        }
        Ok(())
    }
}

/// A call through the gate, with all that a transport does for it.
#[derive(Clone)]
pub(super) struct Gated {
    gate: Gate,
    identity: Identity,
    scope: Scope,
}

impl Gated {
    pub(super) fn over(store: Arc<dyn Store>) -> anyhow::Result<Self> {
        let mut settings = Settings::default();
        // A pace that is kept up while the machine is busy with something else piles up.
        settings.max_in_flight = OPERATIONS;
        settings.max_in_flight_per_tenant = OPERATIONS;
        let gate = Gate::builder(store, settings).build()?;
        Ok(Self { gate, identity: Identity::plain(), scope: Scope::tenant("bench", "acme")? })
    }
}

impl Operation for Gated {
    type Task = u64;
    const NAME: &'static str = "gate";

    async fn once(&self, number: &u64) -> anyhow::Result<()> {
        let call = call(&self.identity, &self.scope, *number);
        self.gate.run(call, |_attempt| async { Ok(Bytes::from_static(ANSWER)) }).await?;
        Ok(())
    }
}
