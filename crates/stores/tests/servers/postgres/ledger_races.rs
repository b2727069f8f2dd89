//! The order in which a claim takes its lock and searches.

use futures_util::future::join;
use hapax_core::runtime::{Runtime, Tokio};
use hapax_testkit::servers::{self, PostgresServer, PostgresServerOptions};
use libtest_mimic::Trial;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use super::POSTGRES;
use super::ledger::{ledger, terms};
use super::ledger_guard::{connect, with_tables};
use crate::support::until;

pub(super) fn tests() -> Vec<Trial> {
    vec![
        servers::test("a_claim_has_its_lock_before_it_searches", POSTGRES, lock_first),
        servers::test("a_claim_of_many_sees_what_a_twin_commits_while_it_takes_its_locks", POSTGRES, commit_meanwhile),
    ]
}

/// The process of a connection.
async fn process(client: &Client) -> i32 {
    client.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// The advisory locks that a process holds.
async fn locks(admin: &Client, process: i32) -> i64 {
    let locks = "select count(*) from pg_locks where pid = $1 and locktype = 'advisory' and granted";
    admin.query_one(locks, &[&process]).await.unwrap().get(0)
}

/// Each claim has to wait in its search, because a table that it searches is locked.
async fn lock_first() {
    let (schema, _, client) = with_tables().await;
    let (blocker, process) = (connect(&schema, schema.name()).await, process(&client).await);
    let block = format!("begin; lock table {}.hapax_attempt in access exclusive mode", schema.name());
    let operation = Uuid::from_u128(7);
    for claim in [
        format!("hapax_claim_one('transfers', '{operation}')"),
        format!("hapax_claim('transfers', '{{{operation}}}')"),
        format!("hapax_once('transfers', '{operation}', null)"),
    ] {
        blocker.batch_execute(&block).await.unwrap();
        let watched = async {
            let waits = "select from pg_locks where pid = $1 and locktype = 'relation' and not granted";
            until("the claim waits", async || !schema.admin().query(waits, &[&process]).await.unwrap().is_empty())
                .await;
            let locks = locks(schema.admin(), process).await;
            blocker.batch_execute("rollback").await.unwrap();
            locks
        };
        let claim = format!("begin; select {claim}; rollback");
        let (claimed, locks) = join(client.batch_execute(&claim), watched).await;
        claimed.unwrap();
        assert_eq!(locks, 1, "{claim}");
    }
}

/// So many operations that their locks take some milliseconds. The operation of the twin is the last one.
const MANY: u128 = 20_000;

async fn commit_meanwhile() {
    let locks_for_many = PostgresServerOptions::new().with_args(&["-c", "max_locks_per_transaction=512"]);
    let server = PostgresServer::start(locks_for_many).await.unwrap();
    ledger(&server.url(), terms()).create_tables().await.unwrap();
    let (batch, twin, admin) = (client(&server).await, client(&server).await, client(&server).await);
    let process = process(&batch).await;
    for round in 0..20 {
        let last = Uuid::from_u128(u128::MAX - round);
        let operations: Vec<Uuid> = (0..MANY).map(Uuid::from_u128).chain([last]).collect();
        let finish = format!(
            "begin; select hapax_once('transfers', '{last}', null); select hapax_done('transfers', '{last}', 'theirs')"
        );
        twin.batch_execute(&finish).await.unwrap();
        batch.batch_execute("begin").await.unwrap();
        let claim = "select coalesce(busy || ended, busy, ended) from hapax_claim($1, $2)";
        let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&"transfers", Type::TEXT), (&operations, Type::UUID_ARRAY)];
        let commit = async {
            until("the batch has a lock", async || locks(&admin, process).await > 0).await;
            twin.batch_execute("commit").await.unwrap();
        };
        let (claimed, ()) = join(batch.query_typed(claim, &parameters), commit).await;
        // It may be both: busy when its lock was tried, and ended when it was searched.
        let mut not_claimed: Vec<Uuid> = claimed.unwrap()[0].get::<_, Option<_>>(0).unwrap_or_default();
        not_claimed.dedup();
        assert_eq!(not_claimed, [last], "round {round}");
        batch.batch_execute("rollback").await.unwrap();
    }
}

async fn client(server: &PostgresServer) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    Tokio::current().spawn(Box::pin(async { drop(connection.await) }));
    client
}
