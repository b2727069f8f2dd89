//! The cases for a source of messages: a worker on the source, with a ledger in memory.

mod history;
mod ledger;
mod setup;
mod world;

mod crashes;
mod failures;
mod order;
mod stops;

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

pub use setup::{SourceCapability, SourceSetup, SourceTimes, WorkerHost};
use world::SourceWorld;

/// A case of the source suite. `run` panics if the worker on this source violates it.
#[derive(Clone, Copy)]
pub struct SourceCase {
    /// The stable name.
    pub name: &'static str,
    /// The capability that the case needs.
    pub needs: Option<SourceCapability>,
    run: fn(SourceWorld) -> BoxFuture<'static, ()>,
}

impl fmt::Debug for SourceCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl SourceCase {
    /// Runs the case on an empty source.
    ///
    /// # Panics
    /// If the worker on this source violates the case.
    pub async fn run(&self, setup: Arc<dyn SourceSetup>) {
        (self.run)(SourceWorld::new(setup)).await;
    }
}

macro_rules! cases {
    ($($family:ident: $($name:ident $(needs $needs:ident)?),+;)+) => {
        vec![$($(SourceCase {
            name: stringify!($name),
            needs: cases!(@ $($needs)?),
            run: |world| Box::pin(async move { $family::$name(&world).await }),
        }),+),+]
    };
    (@) => { None };
    (@ $needs:ident) => { Some(SourceCapability::$needs) };
}

/// Every case of the source suite.
pub fn source_cases() -> Vec<SourceCase> {
    cases! {
        crashes:
            redelivery_after_a_crash,
            order_holds_after_a_crash needs OrderAfterCrash,
            crash_between_ledger_commit_and_dead_letter,
            handler_slower_than_lease_or_poll_interval needs Extension,
            handler_slower_than_the_longest_lease needs LongestLease,
            pause_beyond_the_session_with_takeover needs Sessions,
            restart_of_the_broker_loses_nothing needs Restart,
            an_expired_committed_offset_is_refused needs ExpiringOffsets;
        failures:
            busy_is_never_acknowledged,
            dead_letter_is_confirmed_before_the_acknowledgement,
            dead_letter_and_redrive,
            missing_key_is_a_dead_letter,
            key_reused_with_another_payload,
            rejected_is_a_dead_letter_each_time,
            a_panic_is_unknown,
            the_panic_of_a_shared_batch_counts_for_none_of_its_messages,
            database_down_pauses;
        order:
            every_message_has_its_effect_once,
            nothing_is_acknowledged_before_its_end,
            poison_blocks_only_its_key,
            order_holds_over_a_restart needs Order,
            order_holds_at_a_stop needs Order;
        stops:
            drain_finishes_what_runs,
            revoke_finishes_what_runs needs Rebalance,
            rebalance_storm needs Rebalance,
            loss_acknowledges_nothing needs Loss;
    }
}
