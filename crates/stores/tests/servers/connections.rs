//! One connection for many calls: what becomes of it, and of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use hapax_core::ErrorKind::{NotApplied, Unknown};
use hapax_core::machine::{Begun, Completed};
use hapax_core::store::Inserted;
use hapax_core::{Owner, Store};
use hapax_testkit::proxy::{Direction, Fault, Moment};
use hapax_testkit::servers::{Kind, RedisServer, Reply};
use libtest_mimic::Trial;

use crate::world::{
    FIRST, Operation, SECOND, ask, behind, carried_out, failure, info, patiently, start, store, test, until,
};

/// How long a caller waits here: longer than a busy machine takes, and three times that is soon over.
const PATIENCE: Duration = Duration::from_millis(400);

pub(crate) fn tests() -> Vec<Trial> {
    let each = Kind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            test("calls_at_once_travel_together", name, move || travels_together(kind)),
            test("connections_killed_under_load_lose_nothing", name, move || killed_under_load(kind)),
            test("an_idle_connection_that_was_cut_costs_one_call", name, move || cut_while_idle(kind)),
        ]
    });
    let redis = Kind::Redis.name();
    let once = [
        test("a_deaf_connection_is_made_anew", redis, || half_open(Direction::ToServer)),
        test("a_mute_connection_is_made_anew", redis, || half_open(Direction::ToClient)),
        test("a_connection_outlives_those_who_wait_for_it", redis, made_slowly),
        test("a_connection_that_never_comes_to_be_is_given_up", redis, stuck_when_made),
        test("a_call_that_is_given_up_disturbs_no_other", redis, given_up),
        test("nothing_is_sent_twice_by_itself", redis, sent_once),
        test("a_dedicated_store_works_while_the_shared_one_is_stuck", redis, dedicated),
        test("a_server_that_comes_up_later_is_found", redis, comes_up_later),
    ];
    each.chain(once).collect()
}

/// Whatever is lost, after three calls that nobody answered the next one is.
async fn half_open(direction: Direction) {
    let server = start(Kind::Redis, &[]).await;
    let (proxy, store) = behind(&server).await;
    let operation = Operation::new("one");
    store.read(&operation.0.record_key()).await.unwrap();
    proxy.inject(Fault::HalfOpen(direction).times(1));
    let mut given_up = 0;
    while patiently(PATIENCE, store.read(&operation.0.record_key())).await.is_none() {
        given_up += 1;
        assert!(given_up <= 3, "the connection is not made anew");
    }
    assert_eq!((given_up, proxy.counts().half_open), (3, 1));
    operation.cycle(&*store).await;
    assert_eq!(proxy.counts().connections, 2);
}

/// Nobody waits for as long as the connection takes to be made, and yet it is made, and once.
async fn made_slowly() {
    let server = start(Kind::Redis, &[]).await;
    let (proxy, store) = behind(&server).await;
    // There and back takes half of a caller's patience, and there are three exchanges before the call's own.
    proxy.inject(Fault::Latency { delay: PATIENCE / 4, jitter: Duration::ZERO });
    let operation = Operation::new("one");
    let mut given_up = 0;
    while patiently(PATIENCE, store.read(&operation.0.record_key())).await.is_none() {
        given_up += 1;
        assert!(given_up < 10, "the connection never comes to be");
    }
    assert!(given_up > 0, "it was made too quickly to show anything");
    assert_eq!(proxy.counts().connections, 1);
}

/// A server that accepts, and lets us in, and then says nothing.
async fn stuck_when_made() {
    let server = start(Kind::Redis, &[]).await;
    let (proxy, store) = behind(&server).await;
    proxy.inject(Fault::cut(Moment::Silently, "hx:amnesia").times(1));
    let operation = Operation::new("one");
    let error = failure(operation.begin(&*store, FIRST).await);
    assert_eq!(error.kind(), NotApplied, "{error:?}");
    operation.cycle(&*store).await;
}

