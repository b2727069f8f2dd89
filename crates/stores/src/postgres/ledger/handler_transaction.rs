use std::ops::Deref;

use hapax_core::Result;
use hapax_core::gate::Answer;
use hapax_core::ledger::{Call, Claimed};
use tokio_postgres::Client;

use super::{PostgresEntry, PostgresLedger};

/// The transaction of a runner, for its handler: every statement on this client runs in it. The runner sends BEGIN with
/// the claim, and COMMIT with the end of the claim. A handler sends neither. If the runner is dropped before, the
/// connection is closed, and the server rolls back.
#[derive(Debug)]
pub struct PostgresTransaction<'c> {
    client: &'c Client,
}

impl<'c> PostgresTransaction<'c> {
    pub(super) fn new(client: &'c Client) -> Self {
        Self { client }
    }

    /// Claims an operation of another ledger in this transaction, as [`PostgresLedger::claim`] does in one of the
    /// caller's own. Its tables are in the same database, perhaps in another schema. The transaction cannot commit
    /// before its entry is [finished](Self::finish).
    ///
    /// # Errors
    /// As [`PostgresLedger::claim`]: return the error from the handler.
    ///
    /// # Cancel safety
    /// As for every statement of a handler: the runner rolls back.
    pub async fn claim<A: Answer>(&self, ledger: &PostgresLedger, call: &Call) -> Result<Claimed<A, PostgresEntry>> {
        ledger.claim_on(self.client, call).await
    }

    /// Finishes an entry of another ledger with this answer, and writes its events, as [`PostgresEntry::finish`] does.
    ///
    /// # Errors
    /// As [`PostgresEntry::finish`]: return the error from the handler.
    ///
    /// # Cancel safety
    /// As for every statement of a handler: the runner rolls back.
    pub async fn finish<A: Answer>(&self, entry: PostgresEntry, answer: &A) -> Result<()> {
        entry.finish_on(self.client, answer).await
    }
}

impl Deref for PostgresTransaction<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client
    }
}
