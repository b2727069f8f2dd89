use std::cell::Cell;
use std::error::Error as StdError;
use std::future::pending;

use hapax_core::OperationId;
use hapax_core::ledger::{Call, Fault, FaultKind, Finished, FoundRow, OutboxRow, Transaction, TriedClaims};

/// A disturbance of one statement of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatementFault {
    /// The number of the statement, from 1. Statements of all transactions of the run count.
    pub number: usize,
    /// Whether the statement is carried out before it is disturbed.
    pub is_carried_out: bool,
    /// What its caller sees. None: the statement never returns, so that its caller can be dropped there.
    pub kind: Option<FaultKind>,
}

impl StatementFault {
    /// Every disturbance of the statement with this number.
    pub fn all(number: usize) -> impl Iterator<Item = Self> {
        const KINDS: [Option<FaultKind>; 7] = [
            None,
            Some(FaultKind::Conflict),
            Some(FaultKind::RowExists),
            Some(FaultKind::Unavailable),
            Some(FaultKind::TooLarge),
            Some(FaultKind::Failed),
            Some(FaultKind::Unusable),
        ];
        let with_kind = move |kind| [false, true].map(|is_carried_out| Self { number, is_carried_out, kind });
        KINDS.into_iter().flat_map(with_kind)
    }
}

/// A transaction in which one statement is disturbed.
#[derive(Debug)]
pub struct FaultyTransaction<'s, T> {
    transaction: T,
    fault: StatementFault,
    statements: &'s Cell<usize>,
}

impl<'s, T> FaultyTransaction<'s, T> {
    /// Disturbs a statement of this transaction. `statements` counts those of the run.
    pub fn new(transaction: T, fault: StatementFault, statements: &'s Cell<usize>) -> Self {
        Self { transaction, fault, statements }
    }

    async fn before(&self) -> Result<(), Fault> {
        self.statements.set(self.statements.get() + 1);
        self.disturb(false).await
    }

    async fn disturb(&self, is_carried_out: bool) -> Result<(), Fault> {
        if self.statements.get() != self.fault.number || self.fault.is_carried_out != is_carried_out {
            return Ok(());
        }
        match self.fault.kind {
            Some(kind) => Err(Fault::new(kind, "the statement is disturbed")),
            None => pending().await,
        }
    }

    async fn after<R>(&self, result: Result<R, Fault>) -> Result<R, Fault> {
        self.disturb(true).await?;
        result
    }
}

impl<T: Transaction> Transaction for FaultyTransaction<'_, T> {
    async fn claim(&mut self, namespace: &str, calls: &[Call]) -> Result<TriedClaims, Fault> {
        self.before().await?;
        let result = self.transaction.claim(namespace, calls).await;
        self.after(result).await
    }

    async fn read(&mut self, namespace: &str, operations: &[OperationId]) -> Result<Vec<FoundRow>, Fault> {
        self.before().await?;
        let result = self.transaction.read(namespace, operations).await;
        self.after(result).await
    }

    async fn savepoint(&mut self) -> Result<(), Fault> {
        self.before().await?;
        let result = self.transaction.savepoint().await;
        self.after(result).await
    }

    async fn roll_back_to_savepoint(&mut self) -> Result<(), Fault> {
        self.before().await?;
        let result = self.transaction.roll_back_to_savepoint().await;
        self.after(result).await
    }

    async fn finish(&mut self, namespace: &str, rows: &[Finished], events: &[OutboxRow]) -> Result<usize, Fault> {
        self.before().await?;
        let result = self.transaction.finish(namespace, rows, events).await;
        self.after(result).await
    }

    fn fault_of(error: &(dyn StdError + 'static)) -> Option<FaultKind> {
        T::fault_of(error)
    }
}
