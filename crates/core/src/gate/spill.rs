//! Completions that the store did not confirm: kept in the journal, and tried every second until the store gives a definite answer.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::chaos;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::Shared;
use crate::gate::heartbeat::Heartbeat;
use crate::gate::settle::is_permanent;
use crate::journal::{Journal, Number, Spilled};
use crate::machine::Completed;
use crate::runtime::Runtime;
use crate::telemetry;

const TRY_EVERY: Duration = Duration::from_secs(1);

/// What is spilled and not yet recorded, oldest first.
pub(super) struct Spill {
    journal: Option<Arc<dyn Journal>>,
    pending: Mutex<VecDeque<Pending>>,
}

struct Pending {
    number: Number,
    spilled: Spilled,
    /// Keeps the lease of an attempt of this process; none for what an earlier process left.
    _heartbeat: Option<Heartbeat>,
}

impl Spill {
    pub(super) fn new(journal: Option<Arc<dyn Journal>>) -> Self {
        Self { journal, pending: Mutex::default() }
    }

    /// Keeps a completion, and the heartbeat of its grant.
    pub(super) async fn take(&self, spilled: Spilled, heartbeat: &mut Option<Heartbeat>) -> Result<()> {
        let Some(journal) = &self.journal else {
            return Err(Error::new(ErrorKind::NotApplied, "the gate has no journal"));
        };
        if chaos::on("spill_forgets") {
            return Ok(());
        }
        let number = journal.append(&spilled).await?;
        self.lock().push_back(Pending { number, spilled, _heartbeat: heartbeat.take() });
        Ok(())
    }

    fn take_all(&self) -> VecDeque<Pending> {
        std::mem::take(&mut *self.lock())
    }

    fn put_before(&self, earlier: impl IntoIterator<Item = Pending>) {
        let mut pending = self.lock();
        let newer = std::mem::take(&mut *pending);
        pending.extend(earlier.into_iter().chain(newer));
        telemetry::spill_depth(pending.len());
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Pending>> {
        // Each change is one call of the queue.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spill({} in {:?})", self.lock().len(), self.journal)
    }
}

/// Starts to drain: first what earlier processes left, then what comes. Ends when the gate is gone.
pub(super) fn start(shared: &Arc<Shared>) {
    if let Some(journal) = shared.spill.journal.clone() {
        let (gate, runtime) = (Arc::downgrade(shared), Arc::clone(&shared.runtime));
        shared.runtime.spawn(Box::pin(drain(gate, runtime, journal)));
    }
}

async fn drain(gate: Weak<Shared>, runtime: Arc<dyn Runtime>, journal: Arc<dyn Journal>) {
    match (journal.replay().await, gate.upgrade()) {
        (Ok(left), Some(shared)) => {
            let earlier = left.into_iter().map(|(number, spilled)| Pending { number, spilled, _heartbeat: None });
            shared.spill.put_before(earlier);
        }
        (Err(error), _) => telemetry::journal_trouble(&error),
        (Ok(_), None) => return,
    }
    loop {
        let Some(shared) = gate.upgrade() else { return };
        shared.drain_once(&*journal).await;
        drop(shared);
        runtime.sleep(TRY_EVERY).await;
    }
}

impl Shared {
    /// Tries every entry, in order of age; while the store is down, only the first.
    async fn drain_once(&self, journal: &dyn Journal) {
        let mut left = VecDeque::new();
        let mut pending = self.spill.take_all();
        while let Some(entry) = pending.pop_front() {
            match self.try_to_record(&entry.spilled).await {
                Tried::Over => {
                    if let Err(error) = journal.done(entry.number).await {
                        telemetry::journal_trouble(&error);
                    }
                }
                Tried::StoreDown => {
                    left.push_back(entry);
                    break;
                }
                Tried::NotYet => left.push_back(entry),
            }
        }
        self.spill.put_before(left.into_iter().chain(pending));
    }

    async fn try_to_record(&self, spilled: &Spilled) -> Tried {
        let rk = spilled.rk;
        let mut ask = spilled.complete.clone();
        ask.age = self.runtime.wall_now().since(spilled.ended);
        if chaos::on("spill_ignores_expiry") {
            ask.age = Duration::ZERO;
        }
        match self.ask(|protocol| protocol.complete(&rk, &ask)).await {
            Ok(Completed::Done | Completed::Already | Completed::Recreated) => telemetry::drained(rk),
            Ok(Completed::Lost(other)) => telemetry::divergent(rk, ask.claim.token.0, &other),
            Ok(Completed::Gone) => telemetry::drained_in_vain(rk, "it is past its retention, and its record is gone"),
            Err(_) if ask.age >= spilled.unknown_retention.into() => {
                telemetry::drained_in_vain(rk, "the record would be gone by now");
            }
            // A damaged record keeps its answer here until somebody mends it.
            Err(error) if is_permanent(&error) => return Tried::NotYet,
            Err(_) => return Tried::StoreDown,
        }
        Tried::Over
    }
}

/// What became of an entry.
enum Tried {
    /// The store gave a definite answer, or there is nothing left to wait for.
    Over,
    /// Not recorded, for reasons of its own.
    NotYet,
    /// Not recorded because the store cannot be asked.
    StoreDown,
}
