//! Calls whose connection breaks, or that are cancelled.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use hapax_core::ErrorKind::{NotApplied, Unknown};
use hapax_core::Store;
use hapax_core::machine::{Begun, Claim, Completed, Renewed};
use hapax_core::store::Inserted;
use hapax_testkit::proxy::{CutPoint, Direction, NetworkFault};
use hapax_testkit::servers::PostgresSchema;
use libtest_mimic::Trial;

use super::{POSTGRES, schema, schema_behind_proxy, start, store};
use crate::support::{FIRST, Operation, SECOND, completion, expect_error, test, until, with_timeout};

/// The timeout of a call: long enough for a busy machine.
const CALL_TIMEOUT: Duration = Duration::from_millis(400);

/// The default number of connections of a store.
const CONNECTIONS: usize = 4;

pub(super) fn tests() -> Vec<Trial> {
    vec![
        test("a_call_whose_connection_breaks_is_unknown_and_can_be_repeated", POSTGRES, cut_calls),
        test("the_store_sends_no_call_twice", POSTGRES, sent_once),
        test("a_connection_that_loses_requests_is_replaced", POSTGRES, || half_open(Direction::ToServer)),
        test("a_connection_that_loses_replies_is_replaced", POSTGRES, || half_open(Direction::ToClient)),
        test("an_idle_connection_that_was_closed_costs_no_call", POSTGRES, cut_while_idle),
        test("a_connect_outlives_the_callers_that_wait_for_it", POSTGRES, slow_connect),
        test("a_cancelled_call_disturbs_no_other", POSTGRES, cancelled_calls),
        test("a_dedicated_store_works_while_all_connections_are_stuck", POSTGRES, dedicated),
        test("a_locked_record_delays_only_its_own_calls", POSTGRES, locked_record),
        test("a_begin_that_waited_for_a_connection_is_sent_once", POSTGRES, waits_for_a_connection),
        test("a_store_connects_once_its_server_is_up", POSTGRES, comes_up_later),
    ]
}

/// What every request has that writes a record of the first owner. The statement may be prepared, and so not be in it.
const WRITE: [u8; 16] = FIRST.0;

/// Each statement that writes, cut before it is sent, after it is sent, and after it was answered.
async fn cut_calls() {
    let (schema, proxy) = schema_behind_proxy().await;
    let store = store(&schema.url_at(proxy.address()));
    for (n, at) in [CutPoint::Unsent, CutPoint::Sent, CutPoint::Answered].into_iter().enumerate() {
        let operation = Operation::new(&format!("cut {n}"));
        let rk = operation.0.record_key();
        let cut = || proxy.inject(NetworkFault::cut(at, WRITE).times(1));
        let broken = |error: hapax_core::Error| assert_eq!(error.kind(), Unknown, "{at:?}: {error:?}");
        // The first begin of a store is sent again if its token was too small, so the cut must not be its first try.
        store.read(&rk).await.unwrap();

        cut();
        broken(expect_error(store.begin(&operation.ask(FIRST)).await));
        let begun = operation.begin(&*store, FIRST).await.unwrap();
        let (Begun::Granted(grant) | Begun::Mine(grant)) = begun else { panic!("{begun:?}") };
        assert_eq!(grant.attempt, 1);
        assert!(matches!(operation.begin(&*store, SECOND).await.unwrap(), Begun::Busy(_)));

        cut();
        broken(expect_error(store.renew(&rk, &Claim::from(&grant)).await));
        assert_eq!(store.renew(&rk, &Claim::from(&grant)).await.unwrap(), Renewed::Yes);

        cut();
        broken(expect_error(hapax_core::store::Protocol::over(&*store).abandon(&rk, &Claim::from(&grant)).await));
        let seen = store.read(&rk).await.unwrap();
        let is_abandoned = seen.record.as_ref().and_then(|record| record.state.holding()).unwrap().is_abandoned();
        assert!(at == CutPoint::Sent || is_abandoned == (at == CutPoint::Answered), "{at:?}");

        cut();
        broken(expect_error(store.complete(&rk, &completion(&grant, "done")).await));
        let completed = store.complete(&rk, &completion(&grant, "done")).await.unwrap();
        let expected = match at {
            CutPoint::Answered => completed == Completed::Already,
            CutPoint::Unsent => completed == Completed::Done,
            CutPoint::Sent | CutPoint::Silently => matches!(completed, Completed::Done | Completed::Already),
        };
        assert!(expected, "{at:?}: {completed:?}");
        operation.assert_replays(&*store, "done").await;
    }
    assert_eq!(proxy.counts().cuts, 12);
}

