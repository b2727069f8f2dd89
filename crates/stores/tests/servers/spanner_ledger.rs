//! The ledger in the emulator of Spanner: commits that are cut, transactions that are aborted, a worker, and tables.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use hapax_core::broker::{Job, Message, Process, Verdict};
use hapax_core::gate::{Failure, Provenance};
use hapax_core::ledger::{Call, Entry, Event, HandlerFailure, LedgerRows, LedgerVerdict, Terms};
use hapax_core::runtime::Tokio;
use hapax_core::store::Severity;
use hapax_core::{Identity, Key, Scope};
use hapax_stores::{
    HandleSpannerJobs, Spanner, SpannerLedger, SpannerStatement, SpannerTables, SpannerTransaction, SpannerUrl,
};
use hapax_testkit::proxy::{CutPoint, NetworkFault, Proxy};
use hapax_testkit::servers::SpannerServer;
use libtest_mimic::Trial;

use crate::support::test;

const NAME: &str = "spanner";

/// The beginning of the change that claims an operation, in the commit. No statement has it.
const CLAIM: &[u8] = b"hapax_ledger\x12\x09operation";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("a_commit_of_the_ledger_that_was_cut_is_applied_once", NAME, cut),
        test("transactions_that_are_aborted_run_again_and_count_no_attempt", NAME, aborted),
        test("a_worker_runs_each_message_once_in_spanner", NAME, worker),
        test("an_open_row_cannot_be_written_past_the_ledger", NAME, open_row),
        test("the_tables_of_spanner_are_made_and_checked", NAME, tables),
    ]
}

/// A database with the tables of Hapax and one for effects.
struct Shop {
    url: SpannerUrl,
    database: Spanner,
}

impl Shop {
    async fn new(url: &str) -> Self {
        let url: SpannerUrl = url.parse().expect("the URL is valid");
        SpannerTables::connect(&url).unwrap().create().await.unwrap();
        let database = Spanner::with(&url, Arc::new(Tokio::current())).unwrap();
        let table = "CREATE TABLE effect (id STRING(36) NOT NULL, operation STRING(MAX)) PRIMARY KEY (id)";
        database.change_table(table).await.unwrap();
        Self { url, database }
    }

    fn ledger(&self) -> SpannerLedger {
        let terms = Terms::new("transfers").unwrap().max_attempts(1);
        SpannerLedger::connect(&self.url, terms).unwrap()
    }

    /// How many rows this table has.
    async fn count(&self, table: &str) -> usize {
        let rows = self.database.texts(&format!("SELECT CAST(COUNT(*) AS STRING) FROM {table}")).await.unwrap();
        rows[0][0].parse().unwrap()
    }
}

fn call(key: &str) -> Call {
    Call::from(Identity::plain().call(&Scope::tenant("shop", "acme").unwrap(), &Key::new(key).unwrap()))
}

async fn transfer(transaction: &SpannerTransaction, entry: &mut Entry) -> Result<String, Failure<String>> {
    let insert = SpannerStatement::new("INSERT INTO effect (id, operation) VALUES (GENERATE_UUID(), @operation)");
    let inserted = transaction.execute(insert.bind("operation", entry.operation().to_string())).await?;
    let find = SpannerStatement::new("SELECT COUNT(*) AS effects FROM effect WHERE operation = @operation");
    let found = transaction.query(find.bind("operation", entry.operation().to_string())).await?;
    // A transaction sees what it has written.
    assert_eq!((inserted, found[0].int64("effects")?), (1, 1), "the effect is there once");
    entry.emit(Event::new("transferred", "5"))?;
    Ok("transferred".to_owned())
}

async fn cut() {
    let server = SpannerServer::shared().await.expect("the server starts");
    let proxy = Proxy::start(server.address()).await.unwrap();
    let url = server.new_database().replace(&server.address().to_string(), &proxy.address().to_string());
    let shop = Shop::new(&url).await;
    let ledger = shop.ledger();
    for at in [CutPoint::Unsent, CutPoint::Sent, CutPoint::Answered] {
        for round in 0..5 {
            let (key, before) = (format!("{at:?}-{round}"), proxy.counts().cuts);
            proxy.inject(NetworkFault::cut(at, CLAIM).times(1));
            let first = ledger.run(call(&key), transfer).await.unwrap();
            assert_eq!((first.provenance, &*first.answer), (Provenance::Fresh, "transferred"), "{at:?}");
            assert_eq!(proxy.counts().cuts, before + 1, "{at:?}: the commit was not cut");
            let copy = ledger.run(call(&key), transfer).await.unwrap();
            assert_eq!(copy.provenance, Provenance::Replayed, "{at:?}");
        }
    }
    for table in ["effect", "hapax_ledger", "hapax_outbox"] {
        assert_eq!(shop.count(table).await, 15, "{table}");
    }
}

async fn aborted() {
    let server = SpannerServer::start(&["--enable_fault_injection"]).await.expect("the server starts");
    let shop = Shop::new(&server.new_database()).await;
    let (ledger, runs) = (shop.ledger(), Cell::new(0));
    let mut operations = 0;
    // Until one was aborted behind its handler.
    while operations < 20 || (runs.get() == operations && operations < 1_000) {
        let counted = async |transaction: &SpannerTransaction, entry: &mut Entry| {
            runs.set(runs.get() + 1);
            transfer(transaction, entry).await
        };
        ledger.run(call(&operations.to_string()), counted).await.unwrap();
        operations += 1;
    }
    assert!(runs.get() > operations, "no transaction was aborted");
    assert_eq!(shop.count("effect").await, operations);
    assert_eq!(shop.count("hapax_outbox").await, operations);
    assert_eq!(shop.count("hapax_attempt").await, 0, "an abort is no failed attempt");
}

