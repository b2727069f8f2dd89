//! A ledger in memory with a scripted handler. It outlives the worker processes, as a database does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::broker::{DeadReason, Job, Process, Verdict};
use hapax_core::ledger::Call;
use hapax_core::runtime::Runtime;
use hapax_core::{Fingerprint, OperationId};
use parking_lot::Mutex;

use super::history::{MessageHistory, number_of};

/// What the handler does with a message of a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum JobScript {
    /// It fails this often, then succeeds.
    Fails(u32),
    /// It fails without a count: the database asks for another try.
    Retries,
    /// It takes this long.
    Takes(Duration),
    /// It goes on until the test lets it end.
    Held,
    /// It gives a final answer.
    Rejects,
    /// It panics this often, then succeeds.
    Panics(u32),
    /// It panics in each batch with others, and this often in a batch of its own, then succeeds.
    PanicsAlone(u32),
    /// The database does not answer this often.
    Pauses(u32),
}

/// After this many failures an operation is closed.
pub(super) const MAX_ATTEMPTS: u32 = 8;

/// How often a handler that is held looks whether it may end.
const HELD_LOOK: Duration = Duration::from_millis(10);

pub(super) struct SharedLedger {
    tables: Mutex<LedgerTables>,
    pub(super) history: Arc<MessageHistory>,
    backoff: Duration,
}

#[derive(Default)]
struct LedgerTables {
    scripts: BTreeMap<String, JobScript>,
    rows: BTreeMap<OperationId, (Fingerprint, bool)>,
    attempts: BTreeMap<OperationId, u32>,
    tries: BTreeMap<String, u32>,
    /// How often a handler was started for a key that was alone in its batch.
    tries_alone: BTreeMap<String, u32>,
    running: BTreeSet<OperationId>,
    effects: Vec<String>,
    copies: usize,
    busy: usize,
}

impl SharedLedger {
    /// `backoff` is the delay after a first failure.
    pub(super) fn new(backoff: Duration, history: Arc<MessageHistory>) -> Self {
        Self { tables: Mutex::default(), history, backoff }
    }

    pub(super) fn script(&self, key: &str, script: JobScript) {
        self.tables.lock().scripts.insert(key.to_owned(), script);
    }

    /// Lets the handler of a key end that is held, and never holds it again.
    pub(super) fn release(&self, key: &str) {
        self.tables.lock().scripts.remove(key);
    }

    /// The keys whose effect is committed, in the order of the commits.
    pub(super) fn effects(&self) -> Vec<String> {
        self.tables.lock().effects.clone()
    }

    /// How often a handler was started for a key.
    pub(super) fn tries(&self, key: &str) -> u32 {
        self.tables.lock().tries.get(key).copied().unwrap_or_default()
    }

    /// The number of operations with a failed attempt.
    pub(super) fn failed_operations(&self) -> usize {
        self.tables.lock().attempts.len()
    }

    /// How many copies were told that another one runs.
    pub(super) fn busy(&self) -> usize {
        self.tables.lock().busy
    }

    /// How many copies found an effect.
    pub(super) fn copies(&self) -> usize {
        self.tables.lock().copies
    }

    /// Lets an operation run again that was closed.
    pub(super) fn reopen(&self, operation: OperationId) {
        self.tables.lock().attempts.remove(&operation);
    }

    /// How long a copy waits while the first one runs, and a worker while the database does not answer.
    fn pause(&self) -> Duration {
        self.backoff * 4
    }

    /// Claims an operation. A verdict means that the handler does not run.
    fn claim(&self, call: &Call) -> Option<Verdict> {
        let mut tables = self.tables.lock();
        let operation = call.operation();
        if let Some((fingerprint, is_applied)) = tables.rows.get(&operation).copied() {
            tables.copies += 1;
            return Some(match (call.accepts(fingerprint), is_applied) {
                (false, _) => dead(DeadReason::KeyReused, 0),
                (true, true) => Verdict::Done { caught: true },
                (true, false) => dead(DeadReason::Rejected, 0),
            });
        }
        if tables.attempts.get(&operation).is_some_and(|attempts| *attempts >= MAX_ATTEMPTS) {
            return Some(dead(DeadReason::AttemptsExhausted, MAX_ATTEMPTS));
        }
        if !tables.running.insert(operation) {
            tables.busy += 1;
            return Some(Verdict::Busy { after: self.pause() });
        }
        None
    }

    /// Counts a try in a batch of so many jobs. Returns its number and the script.
    fn start(&self, key: &str, jobs: usize) -> (u32, Option<JobScript>) {
        let mut tables = self.tables.lock();
        if jobs == 1 {
            *tables.tries_alone.entry(key.to_owned()).or_default() += 1;
        }
        let tries = tables.tries.entry(key.to_owned()).or_default();
        *tries += 1;
        (*tries, tables.scripts.get(key).copied())
    }

