//! The suite's setup of Spanner: each case has a database on the emulator that all share.
//!
//! The emulator's clock cannot be stepped: it never goes back, and what waits in it waits for the machine's clock. So
//! a case steps the clock that its store reads.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::runtime::Tokio;
use hapax_core::store::Inspect;
use hapax_core::{RecordKey, Store};
use hapax_stores::Spanner;
use hapax_testkit::servers::SpannerServer;
use hapax_testkit::{Backend, Capability, ClockStep, Setup, StoredPart, golden_call};

pub(crate) fn backend() -> Backend {
    let backend = Backend::new("spanner", || async { Box::new(SpannerSetup::new().await) as Box<dyn Setup> });
    backend.requiring("spanner").sequences(15).lacking(&[
        (Capability::HighWaterMark, "the store keeps no token high-water mark"),
        (Capability::RoomToComplete, "a database has no limit that a test could reach"),
    ])
}

struct SpannerSetup {
    _server: Arc<SpannerServer>,
    store: Arc<Spanner>,
}

impl SpannerSetup {
    async fn new() -> Self {
        let server = SpannerServer::shared().await.expect("the server starts");
        let url = server.new_database().parse().expect("the URL is valid");
        let store = Arc::new(Spanner::with(&url, Arc::new(Tokio::current())).expect("the URL can be used"));
        store.create_table().await.expect("the server makes the table");
        // The store sweeps only a table without a policy.
        store.change_table("ALTER TABLE hapax_record DROP ROW DELETION POLICY").await.expect("the policy is there");
        Self { _server: server, store }
    }
}

#[async_trait]
impl Setup for SpannerSetup {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as _
    }

    fn inspect(&self) -> Arc<dyn Inspect> {
        Arc::clone(&self.store) as _
    }

    async fn lapse(&self, rk: &RecordKey) {
        let seen = self.store.read(rk).await.expect("the store answers");
        self.step_clock(ClockStep::Forward(seen.lease_left)).await;
    }

    async fn expire(&self, rk: &RecordKey) {
        let seen = self.store.read(rk).await.expect("the store answers");
        self.step_clock(ClockStep::Forward(seen.life_left)).await;
    }

    async fn step_clock(&self, step: ClockStep) {
        let micros = |length: Duration| i64::try_from(length.as_micros()).expect("no step takes that long");
        self.store.shift_clock(match step {
            ClockStep::Forward(length) => micros(length),
            ClockStep::Back(length) => -micros(length),
        });
    }

    /// Replaces a byte of the fingerprint, or the last byte of the answer, by 0xff, which is in neither.
    async fn corrupt(&self, rk: &RecordKey, part: StoredPart) {
        let sql = match part {
            StoredPart::Header => {
                "UPDATE hapax_record SET value = CONCAT(SUBSTR(value, 1, 12), b'\\xff', SUBSTR(value, 14)) \
                 WHERE rk = @rk"
            }
            StoredPart::Answer => {
                "UPDATE hapax_record SET value = CONCAT(SUBSTR(value, 1, LENGTH(value) - 1), b'\\xff') WHERE rk = @rk"
            }
        };
        self.store.execute(sql, rk).await.expect("the record can be altered");
    }

    async fn put_golden(&self) {
        self.store.execute(include_str!("golden_v1.sql"), &golden_call().record_key()).await.expect("it is written");
    }
}
