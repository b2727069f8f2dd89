use std::error::Error as StdError;
use std::sync::Arc;

use crate::chaos::Mutant;
use crate::gate::{Answer, Failure};
use crate::ledger::batch::Batch;
use crate::ledger::rules::ClaimRuling;
use crate::ledger::slices::Slice;
use crate::ledger::{Entry, Fault, FaultKind, Finished, LedgerVerdict, Transaction, claims};
use crate::telemetry;

/// What one transaction did, up to its COMMIT.
#[derive(Debug)]
pub struct Attempted<A> {
    /// What the calls got that are not fresh.
    pub(super) claims: Vec<(usize, ClaimRuling)>,
    /// The fresh calls, in the order in which the handler got them.
    pub(super) fresh: Vec<usize>,
    /// The id of the transaction.
    pub(super) transaction: Option<u64>,
    pub(super) outcome: AttemptOutcome<A>,
}

#[derive(Debug)]
pub(super) enum AttemptOutcome<A> {
    /// There is nothing to commit.
    NothingFresh,
    /// A fresh call must wait for one that is busy. Run the others without it.
    Held,
    /// Everything is written: commit. Each answer with the index of its call, and how the operations ended.
    Ready(Vec<(usize, A)>, LedgerVerdict),
    /// The handler failed, perhaps because of a fault of the database.
    Failed(HandlerFailure<A>, Option<FaultKind>),
    /// A statement failed.
    Fault(Fault),
}

/// Why a handler applied nothing, and for which of its calls.
///
/// ```
/// use hapax::gate::Failure;
/// use hapax::ledger::HandlerFailure;
///
/// // The second call cannot be run; the others get a transaction without it.
/// let failure = HandlerFailure::<String>::of(1, Failure::finally("there is no such account".into()));
/// # let _ = failure;
/// ```
#[derive(Debug)]
pub struct HandlerFailure<A> {
    /// The place of the call among those that the handler got, if it knows.
    pub(super) place: Option<usize>,
    pub(super) failure: Failure<A>,
}

impl<A> HandlerFailure<A> {
    /// The call of the entry at this place failed.
    pub fn of(place: usize, failure: Failure<A>) -> Self {
        Self { place: Some(place), failure }
    }

    /// Some call failed, or all together.
    pub fn of_any(failure: Failure<A>) -> Self {
        Self { place: None, failure }
    }
}

/// Any error: the calls are run in smaller transactions until one alone fails.
impl<A, E: Into<crate::BoxError>> From<E> for HandlerFailure<A> {
    fn from(error: E) -> Self {
        Self::of_any(Failure::from(error))
    }
}

/// What a transaction runs between claim and finish. It has the transaction already.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no handler of ledger entries",
    label = "does not implement `Handler`",
    note = "adapters implement this trait; call the `run` of a ledger with an async closure"
)]
pub trait Handler<A> {
    /// Writes the effects of these entries. Returns one answer for each.
    fn handle(self, entries: &mut [Entry]) -> impl Future<Output = Result<Vec<A>, HandlerFailure<A>>>;
}

impl<A> Attempted<A> {
    /// The transaction could not be opened.
    pub fn not_begun(fault: Fault) -> Self {
        Self { claims: Vec::new(), fresh: Vec::new(), transaction: None, outcome: AttemptOutcome::Fault(fault) }
    }

    /// Whether COMMIT was sent and got no reply.
    pub fn is_commit_unknown(&self) -> bool {
        matches!(&self.outcome, AttemptOutcome::Fault(fault) if fault.kind == FaultKind::CommitUnknown)
    }

    /// Whether the database was not available: the next attempt needs another connection, which may lead to another
    /// server.
    pub fn is_unavailable(&self) -> bool {
        let kind = match &self.outcome {
            AttemptOutcome::Fault(fault) => Some(fault.kind),
            AttemptOutcome::Failed(_, kind) => *kind,
            AttemptOutcome::NothingFresh | AttemptOutcome::Held | AttemptOutcome::Ready(..) => None,
        };
        kind == Some(FaultKind::Unavailable)
    }

    /// Whether the transaction is to be committed. Otherwise it is rolled back.
    pub fn is_ready(&self) -> bool {
        matches!(self.outcome, AttemptOutcome::Ready(..))
    }
}

