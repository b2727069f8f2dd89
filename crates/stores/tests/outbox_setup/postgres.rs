//! The outbox suite's setups of PostgreSQL: all cases share one server, and each has a schema. Writers use the SQL
//! function, with a search path that has not the schema.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use hapax_core::outbox::{Outbox, OutboxUpkeep, OutgoingEvent};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::{BoxError, EventId, Inspect, Store};
use hapax_stores::{Postgres, PostgresOutbox, PostgresTables};
use hapax_testkit::servers::{PgBouncer, PostgresSchema, PostgresServer};
use hapax_testkit::{OutboxBackend, OutboxSetup, OutboxWriter, pause};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

pub(crate) fn backend() -> OutboxBackend {
    let make = || async { Box::new(PostgresTablesSetup::new().await) as Box<dyn OutboxSetup> };
    OutboxBackend::new("postgres", make).requiring("postgres")
}

/// Behind a pooler the search path cannot be chosen. It has what another role could plant there.
pub(crate) fn pooled_backend() -> OutboxBackend {
    let make = || async { Box::new(PostgresTablesSetup::behind_pgbouncer().await) as Box<dyn OutboxSetup> };
    OutboxBackend::new("pgbouncer", make).requiring("pgbouncer")
}

struct PostgresTablesSetup {
    server: Arc<PostgresServer>,
    schema: Arc<PostgresSchema>,
    outbox: Arc<PostgresOutbox>,
    store: Arc<Postgres>,
}

impl PostgresTablesSetup {
    async fn new() -> Self {
        let server = PostgresServer::shared().await.expect("the server starts");
        let schema = server.schema().await.expect("the server answers");
        let url = schema.url();
        Self::at(&url, server, schema).await
    }

    async fn behind_pgbouncer() -> Self {
        let server = PostgresServer::shared().await.expect("the server starts");
        let pooler = PgBouncer::shared().await.expect("the pooler starts");
        let schema = server.planted_schema().await.expect("the server answers");
        let url = schema.url_at(pooler.address());
        Self::at(&url, server, schema).await
    }

    async fn at(text: &str, server: Arc<PostgresServer>, schema: PostgresSchema) -> Self {
        let url = text.parse().expect("the URL is valid");
        PostgresTables::connect(&url).expect("the server answers").create().await.expect("the tables are new");
        let outbox = Arc::new(PostgresOutbox::connect(&url).expect("the URL is valid"));
        let store = Arc::new(Postgres::connect(text).expect("the URL is valid"));
        Self { outbox, store, server, schema: Arc::new(schema) }
    }

    async fn writer(&self) -> PostgresWriter {
        let url = format!("postgres://{}@{}/postgres", self.schema.name(), self.server.address());
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("the server answers");
        Tokio::current().spawn(Box::pin(async { drop(connection.await) }));
        client.batch_execute("set search_path to pg_catalog; begin").await.expect("the settings exist");
        PostgresWriter { client: Arc::new(client), schema: Arc::clone(&self.schema), pending: None }
    }
}

#[async_trait(?Send)]
impl OutboxSetup for PostgresTablesSetup {
    fn outbox(&self) -> Arc<dyn Outbox> {
        Arc::clone(&self.outbox) as Arc<dyn Outbox>
    }

