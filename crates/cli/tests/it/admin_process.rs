//! A worker and a relay in which an operator has something to decide.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};

use hapax::broker::{DeadLetters, DeadReason};
use hapax::stores::{Sqlite, SqliteDeadLetters, SqliteLedger, SqliteOutbox, SqliteQueue};
use hapax::{RecordKey, Store};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::dead_letters::letter;
use crate::harness::{GatewayClient, free_address, hapax, until};
use crate::keys_commands::{Planted, plant};
use crate::outbox_commands::{events, open_rows, park};

/// A worker or a relay, killed when dropped.
pub(crate) struct AdminProcess {
    child: Child,
    pub(crate) admin: SocketAddr,
    // Removed after the process has ended.
    pub(crate) directory: TempDir,
}

impl AdminProcess {
    /// A worker with two dead letters, and the key and token of the record of a message whose outcome is unknown.
    pub(crate) async fn worker() -> (Self, RecordKey, u64) {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let dead = SqliteDeadLetters::open(path("dead.db")).unwrap();
        let letters = vec![letter(1, DeadReason::Rejected), letter(2, DeadReason::OutcomeUnknown)];
        dead.put(letters).await.into_iter().for_each(|result| result.unwrap());
        let store = Sqlite::open(path("hapax.db")).unwrap();
        let rk = plant(&store, "message", Planted::Abandoned).await;
        let token = store.read(&rk).await.unwrap().record.unwrap().token.0;
        SqliteQueue::migrate(&mut Connection::open(path("queue.db")).unwrap()).unwrap();
        let (store, dead) = (sqlite(&path("hapax.db")), sqlite(&path("dead.db")));
        let source = sqlite(&path("queue.db")) + "?queue=orders";
        let target = "http://127.0.0.1:9/";
        let flags = ["--store", &store, "--dead-letter", &dead, "--source", &source, "--target", target];
        (Self::start("worker", &flags, directory).await, rk, token)
    }

    /// A relay with [`events`] and the id of the first one. Both keys are parked.
    pub(crate) async fn relay() -> (Self, String) {
        let directory = tempfile::tempdir().unwrap();
        let (shop, queue) = (directory.path().join("shop.db"), directory.path().join("queue.db"));
        let mut connection = Connection::open(&shop).unwrap();
        SqliteLedger::migrate(&mut connection).unwrap();
        SqliteOutbox::migrate(&mut connection).unwrap();
        let transaction = connection.transaction().unwrap();
        for event in events() {
            SqliteOutbox::emit(&transaction, "accounts", None, event).unwrap();
        }
        transaction.commit().unwrap();
        let outbox = SqliteOutbox::open(&shop).unwrap();
        let rows = open_rows(&outbox).await;
        park(&outbox, &rows[0], "it has more than 1 MiB").await;
        park(&outbox, &rows[2], "the topic does not exist").await;
        SqliteQueue::migrate(&mut Connection::open(&queue).unwrap()).unwrap();
        let flags = ["--database", &sqlite(&shop), "--sink", &(sqlite(&queue) + "?queue=q")];
        (Self::start("relay", &flags, directory).await, rows[0].event.id.to_string())
    }

    async fn start(command: &str, flags: &[&str], directory: TempDir) -> Self {
        let admin = free_address();
        let mut process = hapax();
        process.arg(command).args(flags).args(["--admin", &admin.to_string()]).stderr(Stdio::null());
        let own = Self { child: process.spawn().unwrap(), admin, directory };
        let client = GatewayClient::of(admin);
        until("the process listens", async || client.get("/healthz").await.is_some()).await;
        own
    }

    pub(crate) fn audit(&self, folder: &str) -> String {
        std::fs::read_to_string(self.directory.path().join(folder).join("audit.jsonl")).unwrap()
    }
}

impl Drop for AdminProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sqlite(path: &Path) -> String {
    format!("sqlite://{}", path.display())
}
