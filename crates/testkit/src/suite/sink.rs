//! The cases for a sink of the relay: what arrives, and what it says of it.

mod setup;
mod world;

mod faults;
mod inbox;
mod publishing;

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

pub use setup::{ArrivedEvent, SinkCapability, SinkOptions, SinkSetup};
use world::SinkWorld;

/// A case of the sink suite. `run` panics if the sink violates it.
#[derive(Clone, Copy)]
pub struct SinkCase {
    /// The stable name.
    pub name: &'static str,
    /// The capability that the case needs.
    pub needs: Option<SinkCapability>,
    run: fn(SinkWorld) -> BoxFuture<'static, ()>,
}

impl fmt::Debug for SinkCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl SinkCase {
    /// Runs the case in a place of its own.
    ///
    /// # Panics
    /// If the sink violates the case.
    pub async fn run(&self, setup: Arc<dyn SinkSetup>) {
        (self.run)(SinkWorld { setup }).await;
    }
}

macro_rules! cases {
    ($($family:ident: $($name:ident $(needs $needs:ident)?),+;)+) => {
        vec![$($(SinkCase {
            name: stringify!($name),
            needs: cases!(@ $($needs)?),
            run: |world| Box::pin(async move { $family::$name(&world).await }),
        }),+),+]
    };
    (@) => { None };
    (@ $needs:ident) => { Some(SinkCapability::$needs) };
}

/// Every case of the sink suite.
pub fn sink_cases() -> Vec<SinkCase> {
    cases! {
        publishing:
            an_event_arrives_as_it_was_emitted,
            a_name_comes_from_the_template,
            a_repeated_event_arrives_under_one_id,
            a_republished_event_arrives_again_under_the_same_event_id,
            events_of_a_key_keep_their_order,
            a_large_event_arrives_and_a_larger_one_is_refused,
            a_topic_that_cannot_be_used_is_refused_and_others_go_on,
            dropped_publications_disturb_no_other,
            close_waits_for_what_is_in_flight;
        faults:
            a_broker_that_can_be_used_passes_the_check,
            a_small_limit_is_reported_and_holds needs SmallLimit,
            a_missing_topic_is_not_refused needs MissingTopic,
            a_lost_confirmation_is_unknown_and_repeated_under_one_id needs Network,
            broken_connections_lose_nothing needs Network,
            a_broker_that_is_away_confirms_nothing_and_loses_nothing needs Restart;
        inbox:
            a_dead_letter_is_repeated_under_one_id,
            an_event_that_is_published_twice_is_handled_once needs Source;
    }
}
