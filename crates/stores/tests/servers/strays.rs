//! A connection on which replies do not belong to their calls any more.

use std::time::Duration;

use futures_util::future::join3;
use hapax_core::ErrorKind::Unknown;
use hapax_core::Store;
use hapax_testkit::proxy::Fault;
use hapax_testkit::servers::Kind;
use libtest_mimic::Trial;

use crate::plight::refused;
use crate::world::{FIRST, Operation, SECOND, behind, patiently, start, test};

pub(crate) fn tests() -> Vec<Trial> {
    let redis = Kind::Redis.name();
    vec![
        test("a_stray_reply_ends_its_connection_for_all_who_wait", redis, for_all_who_wait),
        test("a_stray_reply_ends_no_other_connection", redis, no_other),
        test("after_a_stray_reply_to_a_lone_call_the_next_has_its_own", redis, lone),
    ]
}

fn stray() -> Fault {
    Fault::Stray(b"+OK\r\n".to_vec())
}

/// Behind a stray reply each call has that of the one before: what is done would look as if it were not there. All wait in one task, so
/// that the first to be answered is the first to look; between threads there is no such order.
async fn for_all_who_wait() {
    let server = start(Kind::Redis, &[]).await;
    let (proxy, store) = behind(&server).await;
    let (any, absent, done) = (Operation::new("any"), Operation::new("absent"), Operation::new("done"));
    let (rk, begins, again) = (any.0.record_key(), absent.ask(FIRST), done.ask(SECOND));
    done.cycle(&*store).await;
    // From now on the server knows the script, and replies to it at once.
    store.read(&rk).await.unwrap();
    proxy.inject(stray().times(1));
    let (read, begun, copy) = join3(store.read(&rk), store.begin(&begins), store.begin(&again)).await;
    assert_eq!(proxy.counts().strays, 1);
    refused(read, Unknown, "another form");
    refused(begun, Unknown, "");
    refused(copy, Unknown, "");
    done.replays(&*store, "done").await;
    absent.granted(&*store, FIRST).await;
    assert_eq!(proxy.counts().connections, 2);
}

/// It comes late, over a connection that was given up, when another one has taken its place.
async fn no_other() {
    let server = start(Kind::Redis, &[]).await;
    let (proxy, store) = behind(&server).await;
    let operation = Operation::new("one");
    let rk = operation.0.record_key();
    store.read(&rk).await.unwrap();
    proxy.inject(Fault::Latency { delay: Duration::from_secs(2), jitter: Duration::ZERO }.times(1));
    let mut late = Box::pin(store.read(&rk));
    let soon = Duration::from_millis(20);
    assert!(patiently(soon, late.as_mut()).await.is_none());
    for _ in 0..3 {
        assert!(patiently(soon, store.read(&rk)).await.is_none());
    }
    operation.cycle(&*store).await;
    assert_eq!(proxy.counts().connections, 2);
    proxy.inject(stray().times(1));
    refused(late.await, Unknown, "another form");
    operation.replays(&*store, "done").await;
    assert_eq!(proxy.counts().connections, 2, "the connection that had no part in it was given up");
}

/// Nobody else waits on the connection, and it is given up all the same.
async fn lone() {
    let server = start(Kind::Redis, &[]).await;
    let (proxy, store) = behind(&server).await;
    let operation = Operation::new("one");
    operation.cycle(&*store).await;
    let rk = operation.0.record_key();
    store.read(&rk).await.unwrap();
    proxy.inject(stray().times(1));
    refused(store.read(&rk).await, Unknown, "another form");
    operation.replays(&*store, "done").await;
    assert_eq!(proxy.counts().connections, 2);
}
