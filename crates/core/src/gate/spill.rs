//! Completions that the store did not confirm. The journal keeps them, and every second the gate tries to record them,
//! until the store gives a definite answer.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::GateCore;
use crate::journal::{EntryNumber, Journal, Spilled};
use crate::lease::Heartbeat;
use crate::machine::Completed;
use crate::record::Timestamp;
use crate::runtime::Runtime;
use crate::telemetry;

const TRY_EVERY: Duration = Duration::from_secs(1);

/// The spilled completions of a gate, oldest first.
pub(super) struct SpillQueue {
    journal: Option<Arc<dyn Journal>>,
    pending: Mutex<PendingCompletions>,
}

#[derive(Default)]
struct PendingCompletions {
    queue: VecDeque<PendingCompletion>,
    /// How many are being tried at this moment, outside of the queue.
    taken: usize,
    /// How many earlier processes left in the journal, until they are in the queue.
    unread: usize,
}

impl PendingCompletions {
    fn count(&self) -> usize {
        self.queue.len() + self.taken + self.unread
    }
}

struct PendingCompletion {
    number: EntryNumber,
    spilled: Spilled,
    /// Set for completions of this process, not for those that an earlier process left.
    _attempt: Option<KeptAttempt>,
}

/// What a spilled completion keeps of its attempt.
struct KeptAttempt {
    /// Keeps the lease renewed.
    _heartbeat: Option<Heartbeat>,
    /// Keeps the gate alive, and with it the task that drains the journal.
    _gate: Arc<GateCore>,
}

impl SpillQueue {
    pub(super) fn new(journal: Option<Arc<dyn Journal>>) -> Self {
        let unread = journal.as_ref().map_or(0, |journal| journal.undone());
        telemetry::spill_depth(unread);
        Self { journal, pending: Mutex::new(PendingCompletions { unread, ..PendingCompletions::default() }) }
    }

    /// Takes every entry. Completions that spill while these are tried are queued meanwhile.
    fn take_all(&self) -> VecDeque<PendingCompletion> {
        let mut pending = self.pending.lock();
        pending.taken = pending.queue.len();
        std::mem::take(&mut pending.queue)
    }

    /// The number of entries, including those that are being tried or not read yet.
    pub(super) fn depth(&self) -> usize {
        self.pending.lock().count()
    }

    fn push_back(&self, entry: PendingCompletion) {
        self.pending.lock().queue.push_back(entry);
        telemetry::spill_depth(self.depth());
    }

    /// Puts entries back in front of those that were queued meanwhile.
    fn push_front(&self, earlier: impl IntoIterator<Item = PendingCompletion>, now: Timestamp) {
        let mut pending = self.pending.lock();
        let newer = std::mem::take(&mut pending.queue);
        pending.queue.extend(earlier.into_iter().chain(newer));
        pending.taken = 0;
        telemetry::spill_depth(pending.count());
        let oldest = pending.queue.iter().map(|entry| entry.spilled.complete.ended).min();
        telemetry::spill_oldest(oldest.map_or(Duration::ZERO, |ended| now.since(ended)));
    }
}

impl fmt::Debug for SpillQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpillQueue({} in {:?})", self.depth(), self.journal)
    }
}

/// Starts the task that drains the journal: first the completions of earlier processes, then new ones. The task ends
/// when the gate is dropped.
pub(super) fn start(shared: &Arc<GateCore>) {
    if let Some(journal) = shared.spill_queue.journal.clone() {
        let (gate, runtime) = (Arc::downgrade(shared), Arc::clone(shared.leases.runtime()));
        shared.leases.runtime().spawn(Box::pin(drain(gate, runtime, journal)));
    }
}

async fn drain(gate: Weak<GateCore>, runtime: Arc<dyn Runtime>, journal: Arc<dyn Journal>) {
    match (journal.replay().await, gate.upgrade()) {
        (Ok(entries), Some(shared)) => {
            let earlier =
                entries.into_iter().map(|(number, spilled)| PendingCompletion { number, spilled, _attempt: None });
            shared.spill_queue.pending.lock().unread = 0;
            shared.spill_queue.push_front(earlier, runtime.wall_now());
        }
        (Err(error), _) => telemetry::journal_trouble(&error),
        (Ok(_), None) => return,
    }
    loop {
        let Some(shared) = gate.upgrade() else { return };
        shared.drain_once(&*journal).await;
        // Dropped before the pause, so that this task does not keep the gate alive.
        drop(shared);
        runtime.sleep(TRY_EVERY).await;
    }
}

