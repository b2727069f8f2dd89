//! Tests on real PostgreSQL servers: connections and servers fail, and the records must stay right.

mod access;
mod batches;
mod calls;
mod disk;
mod emitting;
mod failovers;
mod ledger;
mod ledger_failures;
mod ledger_functions;
mod ledger_guard;
mod ledger_plans;
mod ledger_prepared;
mod ledger_promotion;
mod ledger_races;
mod ledger_survival;
mod ledger_upgrade;
mod ledger_upkeep;
mod outages;
mod outbox;
mod planted;
mod schemas;
mod snippets;
mod sqlx;
mod trust;
mod worker;

use std::sync::Arc;

use hapax_core::Result;
use hapax_core::runtime::Tokio;
use hapax_stores::Postgres;
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{PostgresSchema, PostgresServer, PostgresServerOptions};
use libtest_mimic::Trial;

pub(crate) fn tests() -> Vec<Trial> {
    let ledgers = [
        ledger::tests(),
        ledger_failures::tests(),
        ledger_functions::tests(),
        ledger_guard::tests(),
        ledger_plans::tests(),
        ledger_prepared::tests(),
        ledger_promotion::tests(),
        ledger_races::tests(),
        ledger_survival::tests(),
        ledger_upgrade::tests(),
        ledger_upkeep::tests(),
    ];
    let records = [
        access::tests(),
        batches::tests(),
        calls::tests(),
        disk::tests(),
        failovers::tests(),
        outages::tests(),
        planted::tests(),
        schemas::tests(),
        trust::tests(),
    ];
    let others = [emitting::tests(), outbox::tests(), snippets::tests(), sqlx::tests(), worker::tests()];
    ledgers.into_iter().chain(records).chain(others).flatten().collect()
}

/// The name of the service.
const POSTGRES: &str = "postgres";

/// An empty schema of the server that the tests share.
async fn schema() -> PostgresSchema {
    PostgresServer::shared().await.expect("the server starts").schema().await.expect("the server answers")
}

/// A server of its own.
async fn start() -> PostgresServer {
    PostgresServer::start(PostgresServerOptions::new()).await.expect("the server starts")
}

fn open(url: &str) -> Result<Postgres> {
    Postgres::with(&url.parse()?, Arc::new(Tokio::current()))
}

/// Creates a store, which connects at its first call.
fn store(url: &str) -> Arc<Postgres> {
    Arc::new(open(url).expect("the store opens"))
}

/// A schema, and a proxy in front of its server.
async fn schema_behind_proxy() -> (PostgresSchema, Proxy) {
    let server = PostgresServer::shared().await.expect("the server starts");
    let proxy = Proxy::start(server.address()).await.expect("a port is free");
    (server.schema().await.expect("the server answers"), proxy)
}