/// A call whose request is lost is not sent again: its caller decides.
async fn sent_once() {
    let (schema, proxy) = schema_behind_proxy().await;
    let (store, operation) = (store(&schema.url_at(proxy.address())), Operation::new("one"));
    store.read(&operation.0.record_key()).await.unwrap();
    proxy.inject(NetworkFault::cut(CutPoint::Unsent, WRITE).times(1));
    assert_eq!(expect_error(store.begin(&operation.ask(FIRST)).await).kind(), Unknown);
    assert_eq!(store.read(&operation.0.record_key()).await.unwrap().record, None);
    assert!(matches!(store.begin(&operation.ask(SECOND)).await.unwrap(), Inserted::Granted(_)));
}

/// A call without a reply is cancelled by its caller; the next one uses another connection.
async fn half_open(direction: Direction) {
    let (schema, proxy) = schema_behind_proxy().await;
    let (store, operation) = (store(&schema.url_at(proxy.address())), Operation::new("one"));
    store.read(&operation.0.record_key()).await.unwrap();
    let before = proxy.counts().connections;
    proxy.inject(NetworkFault::HalfOpen(direction).times(usize::try_from(before).unwrap()));
    let mut cancelled = 0;
    while with_timeout(CALL_TIMEOUT, store.read(&operation.0.record_key())).await.is_none() {
        cancelled += 1;
        // On a busy machine a call ends before its new connection is there.
        assert!(cancelled <= before + 10, "a stuck connection is not replaced");
    }
    assert!(cancelled > 0, "no connection lost anything");
    operation.cycle(&*store).await;
}

async fn cut_while_idle() {
    let (schema, proxy) = schema_behind_proxy().await;
    let store = store(&schema.url_at(proxy.address()));
    Operation::new("before").cycle(&*store).await;
    let before = proxy.counts().connections;
    proxy.reset();
    // The task of the connection sees the end at its next turn.
    until("the store uses another connection", || async {
        store.read(&Operation::new("before").0.record_key()).await.is_ok() && proxy.counts().connections > before
    })
    .await;
    Operation::new("after").cycle(&*store).await;
}

/// Each caller's timeout is shorter than the connect.
async fn slow_connect() {
    let (schema, proxy) = schema_behind_proxy().await;
    store(&schema.url()).read(&Operation::new("one").0.record_key()).await.unwrap();
    let store = store(&schema.url_at(proxy.address()));
    proxy.inject(NetworkFault::Latency { delay: CALL_TIMEOUT / 4, jitter: Duration::ZERO });
    let mut cancelled = 0;
    while with_timeout(CALL_TIMEOUT, store.read(&Operation::new("one").0.record_key())).await.is_none() {
        cancelled += 1;
        assert!(cancelled < 20, "the connect never finishes");
    }
    assert!(cancelled > 0, "the connect was too fast to prove anything");
}

/// Every second of many concurrent calls is cancelled.
async fn cancelled_calls() {
    let (schema, proxy) = schema_behind_proxy().await;
    let store = store(&schema.url_at(proxy.address()));
    store.read(&Operation::new("any").0.record_key()).await.unwrap();
    let calls = (0..400u32).map(|n| {
        let store = Arc::clone(&store);
        async move {
            let operation = Operation::new(&format!("{n}"));
            let begin = operation.begin(&*store, FIRST);
            if n % 2 == 0 {
                let _ = with_timeout(Duration::from_micros(u64::from(n) * 10), begin).await;
                return;
            }
            let grant = operation.grant(&*store, FIRST).await;
            let answer = format!("the answer {n}");
            operation.complete(&*store, &grant, &answer).await.unwrap();
            operation.assert_replays(&*store, &answer).await;
        }
    });
    join_all(calls).await;
    for n in (0..400).step_by(2) {
        Operation::new(&format!("{n}")).grant(&*store, FIRST).await;
    }
}

