//! Standbys that are promoted, with and without the last writes of their primary.

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

    /// The findings of the first check that gets a reply.
    async fn findings(&self) -> Vec<Finding> {
        loop {
            if let Ok(findings) = self.store.check().await {
                break findings;
            }
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

async fn restarted() {
    let server = start().await;
    let store = store(&server.url());
    Operation::new("one").cycle(&*store).await;
    assert_eq!(store.check().await.unwrap(), []);
    server.restart().await.unwrap();
    let findings = loop {
        if let Ok(findings) = store.check().await {
            break findings;
        }
    };
    assert_eq!(findings, []);
}