/// Calls under way at once; of every other one the caller goes away.
async fn given_up() {
    let server = start(Kind::Redis, &[]).await;
    let (proxy, store) = behind(&server).await;
    store.read(&Operation::new("any").0.record_key()).await.unwrap();
    let calls = (0..400u32).map(|n| {
        let store = Arc::clone(&store);
        async move {
            let operation = Operation::new(&format!("{n}"));
            let begin = operation.begin(&*store, FIRST);
            if n % 2 == 0 {
                let _ = patiently(Duration::from_micros(u64::from(n)), begin).await;
                return;
            }
            let grant = operation.granted(&*store, FIRST).await;
            let answer = format!("the answer {n}");
            operation.complete(&*store, &grant, &answer).await.unwrap();
            operation.replays(&*store, &answer).await;
        }
    });
    join_all(calls).await;
    // Calls that are given up before any other is answered look like a connection that is stuck.
    assert!(proxy.counts().connections <= 20, "{:?}", proxy.counts());
    for n in (0..400).step_by(2) {
        Operation::new(&format!("{n}")).granted(&*store, FIRST).await;
    }
}

async fn travels_together(kind: Kind) {
    const CALLS: u64 = 2000;
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    store.read(&Operation::new("any").0.record_key()).await.unwrap();
    let reads = || async { info(&server, "total_reads_processed").await.parse::<u64>().unwrap() };
    let before = reads().await;
    let calls = (0..CALLS).map(|n| {
        let (store, operation) = (Arc::clone(&store), Operation::new(&format!("{n}")));
        async move { operation.granted(&*store, FIRST).await }
    });
    join_all(calls).await;
    let reads = reads().await - before;
    println!("{}: {CALLS} begins at once in {reads} reads of the server", kind.name());
    assert!(reads < CALLS / 4, "{reads} reads for {CALLS} calls");
}

