//! A connection on which replies are out of step with calls, because one unexpected reply arrived.

use std::time::Duration;

use futures_util::future::join3;
use hapax_core::ErrorKind::Unknown;
use hapax_core::Store;
use hapax_testkit::proxy::NetworkFault;
use hapax_testkit::servers::RedisKind;
use libtest_mimic::Trial;

use crate::refusals::assert_refused;
use crate::support::{FIRST, Operation, SECOND, start, store_behind_proxy, test, with_timeout};

pub(crate) fn tests() -> Vec<Trial> {
    let redis = RedisKind::Redis.name();
    vec![
        test("a_stray_reply_fails_all_calls_on_its_connection", redis, fails_all_calls),
        test("a_stray_reply_on_an_old_connection_leaves_the_new_one_open", redis, leaves_new_connection_open),
        test("after_a_stray_reply_the_next_call_uses_a_new_connection", redis, single_call),
    ]
}

fn stray() -> NetworkFault {
    NetworkFault::Stray(b"+OK\r\n".to_vec())
}

/// If the connection stayed in use after a stray reply, each call would get the reply of the call before it. A
/// completed record would then look absent. All calls run in one task, so the call that gets the stray reply is the
/// first to handle its reply.
async fn fails_all_calls() {
    let server = start(RedisKind::Redis, &[]).await;
    let (proxy, store) = store_behind_proxy(&server).await;
    let (any, absent, done) = (Operation::new("any"), Operation::new("absent"), Operation::new("done"));
    let (rk, begins, again) = (any.0.record_key(), absent.ask(FIRST), done.ask(SECOND));
    done.cycle(&*store).await;
    // Load the script first: a NOSCRIPT reply would add a round trip.
    store.read(&rk).await.unwrap();
    proxy.inject(stray().times(1));
    let (read, begun, copy) = join3(store.read(&rk), store.begin(&begins), store.begin(&again)).await;
    assert_eq!(proxy.counts().strays, 1);
    assert_refused(read, Unknown, "another form");
    assert_refused(begun, Unknown, "");
    assert_refused(copy, Unknown, "");
    done.assert_replays(&*store, "done").await;
    absent.grant(&*store, FIRST).await;
    assert_eq!(proxy.counts().connections, 2);
}

/// The stray reply arrives on a connection that was already replaced.
async fn leaves_new_connection_open() {
    let server = start(RedisKind::Redis, &[]).await;
    let (proxy, store) = store_behind_proxy(&server).await;
    let operation = Operation::new("one");
    let rk = operation.0.record_key();
    store.read(&rk).await.unwrap();
    proxy.inject(NetworkFault::Latency { delay: Duration::from_secs(2), jitter: Duration::ZERO }.times(1));
    let mut late = Box::pin(store.read(&rk));
    let soon = Duration::from_millis(20);
    assert!(with_timeout(soon, late.as_mut()).await.is_none());
    // Three cancelled calls make the store replace the connection, while `late` still waits on the old one.
    for _ in 0..3 {
        assert!(with_timeout(soon, store.read(&rk)).await.is_none());
    }
    operation.cycle(&*store).await;
    assert_eq!(proxy.counts().connections, 2);
    proxy.inject(stray().times(1));
    assert_refused(late.await, Unknown, "another form");
    operation.assert_replays(&*store, "done").await;
    assert_eq!(proxy.counts().connections, 2, "the new connection was discarded");
}

/// No other call waits on the connection, and it is discarded nevertheless.
async fn single_call() {
    let server = start(RedisKind::Redis, &[]).await;
    let (proxy, store) = store_behind_proxy(&server).await;
    let operation = Operation::new("one");
    operation.cycle(&*store).await;
    let rk = operation.0.record_key();
    store.read(&rk).await.unwrap();
    proxy.inject(stray().times(1));
    assert_refused(store.read(&rk).await, Unknown, "another form");
    operation.assert_replays(&*store, "done").await;
    assert_eq!(proxy.counts().connections, 2);
}
