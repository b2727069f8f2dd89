use std::sync::Arc;

use bytes::Bytes;
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::store::{Memory, MemorySettings};
use hapax_core::{Gate, Identity, Owner, Scope, Settings};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::harness::{Limit, Subject, per_second};
use crate::subjects::{call, memory};

const OPERATIONS: usize = 200_000;
const AT_ONCE: usize = 64;
const ANSWER: Bytes = Bytes::from_static(b"{\"charge\":\"ch_0123456789\",\"amount\":500,\"status\":\"paid\"}");

/// `Gate::run` over the memory store, against the parts that every such call has: ids, a task, an owner from the
/// kernel.
pub(crate) fn run() -> Subject {
    Subject {
        name: "gate.run on memory",
        what: "a new key: ids, own task, kernel-drawn owner, begin, complete; one core",
        run: Box::new(|| per_second(OPERATIONS, || on_one_core(gated))),
        limit: Some(Limit {
            what: "ids, own task, kernel-drawn owner, and nothing else",
            run: Box::new(|| per_second(OPERATIONS, || on_one_core(|| bare(false)))),
            at_least: Some(0.6),
        }),
    }
}

/// `Gate::run` over the memory store, against the same call without a gate: those parts and the two store calls.
pub(crate) fn run_beside_its_store() -> Subject {
    Subject {
        name: "gate.run beside its store",
        what: "a new key, as above",
        run: Box::new(|| per_second(OPERATIONS, || on_one_core(gated))),
        limit: Some(Limit {
            what: "ids, own task, kernel-drawn owner, and begin and complete of the store, without a gate",
            run: Box::new(|| per_second(OPERATIONS, || on_one_core(|| bare(true)))),
            at_least: Some(0.6),
        }),
    }
}

fn on_one_core<F: Future<Output = anyhow::Result<()>>>(all: impl FnOnce() -> F) -> anyhow::Result<()> {
    Builder::new_current_thread().enable_all().build()?.block_on(all())
}

async fn gated() -> anyhow::Result<()> {
    let store = Memory::new();
    let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
    let tasks = (0..AT_ONCE).map(|task| {
        let gate = gate.clone();
        tokio::spawn(async move {
            let (identity, scope) = (Identity::plain(), Scope::tenant("bench", "acme")?);
            for number in 0..OPERATIONS / AT_ONCE {
                let call = call(&identity, &scope, (task * OPERATIONS + number) as u64);
                gate.run(call, |_attempt| async { Ok(ANSWER) }).await?;
            }
            anyhow::Ok(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    Ok(())
}

/// A call without a gate, with the two store calls or without them.
async fn bare(with_store: bool) -> anyhow::Result<()> {
    let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
    let store = with_store.then(|| Arc::new(Memory::with(Arc::clone(&runtime), MemorySettings::default())));
    let tasks = (0..AT_ONCE).map(|task| {
        let (runtime, store) = (Arc::clone(&runtime), store.clone());
        tokio::spawn(async move {
            let (identity, scope) = (Identity::plain(), Scope::tenant("bench", "acme")?);
            for number in 0..OPERATIONS / AT_ONCE {
                let call = call(&identity, &scope, (task * OPERATIONS + number) as u64);
                let store = store.clone();
                let (sender, receiver) = oneshot::channel();
                let random = Arc::clone(&runtime);
                let task = async move {
                    let mut owner = [0; 16];
                    random.fill_random(&mut owner);
                    if let Some(store) = store {
                        memory::cycle(&store, &call, Owner(owner), &ANSWER);
                    }
                    let _ = sender.send((call, owner, ANSWER));
                };
                runtime.spawn(Box::pin(task));
                receiver.await?;
            }
            anyhow::Ok(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    Ok(())
}