/// Runs the calls of a slice in a transaction that was just opened: claim, savepoint, handler, finish.
///
/// # Cancel safety
/// Roll the transaction back if this future is dropped.
pub async fn attempt<T, A, H>(batch: &Batch<A>, slice: &Slice, transaction: &mut T, handler: H) -> Attempted<A>
where
    T: Transaction,
    A: Answer,
    H: Handler<A>,
{
    let claimed = match claims::claim(transaction, batch.namespace(), &batch.calls(slice), batch.own()).await {
        Ok(claimed) => claimed,
        Err(fault) => return Attempted::not_begun(fault),
    };
    let claims = slice.members().iter().copied().zip(claimed.claims);
    let (fresh, others): (Vec<_>, Vec<_>) = claims.partition(|(_, claim)| *claim == ClaimRuling::Fresh);
    let fresh: Vec<usize> = fresh.into_iter().map(|(index, _)| index).collect();
    let entry = |index: usize| Entry::new(Arc::clone(batch.namespace()), batch.call(index), index);
    let outcome = if fresh.is_empty() {
        if Mutant::ClaimLast.is_on() {
            let mut entries: Vec<Entry> = slice.members().iter().copied().map(entry).collect();
            drop(handler.handle(&mut entries).await);
        }
        AttemptOutcome::NothingFresh
    } else if batch.holds_any(&others, &fresh) {
        AttemptOutcome::Held
    } else {
        let mut entries: Vec<Entry> = fresh.iter().copied().map(entry).collect();
        run(transaction, &mut entries, handler).await.unwrap_or_else(AttemptOutcome::Fault)
    };
    Attempted { claims: others, fresh, transaction: claimed.transaction, outcome }
}

/// Runs the handler behind a savepoint, and finishes its entries.
async fn run<T, A, H>(transaction: &mut T, entries: &mut [Entry], handler: H) -> Result<AttemptOutcome<A>, Fault>
where
    T: Transaction,
    A: Answer,
    H: Handler<A>,
{
    let has_savepoint = !Mutant::SavepointMissing.is_on();
    if has_savepoint {
        transaction.savepoint().await?;
    }
    let (answers, verdict) = match handler.handle(entries).await {
        Ok(answers) if answers.len() == entries.len() => (answers, LedgerVerdict::Applied),
        Ok(_) => return Ok(AttemptOutcome::Failed("the handler did not return one answer for each call".into(), None)),
        // Only a transaction with one operation records a final answer: its neighbours keep their effects.
        Err(HandlerFailure { failure: Failure::Final(answer), .. }) if entries.len() == 1 => {
            if has_savepoint {
                transaction.roll_back_to_savepoint().await?;
            }
            entries[0].take_events();
            (vec![answer], LedgerVerdict::Rejected)
        }
        Err(HandlerFailure { place, failure }) => {
            let place = place.map(|place| original_place(entries, place));
            let kind = fault_behind::<T, A>(&failure);
            return Ok(AttemptOutcome::Failed(HandlerFailure { place, failure }, kind));
        }
    };
    let events: Vec<_> = entries.iter_mut().flat_map(Entry::take_events).collect();
    let rows: Vec<Finished> =
        entries.iter().zip(&answers).map(|(entry, answer)| entry.finished(verdict, answer.encode())).collect();
    transaction.commit_follows();
    let finished = claims::finish(transaction, entries[0].namespace(), &events, &rows).await;
    if !Mutant::SwallowedAbort.is_on() {
        finished?;
    }
    Ok(AttemptOutcome::Ready(entries.iter().map(Entry::index).zip(answers).collect(), verdict))
}

/// The place of the entry that a handler has at this place, before the handler sorted its entries.
fn original_place(entries: &[Entry], place: usize) -> usize {
    let earlier = |named: &Entry| entries.iter().filter(|entry| entry.index() < named.index()).count();
    entries.get(place).map_or(place, earlier)
}

/// The kind of fault, if the handler passes on an error of the database: its transaction was lost to that error.
fn fault_behind<T: Transaction, A>(failure: &Failure<A>) -> Option<FaultKind> {
    let mut cause = failure.error().map(|error| -> &(dyn StdError + 'static) { error.as_ref() });
    while let Some(error) = cause {
        if let Some(kind) = T::fault_of(error) {
            if kind == FaultKind::Unusable {
                telemetry::tables_unusable(error);
            }
            return Some(kind);
        }
        cause = error.source();
    }
    None
}
