//! `hapax reconcile` between Redis and PostgreSQL.

use std::sync::Arc;

use hapax::ledger::{Claimed, Terms};
use hapax::outbox::Outbox;
use hapax::runtime::BoxFuture;
use hapax::stores::{Postgres, PostgresLedger, PostgresOutbox, PostgresTables, Redis};
use hapax::{RecordKey, Store, ledger};
use hapax_testkit::servers::{self, PostgresSchema, PostgresServer, RedisKind, RedisServer, RedisServerOptions, Trial};

use crate::reconciliation::{
    EVENT_KEYS, System, asks_the_processor, finds_and_repairs, heals_what_a_dead_gateway_left,
};

pub(crate) fn tests() -> Vec<Trial> {
    let finds = "every_inconsistency_is_found_the_certain_ones_are_repaired_and_nothing_else_is_touched";
    let heals = "a_record_is_healed_that_a_gateway_left_which_died_after_the_ledger_had_committed";
    let asks = "the_processor_tells_of_effects_without_a_record_and_of_records_without_an_effect";
    vec![
        servers::test(finds, "postgres", async || finds_and_repairs(&Servers::start().await.system).await),
        servers::test(heals, "postgres", async || {
            let (servers, data) = (Servers::start().await, tempfile::tempdir().unwrap());
            heals_what_a_dead_gateway_left(&servers.system, data.path()).await;
        }),
        servers::test(asks, "postgres", async || asks_the_processor(&Servers::start().await.system).await),
    ]
}

struct Servers {
    system: System,
    _schema: PostgresSchema,
}

#[derive(Clone)]
struct BankDatabase {
    server: Arc<PostgresServer>,
    ledger: PostgresLedger,
    insert: Arc<str>,
}

impl Servers {
    async fn start() -> Self {
        let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
        let url = schema.url().parse().unwrap();
        PostgresTables::connect(&url).unwrap().create().await.unwrap();
        let name = schema.name();
        let emit = format!("select {name}.hapax_emit('bank', null, null, 'withdrawals', '5', okey => $1)");
        for key in EVENT_KEYS {
            schema.admin().execute(&emit, &[&key.as_bytes()]).await.unwrap();
        }
        schema.admin().batch_execute(&format!("create table {name}.effect (text text)")).await.unwrap();
        let redis = Arc::new(RedisServer::start(RedisServerOptions::new(RedisKind::Redis)).await.unwrap());
        let bank = BankDatabase {
            server: PostgresServer::shared().await.unwrap(),
            ledger: PostgresLedger::connect(&url, Terms::new("bank").unwrap()).unwrap(),
            insert: format!("insert into {name}.effect values ($1)").into(),
        };
        let system = System {
            store_url: redis.url(),
            records: Arc::new(Redis::connect(&redis.url()).unwrap()) as Arc<dyn Store>,
            database_url: schema.url(),
            claims: Arc::new(Postgres::connect(&schema.url()).unwrap()),
            outbox: Arc::new(PostgresOutbox::connect(&url).unwrap()) as Arc<dyn Outbox>,
            book: Arc::new(move |call, text| Box::pin(book(bank.clone(), call, text))),
            damage: Box::new(move |rk| damage(Arc::clone(&redis), rk)),
        };
        Self { system, _schema: schema }
    }
}

/// The service: its effect and its row of the ledger commit together.
async fn book(database: BankDatabase, call: ledger::Call, text: String) -> String {
    let mut client = database.server.client().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    match database.ledger.claim::<String>(&transaction, &call).await.unwrap() {
        Claimed::Fresh(entry) => {
            transaction.execute(&*database.insert, &[&text]).await.unwrap();
            entry.finish(&transaction, &text).await.unwrap();
            transaction.commit().await.unwrap();
            text
        }
        Claimed::Replay(answer) => answer,
        claimed @ (Claimed::Busy | Claimed::Mismatch | Claimed::Dead) => panic!("{claimed:?}"),
    }
}

/// Changes a byte of the fingerprint.
fn damage(redis: Arc<RedisServer>, rk: RecordKey) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let name = [b"hx:", &rk.as_bytes()[..]].concat();
        redis.command(&[&b"SETRANGE"[..], &name, b"12", b"x"]).await.unwrap();
    })
}
