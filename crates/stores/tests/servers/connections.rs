//! Many calls on one connection: cancelled calls, lost replies, broken and slow connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use hapax_core::ErrorKind::{NotApplied, Unknown};
use hapax_core::machine::{Begun, Completed};
use hapax_core::store::Inserted;
use hapax_core::{Owner, Store};
use hapax_testkit::proxy::{CutPoint, Direction, NetworkFault};
use hapax_testkit::servers::{RedisKind, RedisServer, RespValue};
use libtest_mimic::Trial;

use crate::support::{
    FIRST, Operation, SECOND, ask, executions, expect_error, info, start, store, store_behind_proxy, test, until,
    with_timeout,
};

/// The timeout of a call: long enough for a busy machine, and short enough to wait for three times.
const CALL_TIMEOUT: Duration = Duration::from_millis(400);

pub(crate) fn tests() -> Vec<Trial> {
    let each = RedisKind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            test("concurrent_calls_share_writes", name, move || shared_writes(kind)),
            test("connections_killed_under_load_lose_nothing", name, move || killed_under_load(kind)),
            test("an_idle_connection_that_was_closed_costs_one_call", name, move || cut_while_idle(kind)),
        ]
    });
    let redis = RedisKind::Redis.name();
    let once = [
        test("a_connection_that_loses_requests_is_replaced", redis, || half_open(Direction::ToServer)),
        test("a_connection_that_loses_replies_is_replaced", redis, || half_open(Direction::ToClient)),
        test("a_connect_outlives_the_callers_that_wait_for_it", redis, slow_connect),
        test("a_handshake_without_reply_times_out", redis, silent_handshake),
        test("a_cancelled_call_disturbs_no_other", redis, cancelled_calls),
        test("the_store_sends_no_call_twice", redis, sent_once),
        test("a_dedicated_store_works_while_the_shared_connection_is_stuck", redis, dedicated),
        test("a_store_connects_once_its_server_is_up", redis, comes_up_later),
    ];
    each.chain(once).collect()
}

/// After three calls without a reply, the next call uses a new connection.
async fn half_open(direction: Direction) {
    let server = start(RedisKind::Redis, &[]).await;
    let (proxy, store) = store_behind_proxy(&server).await;
    let operation = Operation::new("one");
    store.read(&operation.0.record_key()).await.unwrap();
    proxy.inject(NetworkFault::HalfOpen(direction).times(1));
    let mut cancelled = 0;
    while with_timeout(CALL_TIMEOUT, store.read(&operation.0.record_key())).await.is_none() {
        cancelled += 1;
        assert!(cancelled <= 3, "the connection is not replaced");
    }
    assert_eq!((cancelled, proxy.counts().half_open), (3, 1));
    operation.cycle(&*store).await;
    assert_eq!(proxy.counts().connections, 2);
}

/// Each caller's timeout is shorter than the connect, and yet one connection is opened.
async fn slow_connect() {
    let server = start(RedisKind::Redis, &[]).await;
    let (proxy, store) = store_behind_proxy(&server).await;
    // A round trip takes half of the timeout, and the connect takes three round trips before the call's own.
    proxy.inject(NetworkFault::Latency { delay: CALL_TIMEOUT / 4, jitter: Duration::ZERO });
    let operation = Operation::new("one");
    let mut cancelled = 0;
    while with_timeout(CALL_TIMEOUT, store.read(&operation.0.record_key())).await.is_none() {
        cancelled += 1;
        assert!(cancelled < 10, "the connect never finishes");
    }
    assert!(cancelled > 0, "the connect was too fast to prove anything");
    assert_eq!(proxy.counts().connections, 1);
}

/// The server accepts the connection and the handshake, and then sends nothing.
async fn silent_handshake() {
    let server = start(RedisKind::Redis, &[]).await;
    let (proxy, store) = store_behind_proxy(&server).await;
    // The observation of the sentinel is the last step of a connect: its loss leaves the connect without a reply.
    proxy.inject(NetworkFault::cut(CutPoint::Silently, "hx:amnesia").times(1));
    let operation = Operation::new("one");
    let error = expect_error(operation.begin(&*store, FIRST).await);
    assert_eq!(error.kind(), NotApplied, "{error:?}");
    operation.cycle(&*store).await;
}

