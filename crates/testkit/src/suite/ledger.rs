//! The cases for a ledger: one line each, with the ways in which the calls of the case reach the ledger.

mod delivery;
mod oracle;
mod script;
mod setup;

mod batches;
mod claims;
mod events;
mod handlers;

use std::fmt;

use futures_util::future::LocalBoxFuture;

pub use delivery::Way;
use delivery::World;
pub use script::{Script, ScriptFailure};
pub use setup::{
    ConnectionCut, CutRequest, Execute, LedgerCapability, LedgerContents, LedgerSession, LedgerSetup, Snapshot,
    StoredAttempts, StoredEntry, StoredEvent,
};

/// A case of the ledger suite. `run` panics if the ledger violates it.
#[derive(Clone, Copy)]
pub struct LedgerCase {
    /// The stable name.
    pub name: &'static str,
    /// The ways in which the case is run.
    pub ways: &'static [Way],
    /// The capability that the case needs.
    pub needs: Option<LedgerCapability>,
    run: for<'a> fn(World<'a>) -> LocalBoxFuture<'a, ()>,
}

impl fmt::Debug for LedgerCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl LedgerCase {
    /// The name of the case in one of its ways.
    pub fn name_by(&self, way: Way) -> String {
        format!("{}::{}", self.name, way.name())
    }

    /// Runs the case on an empty database.
    ///
    /// # Panics
    /// If the ledger violates the case.
    pub async fn run(&self, setup: &dyn LedgerSetup, way: Way) {
        delivery::number_case();
        (self.run)(World { setup, way }).await;
    }
}

macro_rules! cases {
    ($($family:ident: $($ways:ident $name:ident $(needs $needs:ident)?),+;)+) => {
        vec![$($(LedgerCase {
            name: stringify!($name),
            ways: Way::$ways,
            needs: cases!(@ $($needs)?),
            run: |world| Box::pin(async move { $family::$name(&world).await }),
        }),+),+]
    };
    (@) => { None };
    (@ $needs:ident) => { Some(LedgerCapability::$needs) };
}

/// Every case of the ledger suite.
pub fn ledger_cases() -> Vec<LedgerCase> {
    cases! {
        claims:
            ALL ledger_blocks_twin_until_commit,
            ALL ledger_twin_replays,
            ALL ledger_rollback_lets_twin_run,
            ALL ledger_mismatch,
            ALL rule_0_is_not_compared,
            ALL ledger_lock_timeout_busy,
            ALL namespaces_do_not_meet,
            ALL foreign_keys_off_is_refused needs ForeignKeysOff,
            OWN an_unfinished_claim_cannot_commit,
            OWN finish_after_its_claim_was_rolled_back_is_an_error needs Savepoints,
            OWN two_operations_share_a_transaction,
            OWN the_same_operation_twice_in_a_transaction_is_an_error,
            OWN the_same_operation_again_after_its_finish_is_an_error needs TransactionIds,
            OWN repeatable_read_retries_40001 needs RepeatableRead;
        handlers:
            ALL swallowed_error_is_not_commit,
            ALL partial_writes_undone_on_not_applied,
            ALL other_unique_violation_is_an_error,
            ALL a_panic_leaves_nothing,
            ALL a_handler_that_commits,
            ALL a_handler_that_rolls_back,
            ALL a_handler_that_rolls_back_and_begins,
            ALL a_handler_that_resets,
            RUNNER final_answer_keeps_no_effect;
        events:
            ALL events_are_written_with_the_row,
            ALL ordered_events_are_written_with_the_row,
            ALL an_event_that_cannot_be_written_undoes_the_effect,
            ALL event_ids_stable_across_attempts,
            ALL the_largest_event_is_written,
            ALL drop_tx_at_every_await,
            RUNNER ambiguous_commit_resolves needs LostReply,
            ALL a_cut_at_every_request needs LostReply;
        batches:
            BATCH inbox_dup_acked_not_run,
            BATCH inbox_busy_not_acked,
            BATCH innocent_neighbours_are_not_counted,
            RUNNER a_busy_operation_is_not_counted,
            RUNNER a_database_that_takes_no_writes_counts_nothing needs ReadOnly,
            BATCH copies_in_a_batch_of_one_key_run_once,
            RUNNER fewer_attempts_than_were_made_close_the_operation,
            RUNNER dead_key_closed_until_reopen;
    }
}
