//! Dead letters that are written slowly.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::Result;
use hapax_core::broker::{DeadLetter, DeadLetters, DeadReason, Headers, Job, Message, Process, Verdict};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::worker::{MessageIdentity, Worker};
use hapax_testkit::{MemoryBroker, VirtualTime};

/// Refuses each message for good.
#[derive(Debug)]
struct Refusing;

#[async_trait]
impl Process for Refusing {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        jobs.iter().map(|_| Verdict::dead(DeadReason::Rejected, 0)).collect()
    }
}

/// Takes half a second for each letter, one after the other.
struct SlowLetters(Arc<dyn Runtime>);

impl fmt::Debug for SlowLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlowLetters")
    }
}

#[async_trait]
impl DeadLetters for SlowLetters {
    async fn put(&self, letters: Vec<DeadLetter>) -> Vec<Result<()>> {
        let mut results = Vec::new();
        for _ in letters {
            timeout(&*self.0, Duration::from_millis(500), pending::<()>()).await;
            results.push(Ok(()));
        }
        results
    }
}

#[test]
fn many_dead_letters_at_once_are_written_although_each_is_slow() {
    let time = VirtualTime::new(1);
    let (process, broker) = (time.process(), MemoryBroker::prefix(time.process(), 1));
    let letters = SlowLetters(Arc::clone(&process) as _);
    let worker = Worker::builder(broker.source(), Arc::new(Refusing), Arc::new(letters))
        .identity(MessageIdentity::new("group").unwrap())
        .runtime(Arc::clone(&process) as _)
        .build()
        .unwrap();
    process.spawn(Box::pin(async move { assert!(worker.run(pending()).await.is_ok()) }));
    for n in 0..250 {
        let headers: Headers = [("idempotency-key", n.to_string())].into_iter().collect();
        broker.publish(0, Message { headers, ..Message::default() });
    }
    let is_finished = || (broker.unfinished() == 0).then_some(());
    assert!(time.run_until(Duration::from_secs(600), is_finished).is_some(), "{} are left", broker.unfinished());
}
