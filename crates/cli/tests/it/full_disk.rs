//! A relay whose database is on a full disk: it says so, and goes on when there is room.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};

use hapax::ledger::Event;
use hapax::stores::{SqliteLedger, SqliteOutbox, SqliteQueue};
use rusqlite::Connection;

use crate::disk::{fill, run_on_small_disk};
use crate::harness::{GatewayClient, free_address, hapax, until};

/// A relay, killed when dropped.
struct RelayProcess {
    child: Child,
    admin: SocketAddr,
}

impl RelayProcess {
    async fn start(flags: &[&str]) -> Self {
        let admin = free_address();
        let mut process = hapax();
        process.arg("relay").args(flags).args(["--admin", &admin.to_string()]).stderr(Stdio::null());
        let own = Self { child: process.spawn().unwrap(), admin };
        until("the process is ready", async || own.page("/readyz").await.0 == 200).await;
        own
    }

    /// The status and the text of a page of the admin listener.
    async fn page(&self, path: &str) -> (u16, String) {
        let page = GatewayClient::of(self.admin).get(path).await;
        page.map_or((0, String::new()), |page| (page.status.as_u16(), page.body))
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn url(path: &Path) -> String {
    format!("sqlite://{}", path.display())
}

fn messages(queue: &mut Connection) -> i64 {
    queue.query_row("select count(*) from hapax_queue", [], |row| row.get(0)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_database_is_full_is_not_ready_and_publishes_later() {
    let name = "full_disk::a_relay_whose_database_is_full_is_not_ready_and_publishes_later";
    let Some(disk) = run_on_small_disk(name) else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let (shop, file) = (disk.join("shop.db"), elsewhere.path().join("queue.db"));
    let mut database = Connection::open(&shop).unwrap();
    SqliteLedger::migrate(&mut database).unwrap();
    SqliteOutbox::migrate(&mut database).unwrap();
    let mut queue = Connection::open(&file).unwrap();
    SqliteQueue::migrate(&mut queue).unwrap();
    let sink = url(&file) + "?queue=q";
    let relay = RelayProcess::start(&["--database", &url(&shop), "--sink", &sink]).await;
    fill(&disk);
    let mut emitted = 0;
    // The free pages of the file take some events.
    until("the relay is not ready", async || {
        emitted += i64::from(emit(&mut database).is_ok());
        let (status, text) = relay.page("/readyz").await;
        status == 503 && text.contains("takes no writes")
    })
    .await;
    let refused = "\nhapax_store_findings{severity=\"refuse\"} 1";
    until("an alert can tell", async || relay.page("/metrics").await.1.contains(refused)).await;
    fs::remove_file(disk.join("ballast")).unwrap();
    until("the relay is ready", async || relay.page("/readyz").await.0 == 200).await;
    emit(&mut database).unwrap();
    until("every event is published and marked", async || {
        let open = "select count(*) from hapax_outbox where state = 0";
        database.query_row(open, [], |row| row.get::<_, i64>(0)).unwrap() == 0
    })
    .await;
    assert_eq!(messages(&mut queue), emitted + 1, "each event is in the queue once");
}

fn emit(database: &mut Connection) -> rusqlite::Result<()> {
    let transaction = database.transaction()?;
    SqliteOutbox::emit(&transaction, "accounts", None, Event::new("orders", "{}"))
        .map_err(|_| rusqlite::Error::InvalidQuery)?;
    transaction.commit()
}