/// Every second of many concurrent calls is cancelled.
async fn cancelled_calls() {
    let server = start(RedisKind::Redis, &[]).await;
    let (proxy, store) = store_behind_proxy(&server).await;
    store.read(&Operation::new("any").0.record_key()).await.unwrap();
    let calls = (0..400u32).map(|n| {
        let store = Arc::clone(&store);
        async move {
            let operation = Operation::new(&format!("{n}"));
            let begin = operation.begin(&*store, FIRST);
            if n % 2 == 0 {
                let _ = with_timeout(Duration::from_micros(u64::from(n)), begin).await;
                return;
            }
            let grant = operation.grant(&*store, FIRST).await;
            let answer = format!("the answer {n}");
            operation.complete(&*store, &grant, &answer).await.unwrap();
            operation.assert_replays(&*store, &answer).await;
        }
    });
    join_all(calls).await;
    // Calls that are cancelled before any reply arrives look like a stuck connection, which is replaced.
    assert!(proxy.counts().connections <= 20, "{:?}", proxy.counts());
    for n in (0..400).step_by(2) {
        Operation::new(&format!("{n}")).grant(&*store, FIRST).await;
    }
}

async fn shared_writes(kind: RedisKind) {
    const CALLS: u64 = 2000;
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    store.read(&Operation::new("any").0.record_key()).await.unwrap();
    let reads = || async { info(&server, "total_reads_processed").await.parse::<u64>().unwrap() };
    let before = reads().await;
    let calls = (0..CALLS).map(|n| {
        let (store, operation) = (Arc::clone(&store), Operation::new(&format!("{n}")));
        async move { operation.grant(&*store, FIRST).await }
    });
    join_all(calls).await;
    let reads = reads().await - before;
    println!("{}: {CALLS} concurrent begins in {reads} reads of the server", kind.name());
    assert!(reads < CALLS / 4, "{reads} reads for {CALLS} calls");
}

