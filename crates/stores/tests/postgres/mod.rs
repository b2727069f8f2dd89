//! The suite's setups of PostgreSQL: all cases share one server, and each has a schema with a clock of its own.

use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::runtime::Tokio;
use hapax_core::store::Inspect;
use hapax_core::{RecordKey, Store};
use hapax_stores::Postgres;
use hapax_testkit::servers::{PgBouncer, PostgresSchema, PostgresServer};
use hapax_testkit::{Backend, Capability, ClockStep, Setup, StoredPart};

pub(crate) fn backend() -> Backend {
    let setup = || async { Box::new(PostgresSetup::new().await) as Box<dyn Setup> };
    let backend = Backend::new("postgres", setup).sequences(1_000).sequences_at_once(8);
    backend.requiring("postgres").lacking(LACKING)
}

/// With the answers in a bucket.
pub(crate) fn far_backend() -> Backend {
    let setup = || async { Box::new(PostgresSetup::new().await) as Box<dyn Setup> };
    crate::far::backend("postgres_and_s3", Some("postgres"), setup).lacking(LACKING)
}

/// Behind a pooler the store prepares no statements: every call uses the statements of a batch, also a single one. Nor
/// can it choose the search path, which has what another role could plant there.
pub(crate) fn pooled_backend() -> Backend {
    let setup = || async { Box::new(PostgresSetup::behind_pgbouncer().await) as Box<dyn Setup> };
    let backend = Backend::new("pgbouncer", setup).sequences(100);
    backend.requiring("pgbouncer").lacking(LACKING)
}

const LACKING: &[(Capability, &str)] =
    &[(Capability::RoomToComplete, "a full disk refuses completions too; the gate keeps them in its journal")];

struct PostgresSetup {
    schema: PostgresSchema,
    store: Arc<Postgres>,
}

impl PostgresSetup {
    async fn new() -> Self {
        let server = PostgresServer::shared().await.expect("the server starts");
        let schema = server.schema().await.expect("the server answers");
        let url = schema.url();
        Self::with(schema, &url)
    }

    async fn behind_pgbouncer() -> Self {
        let server = PostgresServer::shared().await.expect("the server starts");
        let pooler = PgBouncer::shared().await.expect("the pooler starts");
        let schema = server.planted_schema().await.expect("the server answers");
        let url = schema.url_at(pooler.address());
        Self::with(schema, &url)
    }

    fn with(schema: PostgresSchema, url: &str) -> Self {
        let url = url.parse().expect("the URL is valid");
        let store = Postgres::with(&url, Arc::new(Tokio::current())).expect("the URL can be used");
        Self { schema, store: Arc::new(store) }
    }
}

#[async_trait]
impl Setup for PostgresSetup {
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
        self.schema.step_clock(step).await.expect("the server answers");
    }

    /// Replaces the fingerprint, or changes the first letter of the answer.
    async fn corrupt(&self, rk: &RecordKey, part: StoredPart) {
        let edit = match part {
            StoredPart::Header => "fingerprint = '\\x000000000000000000000000'",
            StoredPart::Answer => "answer = set_byte(answer, 0, get_byte(answer, 0) # 1)",
        };
        let update = format!("update hapax_record set {edit} where rk = $1");
        let changed = self.schema.admin().execute(&update, &[&&rk.as_bytes()[..]]).await;
        assert_eq!(changed.expect("the statement fits the schema"), 1, "the record must exist");
    }

    async fn put_golden(&self) {
        // The store creates its tables at its first call.
        self.store.check().await.expect("the store answers");
        self.schema.admin().batch_execute(include_str!("golden_v1.sql")).await.expect("the statement fits the schema");
    }
}
