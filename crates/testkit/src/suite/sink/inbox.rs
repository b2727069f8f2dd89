//! The other end: a worker with a ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::OperationId;
use hapax_core::broker::{Job, Process, Verdict};
use hapax_core::runtime::timeout;
use hapax_core::worker::{MessageIdentity, Worker};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::world::{LIMIT, SinkWorld, ordered};
use crate::memory_dead_letters::MemoryDeadLetters;

/// Effects by operation, each once.
#[derive(Default)]
struct Inbox {
    state: Mutex<InboxState>,
}

#[derive(Default)]
struct InboxState {
    operations: BTreeSet<OperationId>,
    /// The keys of the operations, by ordering key, in the order of their effects.
    effects: BTreeMap<Option<Bytes>, Vec<String>>,
    deliveries: usize,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inbox")
    }
}

#[async_trait]
impl Process for Inbox {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let mut state = self.state.lock();
        let handle = |job: &Job| {
            state.deliveries += 1;
            let is_new = state.operations.insert(job.call.operation());
            if is_new {
                let key = String::from_utf8_lossy(job.key.as_bytes()).into_owned();
                state.effects.entry(job.message.ordering_key.clone()).or_default().push(key);
            }
            Verdict::Done { caught: !is_new }
        };
        jobs.iter().map(handle).collect()
    }
}

pub(super) async fn an_event_that_is_published_twice_is_handled_once(world: &SinkWorld) {
    let sink = world.open().await;
    let events: Vec<_> = (0..10).map(|number| ordered(world.event(number), "account-7")).collect();
    for event in &events {
        world.deliver(&*sink, event).await;
    }
    // A relay that took over and does not know that they were published.
    let other = world.open().await;
    for event in &events {
        world.deliver(&*other, event).await;
    }
    let inbox = Arc::new(Inbox::default());
    let dead = MemoryDeadLetters::new();
    let worker = Worker::builder(world.setup.source().await, Arc::clone(&inbox) as _, Arc::new(dead.clone()))
        .identity(MessageIdentity::new("consumer").expect("a valid namespace"))
        .runtime(world.setup.runtime())
        .build()
        .expect("valid settings");
    let (stop, stopped) = oneshot::channel::<()>();
    let runs = worker.run(async { drop(stopped.await) });
    let sends = if sink.window().is_some() { 10 } else { 20 };
    let watch = async {
        while inbox.state.lock().deliveries < sends {
            world.pause().await;
        }
        drop(stop);
    };
    let runtime = world.setup.runtime();
    let both = timeout(&*runtime, LIMIT, futures_util::future::join(runs, watch)).await;
    both.expect("everything is delivered in time").0.expect("the source can be used");
    let ids = events.iter().map(|event| event.id.to_string()).collect();
    assert_eq!(inbox.state.lock().effects, BTreeMap::from([(Some(Bytes::from_static(b"account-7")), ids)]));
    assert!(dead.letters().is_empty(), "{:?}", dead.letters());
}