impl GateCore {
    /// Keeps a completion in the journal. The heartbeat is taken only if the journal has the completion.
    pub(super) async fn spill(self: &Arc<Self>, spilled: Spilled, heartbeat: &mut Option<Heartbeat>) -> Result<()> {
        let queue = &self.spill_queue;
        let Some(journal) = &queue.journal else {
            return Err(Error::new(ErrorKind::NotApplied, "the gate has no journal"));
        };
        if Mutant::SpillForgets.is_on() {
            return Ok(());
        }
        let number = journal.append(&spilled).await?;
        let attempt = KeptAttempt { _heartbeat: heartbeat.take(), _gate: Arc::clone(self) };
        queue.push_back(PendingCompletion { number, spilled, _attempt: Some(attempt) });
        Ok(())
    }

    /// Tries every entry once, oldest first. Stops at the first one if the store is down.
    async fn drain_once(&self, journal: &dyn Journal) {
        let mut remaining = VecDeque::new();
        let mut pending = self.spill_queue.take_all();
        while let Some(entry) = pending.pop_front() {
            match self.try_to_record(&entry.spilled).await {
                DrainResult::Done => {
                    if let Err(error) = journal.done(entry.number).await {
                        telemetry::journal_trouble(&error);
                    }
                    self.spill_queue.pending.lock().taken -= 1;
                }
                DrainResult::StoreDown => {
                    // Each later entry would wait for the same store, for up to one timeout.
                    remaining.push_back(entry);
                    break;
                }
                DrainResult::Keep => remaining.push_back(entry),
            }
        }
        self.spill_queue.push_front(remaining.into_iter().chain(pending), self.leases.runtime().wall_now());
    }

    async fn try_to_record(&self, spilled: &Spilled) -> DrainResult {
        let rk = spilled.rk;
        let mut request = spilled.complete.clone();
        // By the wall clock: the entry may be older than this boot of the machine.
        request.age = self.leases.runtime().wall_now().since(spilled.complete.ended);
        if Mutant::SpillIgnoresExpiry.is_on() {
            request.age = Duration::ZERO;
        }
        match self.leases.call_store(|protocol| protocol.complete(&rk, &request)).await {
            Ok(Completed::Done | Completed::Already | Completed::Recreated) => telemetry::drained(rk),
            // A definite answer: another attempt owns the record, and no later try changes that.
            Ok(Completed::Lost(other)) => telemetry::divergent(rk, request.claim.token.0, &other),
            Ok(Completed::Gone) => {
                telemetry::spilled_answer_discarded(
                    rk,
                    "the answer is older than its retention, and its record is gone",
                );
            }
            Err(error) if Mutant::SpillGivesUp.is_on() && is_permanent(&error) => {
                telemetry::spilled_answer_discarded(rk, "the store refuses it");
            }
            Err(_) if request.age >= spilled.unknown_retention.into() && !Mutant::SpillNeverExpires.is_on() => {
                telemetry::spilled_answer_discarded(rk, "the record has expired by now");
            }
            // The journal keeps the answer of a damaged record, which an operator may repair until it expires.
            Err(error) if is_permanent(&error) => return DrainResult::Keep,
            // Later entries may not need the place of this answer.
            Err(error) if error.is_beside_store() => return DrainResult::Keep,
            Err(_) => return DrainResult::StoreDown,
        }
        DrainResult::Done
    }
}

/// The result of one try to record an entry.
enum DrainResult {
    /// The store gave a definite answer, or the record has expired. The entry is removed.
    Done,
    /// The store refused this entry, or the place of its answer did. The entry is kept, and later ones are tried.
    Keep,
    /// The store did not answer. Later entries are not tried.
    StoreDown,
}

/// Whether a retry cannot help.
pub(super) fn is_permanent(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Unusable | ErrorKind::Invalid)
}
