//! The cases for an outbox: what a relay and operators do with it, and what writers see.

mod setup;
mod world;

mod operators;
mod publishing;
mod relays;
mod writers;

use std::fmt;

use futures_util::future::LocalBoxFuture;

pub use setup::{OutboxCapability, OutboxSetup, OutboxWriter};
use world::OutboxWorld;

/// A case of the outbox suite. `run` panics if the outbox violates it.
#[derive(Clone, Copy)]
pub struct OutboxCase {
    /// The stable name.
    pub name: &'static str,
    /// The capability that the case needs.
    pub needs: Option<OutboxCapability>,
    run: for<'a> fn(OutboxWorld<'a>) -> LocalBoxFuture<'a, ()>,
}

impl fmt::Debug for OutboxCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl OutboxCase {
    /// Runs the case on an empty outbox.
    ///
    /// # Panics
    /// If the outbox violates the case.
    pub async fn run(&self, setup: &dyn OutboxSetup) {
        (self.run)(OutboxWorld::new(setup)).await;
    }
}

macro_rules! cases {
    ($($family:ident: $($name:ident $(needs $needs:ident)?),+;)+) => {
        vec![$($(OutboxCase {
            name: stringify!($name),
            needs: cases!(@ $($needs)?),
            run: |world| Box::pin(async move { $family::$name(&world).await }),
        }),+),+]
    };
    (@) => { None };
    (@ $needs:ident) => { Some(OutboxCapability::$needs) };
}

/// Every case of the outbox suite.
pub fn outbox_cases() -> Vec<OutboxCase> {
    cases! {
        relays:
            slow_tx_row_is_emitted,
            a_fast_transaction_overtakes_a_slow_one needs ConcurrentWriters,
            rows_of_a_rolled_back_transaction_are_never_read,
            mark_is_conditional,
            a_late_mark_leaves_a_dropped_row,
            rows_are_named_by_their_ids_and_events,
            reads_begin_at_their_cursors,
            buckets_share_the_bytes_of_a_read,
            rows_of_topics_without_a_key_can_be_left_out,
            poison_parks_key_not_neighbours,
            a_parked_event_without_a_key_parks_no_other,
            a_published_row_parks_no_key,
            keys_are_parked_in_one_call,
            a_parked_key_keeps_its_first_reason,
            set_aside_leaves_rows_of_keys_that_are_not_parked;
        publishing:
            relays_publish_every_event_in_the_order_of_its_key,
            a_slow_transaction_keeps_the_order_of_its_key needs ConcurrentWriters,
            a_claim_whose_record_is_gone_is_lost;
        operators:
            a_resumed_key_comes_back_in_order,
            set_aside_leaves_rows_of_a_key_that_is_resumed,
            a_dropped_row_is_never_read,
            republish_opens_what_was_published_since,
            a_mark_from_before_a_republication_changes_nothing,
            a_row_is_published_again_under_another_id_for_the_broker,
            marks_count_during_a_republication_and_after_a_resumption,
            a_republication_until_now_has_all_that_was_published,
            sweep_spares_open_aside_and_young_rows,
            parked_keys_are_listed_from_the_oldest,
            counts_are_those_of_the_open_rows;
        writers:
            headers_and_payload_are_byte_equal,
            ids_by_ordinal,
            ids_without_an_operation_are_new,
            limits_at_insert needs Constraints,
            an_event_of_an_operation_is_written_once needs Constraints;
    }
}
