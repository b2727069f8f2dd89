//! The emulator of Spanner while it is stopped, cut off, or aborts transactions.

use std::sync::Arc;

use hapax_core::ErrorKind::{NotApplied, Unknown};
use hapax_core::machine::{Begun, Completed};
use hapax_core::runtime::Tokio;
use hapax_core::store::Severity;
use hapax_core::{Inspect, Result, Store};
use hapax_stores::Spanner;
use hapax_testkit::proxy::{CutPoint, NetworkFault, Proxy};
use hapax_testkit::servers::SpannerServer;
use libtest_mimic::Trial;

use crate::grant_audit::GrantAudit;
use crate::support::{FIRST, Operation, test, until};

const KEYS: usize = 10;

const NAME: &str = "spanner";

/// The beginning of each change of a record in a commit: the table, and its first column. No statement has it.
const CHANGE: &[u8] = b"hapax_record\x12\x02rk";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("a_server_that_was_stopped_grants_nothing_twice", NAME, stopped),
        test("a_server_that_aborts_transactions_grants_nothing_twice", NAME, aborting),
        test("a_commit_that_was_cut_is_applied_once", NAME, cut),
        test("a_store_without_its_table_says_so_and_makes_it", NAME, without_table),
    ]
}

fn store(url: &str) -> Arc<Spanner> {
    let url = url.parse().expect("the URL is valid");
    Arc::new(Spanner::with(&url, Arc::new(Tokio::current())).expect("the URL can be used"))
}

/// A store in a new database, on a server of its own with these options.
async fn started(options: &[&str]) -> (SpannerServer, Arc<Spanner>) {
    let server = SpannerServer::start(options).await.expect("the server starts");
    let store = store(&server.new_database());
    store.create_table().await.unwrap();
    (server, store)
}

fn audit(store: &Arc<Spanner>) -> GrantAudit {
    GrantAudit::new(Arc::clone(store) as Arc<dyn Store>, KEYS)
}

/// All callers time out and repeat their calls while the server is stopped; then it executes what was sent.
async fn stopped() {
    let (server, store) = started(&[]).await;
    let audit = audit(&store);
    server.pause().unwrap();
    let resume = async {
        until("all callers have timed out", || async { audit.unknown() >= 2 * KEYS as u64 }).await;
        server.resume().unwrap();
    };
    let (granted, ()) = tokio::join!(audit.race(true), resume);
    assert_eq!(granted, KEYS as u64);
    audit.assert_answers_stand().await;
}

/// The server aborts commits at random, and no caller sees it.
async fn aborting() {
    let (_server, store) = started(&["--enable_fault_injection"]).await;
    for round in 0..20 {
        let operation = Operation::new(&format!("{round}"));
        let grant = operation.grant(&*store, FIRST).await;
        let completed = operation.complete(&*store, &grant, "done").await.unwrap();
        assert_eq!(completed, Completed::Done);
        operation.assert_replays(&*store, "done").await;
    }
    let audit = audit(&store);
    assert_eq!(audit.race(true).await, KEYS as u64);
    audit.assert_answers_stand().await;
}

/// Repeats a call until it succeeds.
async fn repeated<T>(mut call: impl AsyncFnMut() -> Result<T>) -> T {
    loop {
        match call().await {
            Ok(reply) => return reply,
            Err(error) => assert!([Unknown, NotApplied].contains(&error.kind()), "{error:?}"),
        }
    }
}

async fn cut() {
    let server = SpannerServer::shared().await.expect("the server starts");
    let proxy = Proxy::start(server.address()).await.unwrap();
    let url = server.new_database().replace(&server.address().to_string(), &proxy.address().to_string());
    let store = store(&url);
    store.create_table().await.unwrap();
    for at in [CutPoint::Unsent, CutPoint::Sent, CutPoint::Answered] {
        for round in 0..5 {
            let operation = Operation::new(&format!("{at:?} {round}"));
            let cut = || proxy.inject(NetworkFault::cut(at, CHANGE).times(1));
            let before = proxy.counts().cuts;
            cut();
            let begun = repeated(async || operation.begin(&*store, FIRST).await).await;
            let (Begun::Granted(grant) | Begun::Mine(grant)) = begun else { panic!("{at:?}: {begun:?}") };
            assert_eq!(grant.attempt, 1, "{at:?}");
            assert_eq!(proxy.counts().cuts, before + 1, "{at:?}: the insert was not cut");
            let before = proxy.counts().cuts;
            cut();
            // The store asks again what has become of a transaction, so its caller may see no failure.
            let completed = repeated(async || operation.complete(&*store, &grant, "done").await).await;
            assert!(matches!(completed, Completed::Done | Completed::Already), "{at:?}: {completed:?}");
            assert_eq!(proxy.counts().cuts, before + 1, "{at:?}: the commit was not cut");
            operation.assert_replays(&*store, "done").await;
        }
    }
}

async fn without_table() {
    let server = SpannerServer::shared().await.expect("the server starts");
    let store = store(&server.new_database());
    let error = store.check().await.unwrap_err();
    assert!(error.to_string().contains("hapax migrate"), "{error:?}");
    assert!(store.create_table().await.unwrap() && !store.create_table().await.unwrap());
    assert!(store.has_table().await.unwrap());
    assert_eq!(store.check().await.unwrap(), []);
    Operation::new("first").cycle(&*store).await;
    let dedicated = Arc::clone(&store).dedicated().await.unwrap();
    Operation::new("with a connection of its own").cycle(&*dedicated).await;
    for (change, severity) in [
        ("ALTER TABLE hapax_record DROP ROW DELETION POLICY", Severity::Warn),
        ("ALTER TABLE hapax_record DROP COLUMN armed_at", Severity::Refuse),
        ("DROP TABLE hapax_record", Severity::Refuse),
    ] {
        store.change_table(change).await.unwrap();
        let findings = store.check().await.unwrap();
        assert!(findings.len() == 1 && findings[0].severity == severity, "{change}: {findings:?}");
    }
    let error = store.begin(&Operation::new("second").ask(FIRST)).await.unwrap_err();
    assert!(error.to_string().contains("hapax migrate"), "{error:?}");
    assert!(store.create_table().await.unwrap());
}