/// Each begin is one SET for a key that nobody else names: a second one for it would be seen.
async fn sent_once() {
    let server = start(Kind::Redis, &[]).await;
    let (proxy, store) = behind(&server).await;
    store.read(&Operation::new("any").0.record_key()).await.unwrap();
    ask(&server, &["CONFIG", "RESETSTAT"]).await;
    let (mut granted, mut unknown, mut refused) = (0, 0, 0);
    for round in 0..40 {
        let operations: Vec<_> = (0..25).map(|n| Operation::new(&format!("{round} {n}"))).collect();
        let asks: Vec<_> = operations.iter().map(|operation| operation.ask(FIRST)).collect();
        let begins = join_all(asks.iter().map(|ask| store.begin(ask)));
        let (begun, ()) = tokio::join!(begins, async { proxy.reset() });
        for begun in begun {
            match begun {
                Ok(Inserted::Granted(_)) => granted += 1,
                Ok(Inserted::Found(found)) => panic!("a begin met itself: {found:?}"),
                Err(error) if error.kind() == Unknown => unknown += 1,
                Err(error) if error.kind() == NotApplied => refused += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    let sent = carried_out(&server, "set").await;
    println!("{granted} granted, {unknown} unknown, {refused} refused; the server carried out {sent}");
    assert!(unknown > 0, "no connection was lost under way");
    assert!((granted..=granted + unknown).contains(&sent), "{granted} granted, {unknown} unknown, {sent} carried out");
    let records = ask(&server, &["DBSIZE"]).await;
    assert_eq!(records, Reply::Integer(i64::try_from(sent).unwrap() + 1), "each of them has one record");
}

async fn cut_while_idle(kind: Kind) {
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let operation = Operation::new("one");
    let grant = operation.granted(&*store, FIRST).await;
    ask(&server, &["CLIENT", "KILL", "TYPE", "normal"]).await;
    // Whether it was sent cannot be told from the driver's error; it is asked once more by whoever asked.
    if let Err(error) = operation.complete(&*store, &grant, "done").await {
        assert_eq!(error.kind(), Unknown, "{error:?}");
    }
    let completed = operation.complete(&*store, &grant, "done").await.unwrap();
    assert!(matches!(completed, Completed::Done | Completed::Already), "{completed:?}");
    operation.replays(&*store, "done").await;
}

/// A call whose caller does not wait for ever: one that is handed to a connection in the moment of its end may never be answered.
async fn answered<T>(call: impl Future<Output = hapax_core::Result<T>>) -> hapax_core::Result<T> {
    let given_up = || Err(hapax_core::Error::new(Unknown, "nobody answered"));
    patiently(PATIENCE, call).await.unwrap_or_else(given_up)
}

/// A cycle in which whatever is unknown or refused is repeated by the same owner; how often that was.
async fn stubborn_cycle(store: &dyn Store, operation: Operation, owner: Owner) -> u64 {
    let (mut repeated, answer) = (0, format!("{owner:?}"));
    let mut again = |error: hapax_core::Error| {
        assert!(matches!(error.kind(), Unknown | NotApplied), "{error:?}");
        repeated += 1;
    };
    let grant = loop {
        match answered(operation.begin(store, owner)).await {
            Ok(Begun::Granted(grant) | Begun::Mine(grant)) => break grant,
            Ok(other) => panic!("{other:?}"),
            Err(error) => again(error),
        }
    };
    loop {
        match answered(operation.complete(store, &grant, &answer)).await {
            Ok(Completed::Done | Completed::Already) => break,
            Ok(other) => panic!("{other:?}"),
            Err(error) => again(error),
        }
    }
    loop {
        match answered(operation.begin(store, SECOND)).await {
            Ok(Begun::Replay(completion)) => {
                assert_eq!(completion.answer, answer);
                return repeated;
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => again(error),
        }
    }
}

async fn killed_under_load(kind: Kind) {
    const CYCLES: u64 = 2000;
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let (done, repeated) = (AtomicU64::new(0), AtomicU64::new(0));
    let cycle = async |n: u64| {
        let owner = Owner([u8::try_from(n % 50 + 10).unwrap(); 16]);
        let again = stubborn_cycle(&*store, Operation::new(&format!("{n}")), owner).await;
        repeated.fetch_add(again, Ordering::Relaxed);
        done.fetch_add(1, Ordering::Relaxed);
    };
    let load = futures_util::stream::iter(0..CYCLES).for_each_concurrent(50, cycle);
    let kills = async {
        let mut killed = 0;
        // Not at once again: a connection that never lives is another test.
        for after in (20..CYCLES).step_by(20) {
            until("some cycles are through", || async { done.load(Ordering::Relaxed) >= after }).await;
            let gone = ask(&server, &["CLIENT", "KILL", "TYPE", "normal"]).await;
            killed += gone.text().parse::<u64>().unwrap();
        }
        killed
    };
    let ((), killed) = tokio::join!(load, kills);
    let repeated = repeated.into_inner();
    println!("{}: {CYCLES} cycles, {killed} connections killed, {repeated} calls repeated", kind.name());
    assert!(killed >= 50, "only {killed} connections were killed");
}

async fn connections(server: &RedisServer) -> usize {
    ask(server, &["CLIENT", "LIST", "TYPE", "normal"])
        .await
        .text()
        .lines()
        .filter(|line| line.contains(" laddr=127"))
        .count()
}

async fn dedicated() {
    let server = start(Kind::Redis, &[]).await;
    let (proxy, store) = behind(&server).await;
    let operation = Operation::new("one");
    let grant = operation.granted(&*store, FIRST).await;
    assert_eq!(connections(&server).await, 1);
    let dedicated = (Arc::clone(&store) as Arc<dyn Store>).dedicated().await.unwrap();
    proxy.inject(Fault::HalfOpen(Direction::ToServer).times(1));
    let rk = operation.0.record_key();
    let mut stuck = Box::pin(store.read(&rk));
    assert!(patiently(PATIENCE, stuck.as_mut()).await.is_none());
    let completed = patiently(10 * PATIENCE, operation.complete(&*dedicated, &grant, "done")).await;
    completed.expect("the dedicated one is not stuck").unwrap();
    operation.replays(&*dedicated, "done").await;
    assert_eq!(connections(&server).await, 2);
    assert!(patiently(PATIENCE / 10, stuck).await.is_none(), "the shared one was to be stuck");
}

async fn comes_up_later() {
    let server = start(Kind::Redis, &[]).await;
    server.kill();
    let store = store(&server.url());
    let operation = Operation::new("one");
    for _ in 0..5 {
        assert_eq!(failure(operation.begin(&*store, FIRST).await).kind(), NotApplied);
    }
    assert!(hapax_core::Inspect::check(&*store).await.is_err());
    server.restart().await.unwrap();
    operation.cycle(&*store).await;
}
