//! The loop of a runner of the ledger on PostgreSQL, whatever its driver.

use hapax_core::OperationId;
use hapax_core::gate::Answer;
use hapax_core::ledger::{Attempted, Batch, FailedCall, Fault, FoundRow, Slice, Step, Terms};
use hapax_core::runtime::Runtime;

use crate::spread;

/// The calls of a runner for a batch, on connections of its pool.
pub(crate) trait RunTransactions<A, H> {
    /// Reads the rows of operations in a transaction of its own.
    fn read_rows(&self, operations: &[OperationId]) -> impl Future<Output = Result<Vec<FoundRow>, Fault>>;

    /// Runs the calls of a slice in one transaction. Returns what it did, and the result of COMMIT.
    fn run_slice(
        &self,
        batch: &Batch<A>,
        slice: &Slice,
        handler: &H,
    ) -> impl Future<Output = (Attempted<A>, Result<(), Fault>)>;

    /// Counts a failed attempt, and closes the operation after the last one.
    fn count(&self, failed: &FailedCall<A>) -> impl Future<Output = Result<u32, Fault>>;
}

/// Runs the transactions of a batch until each call has its result.
pub(crate) async fn run_to_end<A: Answer, H>(
    runner: &impl RunTransactions<A, H>,
    runtime: &dyn Runtime,
    mut batch: Batch<A>,
    handler: &H,
) -> Batch<A> {
    loop {
        match batch.step() {
            Step::Pause(pause) => runtime.sleep(pause).await,
            Step::Transaction(slice) if batch.is_copy_likely(&slice) => {
                let found = runner.read_rows(&batch.operations(&slice)).await;
                batch.found(slice, found, spread::random());
            }
            Step::Transaction(slice) => {
                let (attempted, commit) = runner.run_slice(&batch, &slice, handler).await;
                batch.ended(slice, attempted, commit, spread::random());
            }
            Step::Count(failed) => {
                let attempts = runner.count(&failed).await;
                batch.counted(failed, attempts);
            }
            Step::Done => return batch,
        }
    }
}

/// The number of the attempt that closes an operation, as `count.sql` has it. 0: none does.
pub(crate) fn last_attempt(terms: &Terms) -> i32 {
    i32::try_from(terms.last_attempt().unwrap_or(0)).unwrap_or(i32::MAX)
}