/// Each begin sends one SET for its own key, so a second SET would find the record of the first.
async fn sent_once() {
    let server = start(RedisKind::Redis, &[]).await;
    let (proxy, store) = store_behind_proxy(&server).await;
    store.read(&Operation::new("any").0.record_key()).await.unwrap();
    ask(&server, &["CONFIG", "RESETSTAT"]).await;
    let (mut granted, mut unknown, mut refused) = (0, 0, 0);
    for round in 0..40 {
        let operations: Vec<_> = (0..25).map(|n| Operation::new(&format!("{round} {n}"))).collect();
        let asks: Vec<_> = operations.iter().map(|operation| operation.ask(FIRST)).collect();
        let begins = join_all(asks.iter().map(|ask| store.begin(ask)));
        // `join!` polls the begins first, so calls are in flight at the reset.
        let (begun, ()) = tokio::join!(begins, async { proxy.reset() });
        for begun in begun {
            match begun {
                Ok(Inserted::Granted(_)) => granted += 1,
                Ok(Inserted::Found(found)) => panic!("a begin was sent twice: {found:?}"),
                Err(error) if error.kind() == Unknown => unknown += 1,
                Err(error) if error.kind() == NotApplied => refused += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    let sent = executions(&server, "set").await;
    println!("{granted} granted, {unknown} unknown, {refused} refused; the server executed {sent}");
    assert!(unknown > 0, "no connection was lost during a call");
    assert!((granted..=granted + unknown).contains(&sent), "{granted} granted, {unknown} unknown, {sent} executed");
    let records = ask(&server, &["DBSIZE"]).await;
    assert_eq!(
        records,
        RespValue::Integer(i64::try_from(sent).unwrap() + 1),
        "each executed SET has one record, besides the sentinel"
    );
}

async fn cut_while_idle(kind: RedisKind) {
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let operation = Operation::new("one");
    let grant = operation.grant(&*store, FIRST).await;
    ask(&server, &["CLIENT", "KILL", "TYPE", "normal"]).await;
    // The driver's error does not show whether the call was sent, so the caller repeats the call.
    if let Err(error) = operation.complete(&*store, &grant, "done").await {
        assert_eq!(error.kind(), Unknown, "{error:?}");
    }
    let completed = operation.complete(&*store, &grant, "done").await.unwrap();
    assert!(matches!(completed, Completed::Done | Completed::Already), "{completed:?}");
    operation.assert_replays(&*store, "done").await;
}

/// A call with a timeout: a call that is queued while its connection breaks may never get a reply.
async fn call_with_timeout<T>(call: impl Future<Output = hapax_core::Result<T>>) -> hapax_core::Result<T> {
    let timed_out = || Err(hapax_core::Error::new(Unknown, "no reply within the timeout"));
    with_timeout(CALL_TIMEOUT, call).await.unwrap_or_else(timed_out)
}

/// Begins, completes and replays, and repeats each call that fails. Returns the number of repetitions.
async fn cycle_with_retries(store: &dyn Store, operation: Operation, owner: Owner) -> u64 {
    let (mut repeated, answer) = (0, format!("{owner:?}"));
    let mut again = |error: hapax_core::Error| {
        assert!(matches!(error.kind(), Unknown | NotApplied), "{error:?}");
        repeated += 1;
    };
    let grant = loop {
        match call_with_timeout(operation.begin(store, owner)).await {
            Ok(Begun::Granted(grant) | Begun::Mine(grant)) => break grant,
            Ok(other) => panic!("{other:?}"),
            Err(error) => again(error),
        }
    };
    loop {
        match call_with_timeout(operation.complete(store, &grant, &answer)).await {
            Ok(Completed::Done | Completed::Already) => break,
            Ok(other) => panic!("{other:?}"),
            Err(error) => again(error),
        }
    }
    loop {
        match call_with_timeout(operation.begin(store, SECOND)).await {
            Ok(Begun::Replay(completion)) => {
                assert_eq!(completion.answer, answer);
                return repeated;
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => again(error),
        }
    }
}

async fn killed_under_load(kind: RedisKind) {
    const CYCLES: u64 = 2000;
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let (done, repeated) = (AtomicU64::new(0), AtomicU64::new(0));
    let cycle = async |n: u64| {
        let owner = Owner([u8::try_from(n % 50 + 10).unwrap(); 16]);
        let again = cycle_with_retries(&*store, Operation::new(&format!("{n}")), owner).await;
        repeated.fetch_add(again, Ordering::Relaxed);
        done.fetch_add(1, Ordering::Relaxed);
    };
    let load = futures_util::stream::iter(0..CYCLES).for_each_concurrent(50, cycle);
    let kills = async {
        let mut killed = 0;
        // Let some cycles finish between kills; otherwise no call would ever get its reply.
        for after in (20..CYCLES).step_by(20) {
            until("some cycles are finished", || async { done.load(Ordering::Relaxed) >= after }).await;
            let closed = ask(&server, &["CLIENT", "KILL", "TYPE", "normal"]).await;
            killed += closed.text().parse::<u64>().unwrap();
        }
        killed
    };
    let ((), killed) = tokio::join!(load, kills);
    let repeated = repeated.into_inner();
    println!("{}: {CYCLES} cycles, {killed} connections killed, {repeated} calls repeated", kind.name());
    assert!(killed >= 50, "only {killed} connections were killed");
}

async fn count_connections(server: &RedisServer) -> usize {
    ask(server, &["CLIENT", "LIST", "TYPE", "normal"])
        .await
        .text()
        .lines()
        .filter(|line| line.contains(" laddr=127"))
        .count()
}

async fn dedicated() {
    let server = start(RedisKind::Redis, &[]).await;
    let (proxy, store) = store_behind_proxy(&server).await;
    let operation = Operation::new("one");
    let grant = operation.grant(&*store, FIRST).await;
    assert_eq!(count_connections(&server).await, 1);
    let dedicated = (Arc::clone(&store) as Arc<dyn Store>).dedicated().await.unwrap();
    proxy.inject(NetworkFault::HalfOpen(Direction::ToServer).times(1));
    let rk = operation.0.record_key();
    // Keep the call pending: a cancelled call would count towards replacing the connection.
    let mut stuck = Box::pin(store.read(&rk));
    assert!(with_timeout(CALL_TIMEOUT, stuck.as_mut()).await.is_none());
    let completed = with_timeout(10 * CALL_TIMEOUT, operation.complete(&*dedicated, &grant, "done")).await;
    completed.expect("the dedicated store is not stuck").unwrap();
    operation.assert_replays(&*dedicated, "done").await;
    assert_eq!(count_connections(&server).await, 2);
    assert!(with_timeout(CALL_TIMEOUT / 10, stuck).await.is_none(), "the shared connection must be stuck");
}

async fn comes_up_later() {
    let server = start(RedisKind::Redis, &[]).await;
    server.kill();
    let store = store(&server.url());
    let operation = Operation::new("one");
    for _ in 0..5 {
        assert_eq!(expect_error(operation.begin(&*store, FIRST).await).kind(), NotApplied);
    }
    assert!(hapax_core::Inspect::check(&*store).await.is_err());
    server.restart().await.unwrap();
    operation.cycle(&*store).await;
}