    fn tries_alone(&self, key: &str) -> u32 {
        self.tables.lock().tries_alone.get(key).copied().unwrap_or_default()
    }

    fn is_held(&self, key: &str) -> bool {
        matches!(self.tables.lock().scripts.get(key), Some(JobScript::Held))
    }

    fn commit(&self, call: &Call, key: &str, is_applied: bool) {
        let mut tables = self.tables.lock();
        tables.rows.insert(call.operation(), (call.newest_fingerprint(), is_applied));
        if is_applied {
            tables.effects.push(key.to_owned());
        }
    }

    fn fail(&self, operation: OperationId) -> Verdict {
        let mut tables = self.tables.lock();
        let attempts = tables.attempts.entry(operation).or_default();
        *attempts += 1;
        match *attempts {
            attempts @ MAX_ATTEMPTS.. => dead(DeadReason::AttemptsExhausted, attempts),
            attempts => Verdict::Retry { after: self.backoff * (1 << attempts) },
        }
    }
}

fn dead(reason: DeadReason, attempts: u32) -> Verdict {
    Verdict::dead(reason, attempts)
}

/// The lock of an operation, which ends with its transaction.
struct RunningJob<'l>(&'l SharedLedger, OperationId);

impl Drop for RunningJob<'_> {
    fn drop(&mut self) {
        self.0.tables.lock().running.remove(&self.1);
    }
}

/// The ledger as what processes the messages of one worker.
pub(super) struct LedgerOfWorker {
    pub(super) ledger: Arc<SharedLedger>,
    pub(super) runtime: Arc<dyn Runtime>,
}

impl fmt::Debug for LedgerOfWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LedgerOfWorker")
    }
}

impl LedgerOfWorker {
    /// Runs a job in a batch of so many.
    async fn run(&self, job: &Job, jobs: usize) -> Verdict {
        let (ledger, operation) = (&*self.ledger, job.call.operation());
        if let Some(verdict) = ledger.claim(&job.call) {
            return verdict;
        }
        let running = RunningJob(ledger, operation);
        let key = String::from_utf8_lossy(job.key.as_bytes()).into_owned();
        let (tries, script) = ledger.start(&key, jobs);
        ledger.history.started(number_of(&job.message));
        // Even the fastest handler lets other tasks run.
        self.runtime.sleep(Duration::from_millis(1)).await;
        let verdict = match script {
            Some(JobScript::Fails(times)) if tries <= times => ledger.fail(operation),
            Some(JobScript::Retries) => Verdict::Retry { after: ledger.backoff },
            Some(JobScript::Panics(times)) if tries <= times => panic!("the test lets this handler panic"),
            Some(JobScript::PanicsAlone(times)) if jobs > 1 || ledger.tries_alone(&key) <= times => {
                panic!("the test lets this batch panic")
            }
            Some(JobScript::Pauses(times)) if tries <= times => Verdict::Pause { after: ledger.pause() },
            Some(JobScript::Rejects) => {
                ledger.commit(&job.call, &key, false);
                dead(DeadReason::Rejected, 0)
            }
            script => {
                self.work(&key, script).await;
                ledger.commit(&job.call, &key, true);
                Verdict::Done { caught: false }
            }
        };
        drop(running);
        verdict
    }

    /// The time that a handler takes.
    async fn work(&self, key: &str, script: Option<JobScript>) {
        if let Some(JobScript::Takes(time)) = script {
            self.runtime.sleep(time).await;
        }
        while self.ledger.is_held(key) {
            self.runtime.sleep(HELD_LOOK).await;
        }
    }
}

#[async_trait]
impl Process for LedgerOfWorker {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let mut blocked = BTreeSet::new();
        let mut verdicts = Vec::new();
        for job in &jobs {
            let order = job.message.ordering_key.clone();
            let is_blocked = order.as_ref().is_some_and(|key| blocked.contains(key));
            let verdict =
                if is_blocked { Verdict::Busy { after: self.ledger.pause() } } else { self.run(job, jobs.len()).await };
            match verdict {
                Verdict::Done { .. } => self.ledger.history.ended(number_of(&job.message)),
                // The dead letter is the end.
                Verdict::DeadLetter { .. } => blocked.extend(order),
                Verdict::Busy { .. } | Verdict::Retry { .. } | Verdict::Pause { .. } => blocked.extend(order),
            }
            verdicts.push(verdict);
        }
        verdicts
    }
}
