//! Rows in memory that follow the contract of `Transaction`, and a driver that runs a batch on them.

use std::collections::{HashMap, HashSet};
use std::error::Error as StdError;
use std::fmt;

use futures_util::FutureExt;
use hapax_core::ledger::{
    Attempted, Batch, CallResult, Entry, Fault, FaultKind, Finished, FoundRow, Handler, HandlerFailure, OutboxRow,
    Slice, Step, Terms, Transaction, Tried, TriedClaims, attempt,
};

use super::*;

/// A database of rows.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) rows: HashMap<OperationId, Row>,
    pub(super) attempts: HashMap<OperationId, u32>,
    pub(super) dead: HashSet<OperationId>,
    /// Operations that another transaction runs.
    pub(super) locked: HashSet<OperationId>,
    /// How many operations one transaction can claim.
    pub(super) room: Option<usize>,
    pub(super) transactions: u64,
    /// Why attempts cannot be counted.
    pub(super) uncounted: Option<FaultKind>,
    /// Whether the driver looks for rows before a transaction, where a copy is likely.
    pub(super) reads_first: bool,
}

impl Memory {
    fn count(&mut self, operation: OperationId) -> Result<u32, Fault> {
        if let Some(kind) = self.uncounted {
            return Err(fault(kind));
        }
        let attempts = self.attempts.entry(operation).or_default();
        *attempts += 1;
        Ok(*attempts)
    }

    /// A transaction whose rows nobody commits.
    pub(super) fn open(&self) -> Open<'_> {
        Open { memory: self, id: self.transactions, rows: HashMap::new() }
    }
}

/// A fault of the database that a handler passes on.
#[derive(Debug)]
pub(super) struct MemoryFault(pub(super) FaultKind);

impl fmt::Display for MemoryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl StdError for MemoryFault {}

pub(super) fn fault(kind: FaultKind) -> Fault {
    Fault::new(kind, MemoryFault(kind))
}

/// A transaction on a [`Memory`].
pub(super) struct Open<'m> {
    memory: &'m Memory,
    id: u64,
    rows: HashMap<OperationId, (Fingerprint, Option<Finished>)>,
}

impl Open<'_> {
    fn try_claim(&mut self, call: &Call) -> Tried {
        let operation = call.operation();
        if self.memory.locked.contains(&operation) {
            return Tried::Locked;
        }
        let is_there = self.memory.rows.contains_key(&operation) || self.rows.contains_key(&operation);
        if is_there || self.memory.dead.contains(&operation) {
            return Tried::NotInserted;
        }
        self.rows.insert(operation, (call.newest_fingerprint(), None));
        Tried::Inserted
    }

    pub(super) fn find(&self, operation: OperationId) -> FoundRow {
        match self.memory.rows.get(&operation) {
            Some(row) => FoundRow::Row(row.clone()),
            None if self.rows.contains_key(&operation) => FoundRow::ClaimedHere,
            None if self.memory.dead.contains(&operation) => FoundRow::Dead,
            None => FoundRow::Nothing,
        }
    }

    /// The rows to write at COMMIT.
    fn into_rows(self) -> HashMap<OperationId, Row> {
        let id = Some(self.id);
        let row = |(operation, (fingerprint, finished)): (OperationId, (Fingerprint, Option<Finished>))| {
            let Finished { verdict, answer, .. } = finished.expect("an open row cannot be committed");
            (operation, Row { fingerprint, verdict, answer, transaction: id })
        };
        self.rows.into_iter().map(row).collect()
    }
}