async fn dedicated() {
    let (schema, proxy) = schema_behind_proxy().await;
    let store = store(&schema.url_at(proxy.address()));
    let operation = Operation::new("one");
    let grant = operation.grant(&*store, FIRST).await;
    let own = (Arc::clone(&store) as Arc<dyn Store>).dedicated().await.unwrap();
    assert_eq!(own.renew(&operation.0.record_key(), &Claim::from(&grant)).await.unwrap(), Renewed::Yes);
    let lock = schema.admin().batch_execute("begin; lock table hapax_store in access exclusive mode");
    lock.await.unwrap();
    let keys: Vec<_> = (0..2 * CONNECTIONS).map(|n| Operation::new(&format!("stuck {n}"))).collect();
    let stuck = keys.iter().map(|operation| with_timeout(CALL_TIMEOUT, operation.begin(&*store, FIRST)));
    assert!(join_all(stuck).await.into_iter().all(|reply| reply.is_none()), "the calls must be stuck");
    schema.admin().batch_execute("rollback").await.unwrap();
    assert_eq!(own.renew(&operation.0.record_key(), &Claim::from(&grant)).await.unwrap(), Renewed::Yes);
    assert!(matches!(operation.complete(&*own, &grant, "done").await, Ok(Completed::Done)));
}

async fn locked_record() {
    let schema = schema().await;
    let (store, locked, other) = (store(&schema.url()), Operation::new("locked"), Operation::new("other"));
    let grant = locked.grant(&*store, FIRST).await;
    let rk = locked.0.record_key();
    schema.admin().batch_execute("begin; select from hapax_record for update").await.unwrap();
    assert!(with_timeout(CALL_TIMEOUT, store.renew(&rk, &Claim::from(&grant))).await.is_none());
    // A begin writes nothing to a record that exists, so it does not wait.
    assert!(matches!(locked.begin(&*store, SECOND).await.unwrap(), Begun::Busy(_)));
    other.cycle(&*store).await;
    schema.admin().batch_execute("commit").await.unwrap();
    assert_eq!(store.renew(&rk, &Claim::from(&grant)).await.unwrap(), Renewed::Yes);
    assert!(matches!(locked.complete(&*store, &grant, "done").await, Ok(Completed::Done)));
}

/// The last number of a sequence.
async fn count_of(sequence: &str, schema: &PostgresSchema) -> i64 {
    let select = format!("select last_value from {sequence} where is_called union all select 0 limit 1");
    schema.admin().query_one(&select, &[]).await.unwrap().get(0)
}

/// Counts the statements that insert, and makes each take longer than a token may be old.
const SLOW_INSERTS: &str = "
    create sequence inserts;
    grant usage on sequence inserts to public;
    create function slow() returns trigger language plpgsql set search_path from current as
        'begin perform nextval(''inserts''), pg_sleep(1.2); return null; end';
    create trigger slow after insert on hapax_record execute function slow()";

/// The first begin is sent alone. The others wait for its connection, and then share a statement.
async fn waits_for_a_connection() {
    let schema = schema().await;
    let store = store(&format!("{}&connections=1", schema.url()));
    let operations: Vec<Operation> = (0..6).map(|n| Operation::new(&format!("waits {n}"))).collect();
    // Creates the tables, and learns the clock of the server.
    store.read(&operations[0].0.record_key()).await.unwrap();
    schema.admin().batch_execute(SLOW_INSERTS).await.unwrap();
    let (first, others) = operations.split_first().unwrap();
    let others = async {
        until("the first begin is sent", || async { count_of("inserts", &schema).await == 1 }).await;
        join_all(others.iter().map(|operation| operation.begin(&*store, FIRST))).await
    };
    let (first, others) = tokio::join!(first.begin(&*store, FIRST), others);
    for begun in others.into_iter().chain([first]) {
        assert!(matches!(begun.unwrap(), Begun::Granted(_)));
    }
    assert_eq!(count_of("inserts", &schema).await, 2, "a begin was sent again");
}

async fn comes_up_later() {
    let server = start().await;
    server.kill();
    let (store, operation) = (store(&server.url()), Operation::new("one"));
    for _ in 0..3 {
        let error = expect_error(operation.begin(&*store, FIRST).await);
        assert_eq!(error.kind(), NotApplied, "{error:?}");
    }
    server.restart().await.unwrap();
    operation.cycle(&*store).await;
}
