//! DynamoDB Local while it is stopped, cut off, or its clock steps.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::ErrorKind::{NotApplied, Unknown, Unusable};
use hapax_core::machine::{Begun, Completed, Grant};
use hapax_core::runtime::Tokio;
use hapax_core::store::{Finding, Severity};
use hapax_core::{Inspect, Result, Store};
use hapax_stores::DynamoDb;
use hapax_testkit::ClockStep;
use hapax_testkit::proxy::{CutPoint, NetworkFault, Proxy};
use hapax_testkit::servers::{DynamoDbServer, DynamoDbTable};
use libtest_mimic::Trial;
use serde_json::json;

use crate::grant_audit::GrantAudit;
use crate::support::{FIRST, Operation, SECOND, test, until};

const KEYS: usize = 40;

const HOUR: Duration = Duration::from_secs(3600);

const NAME: &str = "dynamodb";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("a_server_that_was_stopped_grants_nothing_twice", NAME, stopped),
        test("a_clock_step_blocks_no_key", NAME, clock_steps),
        test("a_cut_call_is_repeated_and_applied_once", NAME, cut),
        test("a_table_with_another_key_is_refused", NAME, another_key),
        test("a_store_without_its_table_says_so_and_makes_it", NAME, without_table),
    ]
}

async fn table() -> DynamoDbTable {
    DynamoDbServer::table().await.expect("the server starts")
}

fn store(url: &str) -> Arc<DynamoDb> {
    let url = url.parse().expect("the URL is valid");
    Arc::new(DynamoDb::with(&url, Arc::new(Tokio::current())).expect("the URL can be used"))
}

fn audit(store: &Arc<DynamoDb>) -> GrantAudit {
    GrantAudit::new(Arc::clone(store) as Arc<dyn Store>, KEYS)
}

/// All callers time out and repeat their calls while the server is stopped; then it executes everything that was sent.
async fn stopped() {
    let table = table().await;
    let store = store(&table.url());
    let audit = audit(&store);
    store.read(&audit.keys()[0].0.record_key()).await.unwrap();
    table.server().pause().unwrap();
    let resume = async {
        until("all callers have timed out", || async { audit.unknown() >= 2 * KEYS as u64 }).await;
        table.server().resume().unwrap();
    };
    let (granted, ()) = tokio::join!(audit.race(true), resume);
    assert_eq!(granted, KEYS as u64);
    audit.assert_answers_stand().await;
}

/// Clock back: the next begin sets the lease again. Clock forward: every lease has expired, and the next begin holds
/// the record.
async fn clock_steps() {
    let table = table().await;
    let (server, store) = (table.server(), store(&table.url()));
    let audit = audit(&store);
    assert_eq!(audit.race(false).await, KEYS as u64);
    server.step_clock(ClockStep::Back(5 * HOUR)).unwrap();
    // The first reply shows the step, and the next call believes it.
    store.read(&audit.keys()[0].0.record_key()).await.unwrap();
    assert_eq!(audit.race(false).await, 0);
    server.step_clock(ClockStep::Forward(Duration::from_secs(35))).unwrap();
    for operation in audit.keys() {
        until("the lease has expired", || async {
            let begun = operation.begin(&*store, SECOND).await.unwrap();
            matches!(begun, Begun::Indeterminate(_))
        })
        .await;
    }
    let later = Operation::new("later");
    let grant = later.grant(&*store, FIRST).await;
    server.step_clock(ClockStep::Forward(7 * HOUR)).unwrap();
    // No other attempt took over the lapsed record, so its owner can still complete it.
    let (completed, failures) = repeated(async || later.complete(&*store, &grant, "done").await).await;
    assert!(matches!(completed, Completed::Done | Completed::Already), "{completed:?}");
    assert!(failures <= 2, "the first reply shows the step");
    later.assert_replays(&*store, "done").await;
}

/// Repeats a call until it succeeds. Returns how often it failed, too.
async fn repeated<T>(mut call: impl AsyncFnMut() -> Result<T>) -> (T, u32) {
    let mut failures = 0;
    loop {
        match call().await {
            Ok(reply) => return (reply, failures),
            Err(error) => {
                assert!([Unknown, NotApplied].contains(&error.kind()), "{error:?}");
                failures += 1;
            }
        }
    }
}

async fn cut() {
    let table = table().await;
    let proxy = Proxy::start(table.server().address()).await.unwrap();
    let store = store(&format!("dynamodb://eu-west-1/{}?endpoint=http://{}", table.name(), proxy.address()));
    for at in [CutPoint::Unsent, CutPoint::Sent, CutPoint::Answered] {
        for round in 0..5 {
            let operation = Operation::new(&format!("{at:?} {round}"));
            let cut = || proxy.inject(NetworkFault::cut(at, "DynamoDB_20120810.PutItem").times(1));
            cut();
            let (begun, failures) = repeated(async || operation.begin(&*store, FIRST).await).await;
            let (Begun::Granted(grant) | Begun::Mine(grant)) = begun else { panic!("{at:?}: {begun:?}") };
            assert!(failures > 0, "{at:?}: the begin was not cut");
            assert_eq!(grant.attempt, 1, "{at:?}");
            cut();
            completed(&store, (operation, &grant), at).await;
        }
    }
}

async fn completed(store: &Arc<DynamoDb>, (operation, grant): (Operation, &Grant), at: CutPoint) {
    let (completed, failures) = repeated(async || operation.complete(&**store, grant, "done").await).await;
    assert!(matches!(completed, Completed::Done | Completed::Already) && failures > 0, "{at:?}: {completed:?}");
    operation.assert_replays(&**store, "done").await;
}

async fn without_table() {
    let table = table().await;
    let store = store(&table.server().url("missing"));
    let error = store.check().await.unwrap_err();
    assert!(error.to_string().contains("hapax migrate"), "{error:?}");
    assert!(!store.has_table().await.unwrap());
    assert!(store.create_table().await.unwrap() && !store.create_table().await.unwrap());
    assert_eq!(store.check().await.unwrap(), []);
    Operation::new("first").cycle(&*store).await;
    let dedicated = Arc::clone(&store).dedicated().await.unwrap();
    Operation::new("on an executor of its own").cycle(&*dedicated).await;
}

async fn another_key() {
    let table = table().await;
    let body = json!({
        "TableName": "foreign",
        "AttributeDefinitions": [{ "AttributeName": "id", "AttributeType": "S" }],
        "KeySchema": [{ "AttributeName": "id", "KeyType": "HASH" }],
        "BillingMode": "PAY_PER_REQUEST",
    });
    table.server().call("CreateTable", &body).await.unwrap();
    let store = store(&table.server().url("foreign"));
    let findings = store.check().await.unwrap();
    let is_refused = |finding: &Finding| finding.severity == Severity::Refuse && finding.message.contains("type B");
    assert!(findings.iter().any(is_refused), "{findings:?}");
    let error = store.begin(&Operation::new("first").ask(FIRST)).await.unwrap_err();
    assert_eq!(error.kind(), Unusable, "{error:?}");
}
