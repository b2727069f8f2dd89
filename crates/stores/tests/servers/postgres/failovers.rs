//! Standbys that are promoted, with and without the last writes of their primary.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use hapax_core::store::Finding;
use hapax_core::{Inspect, Store};
use hapax_stores::Postgres;
use hapax_testkit::proxy::{Direction, NetworkFault, Proxy};
use hapax_testkit::servers::{PostgresServer, PostgresServerOptions};
use libtest_mimic::Trial;

use super::{POSTGRES, start, store};
use crate::grant_audit::GrantAudit;
use crate::support::{FIRST, Operation, test};

const KEYS: usize = 20;

pub(super) fn tests() -> Vec<Trial> {
    vec![
        test("data_lost_by_a_promoted_standby_is_reported", POSTGRES, with_loss),
        test("a_completion_lost_by_a_promoted_standby_is_reported", POSTGRES, lost_completion),
        test("a_standby_promoted_without_loss_is_reported_as_such", POSTGRES, without_loss),
        test("a_check_that_fails_reports_no_event_and_the_next_one_does", POSTGRES, failed_check),
        test("a_completion_lost_behind_a_newer_mark_is_reported", POSTGRES, newer_mark),
        test("a_copy_of_the_data_that_is_put_back_is_reported", POSTGRES, put_back),
        test("a_restart_is_no_other_timeline", POSTGRES, restarted),
    ]
}

/// A primary with a standby, and a store that reaches the primary through a proxy.
struct ReplicatedServer {
    primary: PostgresServer,
    standby: PostgresServer,
    /// Between the primary and its standby.
    replication: Proxy,
    clients: Proxy,
    store: Arc<Postgres>,
}

impl ReplicatedServer {
    async fn start() -> Self {
        let primary = start().await;
        let replication = Proxy::start(primary.address()).await.unwrap();
        let clients = Proxy::start(primary.address()).await.unwrap();
        let options = PostgresServerOptions::new().standby_of(replication.address());
        let standby = PostgresServer::start(options).await.unwrap();
        // Of a role without any rights on the server.
        let store = store(&primary.schema().await.unwrap().url_at(clients.address()));
        assert_eq!(store.check().await.unwrap(), []);
        Self { primary, standby, replication, clients, store }
    }

    /// From here on the standby gets no further writes, while the primary confirms them.
    fn stop_replication(&self) {
        self.replication.inject(NetworkFault::HalfOpen(Direction::ToClient));
    }

    async fn fail_over(&self) {
        self.primary.kill();
        self.standby.promote().await.unwrap();
        self.clients.redirect_to(self.standby.address());
        self.clients.reset();
    }

    async fn findings(&self) -> Vec<Finding> {
        findings(&self.store).await
    }
}

/// The findings of the first check that gets a reply.
async fn findings(store: &Postgres) -> Vec<Finding> {
    loop {
        if let Ok(findings) = store.check().await {
            break findings;
        }
    }
}

/// Whether the findings name a loss, and another timeline.
fn named(findings: &[Finding]) -> (bool, bool) {
    let has = |text: &str| findings.iter().any(|finding| finding.message.contains(text));
    (has("has lost records"), has("has another timeline"))
}

/// The operations that were lost are granted again, before any check. Only a ledger could prevent that.
async fn with_loss() {
    let servers = ReplicatedServer::start().await;
    let kept = Operation::new("kept");
    kept.cycle(&*servers.store).await;
    servers.standby.catch_up_with(&servers.primary).await.unwrap();
    servers.stop_replication();
    let audit = GrantAudit::new(Arc::clone(&servers.store) as Arc<dyn Store>, KEYS);
    assert_eq!(audit.race(true).await, KEYS as u64);
    servers.fail_over().await;
    audit.expect_data_loss();
    assert_eq!(audit.race(true).await, KEYS as u64, "each key is granted again");
    let findings = servers.findings().await;
    assert_eq!(named(&findings), (true, true), "{findings:?}");
    assert_eq!(servers.findings().await, [], "each event is reported once");
    kept.assert_replays(&*servers.store, "done").await;
}