impl Transaction for Open<'_> {
    async fn claim(&mut self, _namespace: &str, calls: &[Call]) -> Result<TriedClaims, Fault> {
        if self.memory.room.is_some_and(|room| calls.len() > room) {
            return Err(fault(FaultKind::TooLarge));
        }
        let tries = calls.iter().map(|call| self.try_claim(call)).collect();
        Ok(TriedClaims { transaction: Some(self.id), tries })
    }

    async fn read(&mut self, _namespace: &str, operations: &[OperationId]) -> Result<Vec<FoundRow>, Fault> {
        Ok(operations.iter().map(|operation| self.find(*operation)).collect())
    }

    async fn savepoint(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    async fn roll_back_to_savepoint(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    async fn finish(&mut self, _namespace: &str, rows: &[Finished], _events: &[OutboxRow]) -> Result<usize, Fault> {
        let mut finished = 0;
        for row in rows {
            if let Some((_, open @ None)) = self.rows.get_mut(&row.operation) {
                *open = Some(row.clone());
                finished += 1;
            }
        }
        Ok(finished)
    }

    fn fault_of(error: &(dyn StdError + 'static)) -> Option<FaultKind> {
        error.downcast_ref().map(|MemoryFault(kind)| *kind)
    }
}

/// A function as a handler.
pub(super) struct Plain<F>(pub(super) F);

impl<F> Handler<String> for Plain<F>
where
    F: FnOnce(&mut [Entry]) -> Result<Vec<String>, HandlerFailure<String>>,
{
    async fn handle(self, entries: &mut [Entry]) -> Result<Vec<String>, HandlerFailure<String>> {
        (self.0)(entries)
    }
}

/// How the database ends a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Committed,
    /// The transaction has no effect.
    Failed(FaultKind),
    /// The reply to COMMIT was lost.
    Lost {
        is_committed: bool,
    },
    /// The transaction could not be opened.
    NotBegun(FaultKind),
}

pub(super) type Handled = Result<(), HandlerFailure<String>>;

/// What the driver of a batch asks for.
pub(super) trait World {
    /// Runs the calls with these indices.
    fn handle(&mut self, calls: &[usize]) -> Handled;

    fn end(&mut self) -> End {
        End::Committed
    }
}

/// Every transaction commits if the handler is content.
impl<F: FnMut(&[usize]) -> Handled> World for F {
    fn handle(&mut self, calls: &[usize]) -> Handled {
        self(calls)
    }
}

/// What a batch did.
#[derive(Debug, Default)]
pub(super) struct Ran {
    pub(super) results: Vec<CallResult<String>>,
    pub(super) transactions: usize,
    /// How often rows were looked for before a transaction.
    pub(super) reads: usize,
    pub(super) pauses: usize,
    /// The calls that each run of the handler got.
    pub(super) handled: Vec<Vec<usize>>,
    /// The operations whose failure was counted.
    pub(super) counted: Vec<OperationId>,
}

impl Ran {
    /// How many calls the handler got, all runs together.
    pub(super) fn handler_calls(&self) -> usize {
        self.handled.iter().map(Vec::len).sum()
    }

    /// The results as words.
    pub(super) fn words(&self) -> Vec<&str> {
        let word = |result: &CallResult<String>| match result {
            Ok(result) => result.provenance.as_str(),
            Err(refused) => refused.reason.as_str(),
        };
        self.results.iter().map(word).collect()
    }
}

/// Runs a batch to its end. The answer to the n-th call is `answer n`.
pub(super) fn drive(memory: &mut Memory, terms: Terms, work: Vec<Work>, world: &mut impl World) -> Ran {
    let mut batch = Batch::new(terms, work);
    let mut ran = Ran::default();
    loop {
        match batch.step() {
            Step::Pause(_) => ran.pauses += 1,
            Step::Transaction(slice) if memory.reads_first && batch.is_copy_likely(&slice) => {
                ran.reads += 1;
                let found = batch.operations(&slice).into_iter().map(|operation| memory.open().find(operation));
                batch.found(slice, Ok(found.collect()), 0);
            }
            Step::Transaction(slice) => {
                ran.transactions += 1;
                run_slice(memory, &mut batch, slice, (&mut *world, &mut ran));
            }
            Step::Count(failed) => {
                let counted = memory.count(failed.operation);
                ran.counted.extend(counted.is_ok().then_some(failed.operation));
                batch.counted(failed, counted);
            }
            Step::Done => break,
        }
    }
    ran.results = batch.into_results();
    ran
}

fn run_slice<W: World>(memory: &mut Memory, batch: &mut Batch<String>, slice: Slice, (world, ran): (&mut W, &mut Ran)) {
    let end = world.end();
    if let End::NotBegun(kind) = end {
        batch.ended(slice, Attempted::not_begun(fault(kind)), Ok(()), 0);
        return;
    }
    memory.transactions += 1;
    let mut open = memory.open();
    let handler = Plain(|entries: &mut [Entry]| {
        let calls: Vec<usize> = entries.iter().map(Entry::index).collect();
        ran.handled.push(calls.clone());
        world.handle(&calls)?;
        Ok(calls.iter().map(|n| format!("answer {n}")).collect())
    });
    let attempted = attempt(batch, &slice, &mut open, handler).now_or_never().expect("rows in memory do not wait");
    let is_written = attempted.is_ready() && matches!(end, End::Committed | End::Lost { is_committed: true });
    let rows = is_written.then(|| open.into_rows());
    memory.rows.extend(rows.into_iter().flatten());
    let commit = match end {
        End::Committed | End::NotBegun(_) => Ok(()),
        End::Failed(kind) => Err(fault(kind)),
        End::Lost { .. } => Err(fault(FaultKind::CommitUnknown)),
    };
    batch.ended(slice, attempted, commit, 0);
}