/// Writes the effect of each message. A message whose payload is `poison` makes it panic.
struct Transfers {
    runs: AtomicU32,
}

impl HandleSpannerJobs<String> for Transfers {
    async fn handle(
        &self,
        transaction: &SpannerTransaction,
        jobs: &[Job],
        entries: &mut [Entry],
    ) -> Result<Vec<String>, HandlerFailure<String>> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let mut answers = Vec::new();
        for entry in entries {
            assert_ne!(jobs[entry.index()].message.payload, "poison", "the handler panics");
            answers.push(transfer(transaction, entry).await.map_err(HandlerFailure::of_any)?);
        }
        Ok(answers)
    }
}

fn job(key: &str) -> Job {
    let key = Key::new(key).unwrap();
    let call = Identity::plain().call(&Scope::tenant("shop", "acme").unwrap(), &key);
    let message = Message { payload: Bytes::copy_from_slice(key.as_bytes()), ..Message::default() };
    Job { record_key: call.record_key(), call: call.into(), key, message: Arc::new(message), attempt: None }
}

async fn worker() {
    let server = SpannerServer::shared().await.expect("the server starts");
    let shop = Shop::new(&server.new_database()).await;
    let process = shop.ledger().process(Transfers { runs: AtomicU32::new(0) });
    let verdicts = process.process(["a", "b", "poison", "c"].map(job).into()).await;
    let done = Verdict::Done { caught: false };
    assert_eq!([&verdicts[0], &verdicts[1], &verdicts[3]], [&done; 3], "{verdicts:?}");
    assert!(matches!(verdicts[2], Verdict::DeadLetter { attempts: 1, .. }), "{verdicts:?}");
    let copies = process.process(["c", "b", "a"].map(job).into()).await;
    assert_eq!(copies, [const { Verdict::Done { caught: true } }; 3]);
    assert_eq!((shop.count("effect").await, shop.count("hapax_attempt").await), (3, 1));
}

/// Without its constraint, the database would take the row of a claim without an end.
async fn open_row() {
    let server = SpannerServer::shared().await.expect("the server starts");
    let shop = Shop::new(&server.new_database()).await;
    let ledger = shop.ledger();
    for (open, is_refused) in [("1", true), ("NULL", false)] {
        let transaction = ledger.transaction().await.unwrap();
        let insert = format!(
            "INSERT INTO hapax_ledger (operation, namespace, open, rule, fingerprint, run, created_at) VALUES \
             (b'0123456789abcdef', 'others', {open}, 0, b'0123456789ab', 1, PENDING_COMMIT_TIMESTAMP())"
        );
        let inserted = transaction.execute(&insert).await;
        assert_eq!(inserted.is_err(), is_refused, "{inserted:?}");
        assert!(!is_refused || format!("{inserted:?}").contains("Foreign key"), "{inserted:?}");
        assert_eq!(transaction.commit().await.is_err(), is_refused, "a statement has failed");
    }
    assert_eq!(shop.count("hapax_ledger").await, 1);
}

async fn tables() {
    let server = SpannerServer::shared().await.expect("the server starts");
    let url: SpannerUrl = server.new_database().parse().expect("the URL is valid");
    let tables = SpannerTables::connect(&url).unwrap();
    let error = tables.missing().await.unwrap_err();
    assert!(error.to_string().contains("hapax migrate"), "{error:?}");
    assert_eq!(tables.create().await.unwrap(), [1, 2, 3]);
    assert_eq!((tables.create().await.unwrap(), tables.missing().await.unwrap()), (Vec::new(), Vec::new()));
    assert_eq!((tables.script().await.unwrap(), tables.check().await.unwrap()), (String::new(), Vec::new()));
    let shop = Shop::new(&url.to_string()).await;
    shop.ledger().run(call("order-7"), transfer).await.unwrap();
    let rows = tables.rows_of(&[call("order-7").operation(), call("order-8").operation()]).await.unwrap();
    assert_eq!(
        rows.iter().map(|row| (row.operation, row.verdict)).collect::<Vec<_>>(),
        [(call("order-7").operation(), LedgerVerdict::Applied)]
    );
    for change in [
        "ALTER TABLE hapax_ledger DROP CONSTRAINT hapax_ledger_open",
        "ALTER TABLE hapax_outbox REPLACE ROW DELETION POLICY (OLDER_THAN(created_at, INTERVAL 1 DAY))",
    ] {
        let before = tables.check().await.unwrap().len();
        shop.database.change_table(change).await.unwrap();
        let findings = tables.check().await.unwrap();
        assert_eq!(findings.len(), before + 1, "{change}: {findings:?}");
        assert!(findings.iter().all(|finding| finding.severity == Severity::Refuse));
    }
    shop.database.change_table("DROP TABLE hapax_parked").await.unwrap();
    assert!(tables.lack_outbox().await.unwrap() && !tables.lack_records().await.unwrap());
    assert!(tables.script().await.unwrap().starts_with("CREATE TABLE hapax_parked ("));
    assert_eq!(tables.create().await.unwrap(), [3]);
}
