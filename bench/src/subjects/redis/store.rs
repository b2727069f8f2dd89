use std::sync::Arc;

use anyhow::ensure;
use bytes::Bytes;
use hapax_core::machine::{Claim, Renewed};
use hapax_core::store::Inserted;
use hapax_core::{Call, Gate, Identity, Scope, Settings, Store};

use super::load::Workload;
use super::{MeasuredStep, OPERATIONS};
use crate::subjects::{ANSWER, begin_new, begin_request, call, full_cycle};

/// Runs an operation on the store.
#[derive(Clone)]
pub(super) struct StoreWorkload {
    pub(super) store: Arc<dyn Store>,
    pub(super) operation: MeasuredStep,
}

/// A call, with its grant if it has one.
#[derive(Clone)]
pub(super) struct StoreTask {
    call: Call,
    claim: Option<Claim>,
}

impl StoreTask {
    pub(super) fn new(call: Call) -> Self {
        Self { call, claim: None }
    }
}

impl StoreWorkload {
    /// Prepares the records that the operation needs: begun or completed.
    pub(super) async fn prepared(&self, calls: &[Call]) -> anyhow::Result<Vec<StoreTask>> {
        let mut tasks = Vec::with_capacity(calls.len());
        for &call in calls {
            let mut task = StoreTask::new(call);
            match self.operation {
                MeasuredStep::Begin | MeasuredStep::Cycle => {}
                MeasuredStep::Replay | MeasuredStep::Read => full_cycle(&*self.store, call).await?,
                MeasuredStep::Renew => task.claim = Some(Claim::from(&begin_new(&*self.store, call).await?)),
            }
            tasks.push(task);
        }
        Ok(tasks)
    }
}

impl Workload for StoreWorkload {
    type Item = StoreTask;
    const NAME: &'static str = "store";

    async fn once(&self, task: &StoreTask) -> anyhow::Result<()> {
        let (store, rk) = (&*self.store, task.call.record_key());
        match (self.operation, &task.claim) {
            (MeasuredStep::Cycle, _) => full_cycle(store, task.call).await?,
            (MeasuredStep::Replay, _) => {
                let reply = store.begin(&begin_request(task.call)).await?;
                ensure!(matches!(reply, Inserted::Found(_)), "the store has no record of a prepared key");
            }
            (MeasuredStep::Renew, Some(claim)) => {
                ensure!(store.renew(&rk, claim).await? == Renewed::Yes, "the store did not renew the grant");
            }
            (MeasuredStep::Read, _) => {
                ensure!(store.read(&rk).await?.record.is_some(), "the store has no record of a prepared key");
            }
            (MeasuredStep::Begin | MeasuredStep::Renew, _) => drop(begin_new(store, task.call).await?),
        }
        Ok(())
    }
}

/// Runs a call through the gate, with key, scope and fingerprint as a transport computes them.
#[derive(Clone)]
pub(super) struct GateWorkload {
    gate: Gate,
    identity: Identity,
    scope: Scope,
}

impl GateWorkload {
    pub(super) fn over(store: Arc<dyn Store>) -> anyhow::Result<Self> {
        let mut settings = Settings::default();
        // The paced load does not slow down when the machine is busy, so many calls may be in flight.
        settings.max_in_flight = OPERATIONS;
        settings.max_in_flight_per_tenant = OPERATIONS;
        let gate = Gate::builder(store, settings).build()?;
        Ok(Self { gate, identity: Identity::plain(), scope: Scope::tenant("bench", "acme")? })
    }
}

impl Workload for GateWorkload {
    type Item = u64;
    const NAME: &'static str = "gate";

    async fn once(&self, number: &u64) -> anyhow::Result<()> {
        let call = call(&self.identity, &self.scope, *number);
        self.gate.run(call, |_attempt| async { Ok(Bytes::from_static(ANSWER)) }).await?;
        Ok(())
    }
}