/// The grant was replicated, and its completion was not.
async fn lost_completion() {
    let servers = ReplicatedServer::start().await;
    let operation = Operation::new("one");
    let grant = operation.grant(&*servers.store, FIRST).await;
    servers.standby.catch_up_with(&servers.primary).await.unwrap();
    servers.stop_replication();
    operation.complete(&*servers.store, &grant, "done").await.unwrap();
    servers.fail_over().await;
    assert_eq!(named(&servers.findings().await), (true, true));
}

async fn without_loss() {
    let servers = ReplicatedServer::start().await;
    let kept = Operation::new("kept");
    kept.cycle(&*servers.store).await;
    servers.standby.catch_up_with(&servers.primary).await.unwrap();
    servers.fail_over().await;
    assert_eq!(named(&servers.findings().await), (false, true));
    kept.assert_replays(&*servers.store, "done").await;
}

/// A finding that a failed check had taken would be lost.
async fn failed_check() {
    let servers = ReplicatedServer::start().await;
    Operation::new("kept").cycle(&*servers.store).await;
    servers.standby.catch_up_with(&servers.primary).await.unwrap();
    servers.stop_replication();
    Operation::new("lost").cycle(&*servers.store).await;
    servers.fail_over().await;
    let admin = servers.standby.client().await.unwrap();
    let tables = "select format('%I.%I', schemaname, tablename) from pg_tables where tablename = 'hapax_migration'";
    let table: String = admin.query_one(tables, &[]).await.unwrap().get(0);
    admin.batch_execute(&format!("alter table {table} rename to hidden")).await.unwrap();
    loop {
        // Until the connections of the old primary are gone, the reason is another one.
        let error = servers.store.check().await.unwrap_err();
        if error.to_string().contains("hapax migrate") {
            break;
        }
    }
    let hidden = table.replace("hapax_migration", "hidden");
    admin.batch_execute(&format!("alter table {hidden} rename to hapax_migration")).await.unwrap();
    assert_eq!(named(&servers.findings().await), (true, true));
}

/// Another process may have removed a later record before the standby fell behind.
async fn newer_mark() {
    let servers = ReplicatedServer::start().await;
    let operation = Operation::new("one");
    let grant = operation.grant(&*servers.store, FIRST).await;
    let admin = servers.primary.client().await.unwrap();
    let tables = "select format('%I.%I', schemaname, tablename) from pg_tables where tablename = 'hapax_store'";
    let table: String = admin.query_one(tables, &[]).await.unwrap().get(0);
    let token = i64::try_from(grant.token.0).unwrap();
    admin.execute(&format!("update {table} set mark = $1"), &[&(token + 1)]).await.unwrap();
    servers.standby.catch_up_with(&servers.primary).await.unwrap();
    servers.stop_replication();
    operation.complete(&*servers.store, &grant, "done").await.unwrap();
    servers.fail_over().await;
    assert_eq!(named(&servers.findings().await), (true, true));
}

/// The copy has the timeline of the server, so only the missing record shows.
async fn put_back() {
    let server = start().await;
    let store = store(&server.url());
    Operation::new("kept").cycle(&*store).await;
    server.terminate().await.unwrap();
    let (data, copy) = (server.data_folder().join("data"), server.data_folder().join("copy"));
    copy_folder(&data, &copy);
    server.restart().await.unwrap();
    Operation::new("lost").cycle(&*store).await;
    server.kill();
    std::fs::remove_dir_all(&data).unwrap();
    copy_folder(&copy, &data);
    server.restart().await.unwrap();
    let findings = findings(&store).await;
    assert_eq!(named(&findings), (true, false), "{findings:?}");
    assert_eq!(store.check().await.unwrap(), [], "the loss is reported once");
}

/// Keeps owners and modes.
fn copy_folder(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

async fn restarted() {
    let server = start().await;
    let store = store(&server.url());
    Operation::new("one").cycle(&*store).await;
    assert_eq!(store.check().await.unwrap(), []);
    server.restart().await.unwrap();
    assert_eq!(findings(&store).await, []);
}
