//! A connection on which replies are out of step with calls, because one unexpected reply arrived.

use std::time::Duration;

use futures_util::future::join3;
use hapax_core::ErrorKind::Unknown;
use hapax_core::machine::{Claim, Completed, Decision, release};
use hapax_core::store::Inserted;
use hapax_core::{Result, Store};
use hapax_testkit::proxy::NetworkFault;
use hapax_testkit::servers::RedisKind;
use libtest_mimic::Trial;

use crate::refusals::assert_refused;
use crate::support::{DAY, FIRST, Operation, SECOND, completion, start, store_behind_proxy, test, with_timeout};

pub(crate) fn tests() -> Vec<Trial> {
    let redis = RedisKind::Redis.name();
    vec![
        test("a_stray_reply_fails_all_calls_on_its_connection", redis, fails_all_calls),
        test("a_stray_reply_is_never_a_grant", redis, never_a_grant),
        test("a_reply_to_another_call_of_a_script_is_refused", redis, reply_to_another_call),
        test("a_stray_reply_on_an_old_connection_leaves_the_new_one_open", redis, leaves_new_connection_open),
        test("after_a_stray_reply_the_next_call_uses_a_new_connection", redis, single_call),
    ]
}

fn stray() -> NetworkFault {
    NetworkFault::Stray(b"+OK\r\n".to_vec())
}

/// If the connection stayed in use after a stray reply, each call would get the reply of the call before it. A
/// completed record would then look absent.
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
    // Whichever call first finds a reply that does not fit, all three fail.
    assert_refused(read, Unknown, "");
    assert_refused(begun, Unknown, "");
    assert_not_misled(copy, &done, &*store).await;
    done.assert_replays(&*store, "done").await;
    absent.grant(&*store, FIRST).await;
    assert_eq!(proxy.counts().connections, 2);
}

/// The begin fails, or finds the record that is really there.
async fn assert_not_misled(begun: Result<Inserted>, operation: &Operation, store: &dyn Store) {
    match begun {
        Err(error) => assert_eq!(error.kind(), Unknown, "{error:?}"),
        Ok(Inserted::Granted(grant)) => panic!("a reply to another call was taken for a grant: {grant:?}"),
        Ok(Inserted::Found(seen)) => {
            assert_eq!(seen.record, store.read(&operation.0.record_key()).await.unwrap().record);
        }
    }
}

/// Nil, as the reply to another begin is, and every other reply that a begin could take for its own.
async fn never_a_grant() {
    let server = start(RedisKind::Redis, &[]).await;
    let (proxy, store) = store_behind_proxy(&server).await;
    let strays: [&[u8]; 6] = [b"_\r\n", b"$-1\r\n", b"$0\r\n\r\n", b"_\r\n$0\r\n\r\n", b"-OOM full\r\n", b"*-1\r\n"];
    for (number, bytes) in strays.into_iter().enumerate() {
        let name = |state| Operation::new(&format!("{state} {number}"));
        let (absent, running, done) = (name("absent"), name("running"), name("done"));
        done.cycle(&*store).await;
        let grant = running.grant(&*store, FIRST).await;
        for operation in [done, running, absent] {
            // Connects if the last stray reply ended the connection.
            store.read(&grant.rk).await.unwrap();
            proxy.inject(NetworkFault::Stray(bytes.to_vec()).times(1));
            let begun = store.begin(&operation.ask(SECOND)).await;
            assert_not_misled(begun, &operation, &*store).await;
        }
        done.assert_replays(&*store, "done").await;
        let completed = running.complete(&*store, &grant, "done").await.unwrap();
        assert_eq!(completed, Completed::Done);
        // The begin was carried out, so its repetition finds its grant.
        absent.grant(&*store, SECOND).await;
    }
    assert_eq!(proxy.counts().strays, 3 * strays.len() as u64);
}

/// Replies of the right form, for the right record, but to an earlier call.
async fn reply_to_another_call() {
    let server = start(RedisKind::Redis, &[]).await;
    let (proxy, store) = store_behind_proxy(&server).await;
    let cases: [(&str, &[&str]); 8] = [
        ("read", &["ABSENT", "", "", "1795369894", "0"]),
        ("renew", &["GONE", ""]),
        ("complete", &["DONE", ""]),
        ("complete", &["RECREATED", ""]),
        ("complete", &["GONE", ""]),
        ("swap", &["YES", ""]),
        ("swap", &["ABSENT", ""]),
        ("read", &["ABSENT", "", "-1", "1795369894", "0"]),
    ];
    for (number, (call, parts)) in cases.into_iter().enumerate() {
        let operation = Operation::new(&format!("operation {number}"));
        let grant = operation.grant(&*store, FIRST).await;
        let (rk, claim) = (grant.rk, Claim::from(&grant));
        let seen = store.read(&rk).await.unwrap();
        let Decision::Change(change, _) = release(&seen, &claim, DAY) else { panic!("the grant can be released") };
        for second in [&operation.name()[..], &[0; 8]] {
            // Connects if the last stray reply ended the connection.
            store.read(&rk).await.unwrap();
            proxy.inject(NetworkFault::Stray(script_reply(parts, second)).times(1));
            let replied = match call {
                "read" => store.read(&rk).await.map(drop),
                "renew" => store.renew(&rk, &claim).await.map(drop),
                "complete" => store.complete(&rk, &completion(&grant, "done")).await.map(drop),
                "swap" => store.swap(&rk, &seen, &change).await.map(drop),
                other => panic!("{other} is no call"),
            };
            assert_refused(replied, Unknown, "belongs to another call");
        }
    }
}

/// The reply of a script: its outcome, then `second`, then the other parts.
fn script_reply(parts: &[&str], second: &[u8]) -> Vec<u8> {
    let (outcome, rest) = parts.split_first().expect("a reply has an outcome");
    let all = [outcome.as_bytes(), second].into_iter().chain(rest.iter().map(|part| part.as_bytes()));
    let header = format!("*{}\r\n", parts.len() + 1).into_bytes();
    all.fold(header, |mut bytes, part| {
        bytes.extend(format!("${}\r\n", part.len()).into_bytes());
        bytes.extend(part);
        bytes.extend(b"\r\n");
        bytes
    })
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
