//! Claiming and finishing in a transaction that somebody else opened and will commit.

use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, ErrorKind};
use crate::gate::Answer;
use crate::ledger::rules::{self, ClaimRuling};
use crate::ledger::{
    Call, Entry, Fault, FaultKind, Finished, LedgerVerdict, OutboxRow, Transaction, Tried, TriedClaims,
};
use crate::telemetry;

/// What the claims of a transaction gave.
#[derive(Debug)]
pub(super) struct Claims {
    /// The id of the transaction.
    pub(super) transaction: Option<u64>,
    /// One for each call.
    pub(super) claims: Vec<ClaimRuling>,
}

/// Claims operations, no operation twice, once in a transaction. `own` are earlier transactions of the same run whose
/// COMMIT got no reply.
pub(super) async fn claim<T: Transaction>(
    transaction: &mut T,
    namespace: &str,
    calls: &[Call],
    own: &[u64],
) -> Result<Claims, Fault> {
    let TriedClaims { transaction: id, tries } = transaction.claim(namespace, calls).await?;
    // Another transaction that replays an operation holds its lock, too.
    let has_found = |tried| matches!(tried, Tried::NotInserted | Tried::Locked);
    let left: Vec<usize> = (0..calls.len()).filter(|&n| has_found(tries[n])).collect();
    let mut found = Vec::new();
    if !left.is_empty() {
        let operations: Vec<_> = left.iter().map(|&n| calls[n].operation()).collect();
        found = transaction.read(namespace, &operations).await?;
    }
    let mut found_rows = vec![None; calls.len()];
    for (&n, found) in left.iter().zip(&found) {
        found_rows[n] = Some(found);
    }
    let claims: Vec<_> = (0..calls.len()).map(|n| rules::claim(&calls[n], tries[n], found_rows[n], own)).collect();
    #[cfg(feature = "test-util")]
    if claims.contains(&ClaimRuling::Fresh) {
        crate::testing::reach(crate::testing::Kill::AfterClaim);
    }
    Ok(Claims { transaction: id, claims })
}

/// What a claim in a transaction of the caller's own gives.
#[derive(Debug)]
pub enum Claimed<A, E = Entry> {
    /// The operation is new: write its effect in this transaction, then finish the entry.
    Fresh(E),
    /// The operation has ended before, with this answer.
    Replay(A),
    /// The operation has ended with another payload.
    Mismatch,
    /// Another transaction runs the operation, or has just run it. Roll back and try again later.
    Busy,
    /// The operation is closed after too many attempts.
    Dead,
}

impl<A, E> Claimed<A, E> {
    /// The same with another entry: that of an adapter, which knows how to finish it.
    pub fn map_entry<F>(self, entry: impl FnOnce(E) -> F) -> Claimed<A, F> {
        match self {
            Self::Fresh(fresh) => Claimed::Fresh(entry(fresh)),
            Self::Replay(answer) => Claimed::Replay(answer),
            Self::Mismatch => Claimed::Mismatch,
            Self::Busy => Claimed::Busy,
            Self::Dead => Claimed::Dead,
        }
    }
}

/// Claims one operation in a transaction of the caller's own.
///
/// # Errors
/// - `NotApplied`: the transaction must be rolled back, and may be run again: a conflict, a lost connection, a failed
///   statement.
/// - `Invalid`: the transaction has claimed this operation before.
/// - `Damaged`: the recorded answer cannot be decoded.
/// - `Unusable`: the tables are missing.
pub async fn claim_one<T, A>(transaction: &mut T, namespace: &Arc<str>, call: &Call) -> Result<Claimed<A>, Error>
where
    T: Transaction,
    A: Answer,
{
    let mut claims = claim(transaction, namespace, &[*call], &[]).await?.claims;
    let claimed = match claims.remove(0) {
        ClaimRuling::Fresh => Claimed::Fresh(Entry::new(Arc::clone(namespace), *call, 0).owed()),
        ClaimRuling::Replay { answer, .. } => Claimed::Replay(decode(answer)?),
        ClaimRuling::Mismatch => Claimed::Mismatch,
        ClaimRuling::Busy => Claimed::Busy,
        ClaimRuling::Dead => Claimed::Dead,
        ClaimRuling::ClaimedTwice => return Err(claimed_twice()),
        ClaimRuling::Damaged => return Err(damaged()),
    };
    match &claimed {
        Claimed::Replay(_) | Claimed::Busy | Claimed::Dead => telemetry::ledger_caught_copy(),
        Claimed::Fresh(_) | Claimed::Mismatch => {}
    }
    Ok(claimed)
}

/// Finishes an entry with this answer, and writes its events.
///
/// # Errors
/// `NotApplied`: the transaction must be rolled back. Also if the entry is no longer open in this transaction, because
/// the claim was rolled back to a savepoint, or the transaction ended in between.
pub async fn finish_one<T, A>(transaction: &mut T, mut entry: Entry, answer: &A) -> Result<(), Error>
where
    T: Transaction,
    A: Answer,
{
    entry.settle();
    let events = entry.take_events();
    let row = entry.finished(LedgerVerdict::Applied, answer.encode());
    Ok(finish(transaction, entry.namespace(), &events, &[row]).await?)
}

/// Finishes rows, each of which must still be claimed, and writes events.
pub(super) async fn finish<T: Transaction>(
    transaction: &mut T,
    namespace: &str,
    events: &[OutboxRow],
    rows: &[Finished],
) -> Result<(), Fault> {
    #[cfg(feature = "test-util")]
    crate::testing::reach(crate::testing::Kill::AfterEffect);
    let finished = transaction.finish(namespace, rows, events).await?;
    if finished != rows.len() {
        let message = "a claim is no longer open: it was rolled back, or the transaction ended before it was finished";
        return Err(Fault::new(FaultKind::Failed, message));
    }
    #[cfg(feature = "test-util")]
    crate::testing::reach(crate::testing::Kill::BeforeCommit);
    Ok(())
}

pub(super) fn claimed_twice() -> Error {
    Error::new(ErrorKind::Invalid, "this transaction has claimed the same operation before")
}

pub(super) fn damaged() -> Error {
    Error::new(ErrorKind::Damaged, "a row of the ledger has no end that this release knows")
}

pub(super) fn decode<A: Answer>(answer: Bytes) -> Result<A, Error> {
    let decoded = A::decode(answer);
    decoded.map_err(|error| Error::new(ErrorKind::Damaged, "a recorded answer cannot be decoded").caused_by(error))
}