    fn upkeep(&self) -> Arc<dyn OutboxUpkeep> {
        Arc::clone(&self.outbox) as Arc<dyn OutboxUpkeep>
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    fn records(&self) -> Arc<dyn Inspect> {
        Arc::clone(&self.store) as Arc<dyn Inspect>
    }

    async fn begin(&self) -> Box<dyn OutboxWriter> {
        Box::new(self.writer().await)
    }

    /// The insertion waits in a constraint: by then the row has its id, and the transaction has its own id only if the
    /// default of the column has drawn it.
    async fn begin_slow(&self, event: &OutgoingEvent) -> Box<dyn OutboxWriter> {
        let (name, lock) = (self.schema.name(), lock(&self.schema));
        let constraint = format!(
            "create function {name}.wait(topic text) returns boolean language plpgsql as
             'begin if topic = ''{}'' then perform pg_catalog.pg_advisory_xact_lock({lock}); end if; return true; end';
             alter table {name}.hapax_outbox add constraint wait check ({name}.wait(topic)) not valid;
             select pg_advisory_lock({lock});",
            event.topic
        );
        self.schema.admin().batch_execute(&constraint).await.expect("the constraint is new");
        let mut writer = self.writer().await;
        let (client, event, schema) = (Arc::clone(&writer.client), event.clone(), name.to_owned());
        let mut pending: LocalBoxFuture<'static, _> =
            Box::pin(async move { emit(&client, &schema, &event).await.map(drop) });
        let waits = format!(
            "select exists (select from pg_locks where locktype = 'advisory' and not granted and \
                             objid = {lock})"
        );
        let clock = Tokio::current();
        let until = clock.boottime_now() + Duration::from_secs(60);
        while clock.boottime_now() < until {
            assert!(pending.as_mut().now_or_never().is_none(), "the insertion does not wait");
            if self.schema.admin().query_one(&waits, &[]).await.expect("the server answers").get(0) {
                writer.pending = Some(pending);
                return Box::new(writer);
            }
            pause().await;
        }
        panic!("the insertion does not reach the constraint");
    }

    async fn age(&self, by: Duration) {
        let age = format!(
            "update {0}.hapax_outbox set created_at = created_at - {1}, published_at = published_at - {1};
             update {0}.hapax_parked set parked_at = parked_at - {1}",
            self.schema.name(),
            format_args!("interval '{} seconds'", by.as_secs())
        );
        self.schema.admin().batch_execute(&age).await.expect("the tables exist");
    }
}

/// A number of the schema for an advisory lock.
fn lock(schema: &PostgresSchema) -> u32 {
    let digits: String = schema.name().chars().filter(char::is_ascii_digit).collect();
    700_000 + digits.parse::<u32>().expect("the name ends with a number")
}

struct PostgresWriter {
    client: Arc<Client>,
    schema: Arc<PostgresSchema>,
    /// The insertion that waits.
    pending: Option<LocalBoxFuture<'static, Result<(), BoxError>>>,
}

#[async_trait(?Send)]
impl OutboxWriter for PostgresWriter {
    async fn emit(&mut self, event: &OutgoingEvent) -> Result<EventId, BoxError> {
        emit(&self.client, self.schema.name(), event).await
    }

    async fn commit(mut self: Box<Self>) -> Result<(), BoxError> {
        if let Some(pending) = self.pending.take() {
            let unlock = format!("select pg_advisory_unlock({})", lock(&self.schema));
            self.schema.admin().batch_execute(&unlock).await?;
            pending.await?;
        }
        Ok(self.client.batch_execute("commit").await?)
    }
}

async fn emit(client: &Client, schema: &str, event: &OutgoingEvent) -> Result<EventId, BoxError> {
    let sql = format!("select {schema}.hapax_emit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::jsonb)");
    let text = |value: &bytes::Bytes| String::from_utf8(value.to_vec()).expect("the headers are text");
    let headers = event.headers.iter().map(|(name, value)| (name.to_owned(), text(value).into()));
    let headers = serde_json::Value::Object(headers.collect()).to_string();
    let operation = event.operation.map(|operation| Uuid::from_bytes(*operation.as_bytes()));
    let row = client
        .query_typed(
            &sql,
            &[
                (&event.namespace, Type::TEXT),
                (&operation, Type::UUID),
                (&event.number.map(u32::cast_signed), Type::INT4),
                (&event.topic, Type::TEXT),
                (&&event.payload[..], Type::BYTEA),
                (&event.ordering_key.as_deref(), Type::BYTEA),
                (&event.kind, Type::TEXT),
                (&event.source, Type::TEXT),
                (&event.content_type, Type::TEXT),
                (&headers, Type::TEXT),
            ],
        )
        .await?;
    Ok(EventId::from_bytes(row[0].get::<_, Uuid>(0).into_bytes()))
}
