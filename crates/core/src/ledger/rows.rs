use std::fmt;

use async_trait::async_trait;

use crate::error::Result;
use crate::key::{Fingerprint, OperationId};
use crate::ledger::LedgerVerdict;

/// Reads the ledgers of a database, for operators.
///
/// # Cancel safety
/// Safe to drop: nothing is written.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot list the rows of a ledger",
    label = "does not implement `LedgerRows`",
    note = "pass a ledger of `hapax::stores`"
)]
#[async_trait]
pub trait LedgerRows: fmt::Debug + Send + Sync + 'static {
    /// Returns the committed rows of these operations, of every namespace, in any order. Each committed row has its
    /// answer, and its effect if the verdict is [`LedgerVerdict::Applied`].
    ///
    /// # Errors
    /// `NotApplied` if the database cannot be reached, `Unusable` if the table is missing or the role may not read it.
    async fn rows_of(&self, operations: &[OperationId]) -> Result<Vec<CommittedRow>>;
}

/// A committed row, without its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedRow {
    /// The operation.
    pub operation: OperationId,
    /// The namespace of the ledger that ran it.
    pub namespace: String,
    /// The fingerprint of the payload that ran. Rule 0: it was not compared.
    pub fingerprint: Fingerprint,
    /// How it ended.
    pub verdict: LedgerVerdict,
}
