//! Helpers of the tests: servers, stores on them, and the operations on one key.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::machine::{Begin, Begun, Claim, Complete, Completed, Grant, Lapse};
use hapax_core::runtime::Tokio;
use hapax_core::store::Protocol;
use hapax_core::{Call, Error, Identity, Key, Millis, Owner, Result, Rule, Scope, Seconds, Store, Timestamp};
use hapax_stores::Redis;
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{self, RedisKind, RedisServer, RedisServerOptions, RespValue};
use libtest_mimic::Trial;
use tokio::time::{Instant, timeout};

/// A test that takes longer has failed, even on a slow machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) const LEASE: Millis = Millis(30_000);
pub(crate) const DAY: Seconds = Seconds(24 * 3600);

pub(crate) const FIRST: Owner = Owner([1; 16]);
pub(crate) const SECOND: Owner = Owner([2; 16]);

/// A test with a deadline.
#[expect(clippy::disallowed_methods, reason = "the deadline of a test is in real time")]
pub(crate) fn test<F, T>(name: &str, service: &'static str, body: F) -> Trial
where
    F: FnOnce() -> T + Send + 'static,
    T: Future<Output = ()>,
{
    servers::test(name, service, || async {
        timeout(DEADLINE, body()).await.expect("the test ends before its deadline");
    })
}

/// Writes a file that only its owner can read.
pub(crate) fn write_secret(path: &std::path::Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

pub(crate) async fn start(kind: RedisKind, arguments: &[&str]) -> RedisServer {
    RedisServer::start(RedisServerOptions::new(kind).with_args(arguments)).await.expect("the server starts")
}

/// Creates a store, which connects at its first call.
pub(crate) fn store(url: &str) -> Arc<Redis> {
    Arc::new(open(url).expect("the store opens"))
}

pub(crate) fn open(url: &str) -> Result<Redis> {
    Redis::with(&url.parse()?, Arc::new(Tokio::current()))
}

/// Starts a proxy in front of the server, and a store that connects through it.
pub(crate) async fn store_behind_proxy(server: &RedisServer) -> (Proxy, Arc<Redis>) {
    let proxy = Proxy::start(server.address()).await.expect("a port is free");
    let store = store(&format!("redis://{}", proxy.address()));
    (proxy, store)
}

/// Sends a command to the server as an operator. An error reply fails the test.
pub(crate) async fn ask<W: AsRef<[u8]>>(server: &RedisServer, words: &[W]) -> RespValue {
    let reply = server.command(words).await.expect("the server answers");
    assert!(!matches!(reply, RespValue::Error(_)), "{reply:?}");
    reply
}

pub(crate) async fn config(server: &RedisServer, name: &str, value: &str) {
    ask(server, &["CONFIG", "SET", name, value]).await;
}

/// A field of the server's `INFO`.
pub(crate) async fn info(server: &RedisServer, field: &str) -> String {
    let info = ask(server, &["INFO", "everything"]).await.text();
    let found = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.unwrap_or_default().to_owned()
}

/// How often the server has executed a command.
pub(crate) async fn executions(server: &RedisServer, command: &str) -> u64 {
    let stats = info(server, &format!("cmdstat_{command}")).await;
    let calls = stats.strip_prefix("calls=").and_then(|calls| calls.split(',').next()?.parse().ok());
    calls.unwrap_or(0)
}

/// Polls until the condition holds.
pub(crate) async fn until<F: Future<Output = bool>>(condition: &str, mut check: impl FnMut() -> F) {
    let begun = Instant::now();
    while !check().await {
        assert!(begun.elapsed() < DEADLINE, "timed out waiting until {condition}");
        hapax_testkit::pause().await;
    }
}

/// Cancels the call after this time; `None` if it was cancelled.
#[expect(clippy::disallowed_methods, reason = "the deadline of a test is in real time")]
pub(crate) async fn with_timeout<T>(limit: Duration, call: impl Future<Output = T>) -> Option<T> {
    timeout(limit, call).await.ok()
}

/// The error of a call that must fail.
pub(crate) fn expect_error<T: std::fmt::Debug>(result: Result<T>) -> Error {
    result.expect_err("the call must fail")
}

/// One operation of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation(pub(crate) Call);

impl Operation {
    pub(crate) fn new(key: &str) -> Self {
        let scope = Scope::tenant("servers", "acme").expect("a valid scope");
        let identity = Identity::plain();
        let call = identity.call(&scope, &Key::new(key).expect("a valid key"));
        Self(call.fingerprint(identity.fingerprint(Rule(1), &[b"the payload"])))
    }

    /// The Redis key of the record.
    pub(crate) fn name(self) -> Vec<u8> {
        [b"hx:", &self.0.record_key().as_bytes()[..]].concat()
    }

    pub(crate) fn ask(self, owner: Owner) -> Begin {
        Begin { call: self.0, owner, lease: LEASE, unknown_retention: DAY, on_lapse: Lapse::Hold }
    }

    pub(crate) async fn begin(self, store: &dyn Store, owner: Owner) -> Result<Begun> {
        Protocol::over(store).begin(&self.ask(owner)).await
    }

    /// Begins. This begin must be granted, or an earlier one of this owner whose reply was lost.
    pub(crate) async fn grant(self, store: &dyn Store, owner: Owner) -> Grant {
        match self.begin(store, owner).await {
            Ok(Begun::Granted(grant) | Begun::Mine(grant)) => grant,
            other => panic!("expected a grant, got {other:?}"),
        }
    }

    pub(crate) async fn complete(self, store: &dyn Store, grant: &Grant, answer: &str) -> Result<Completed> {
        Protocol::over(store).complete(&self.0.record_key(), &completion(grant, answer)).await
    }

    /// A begin by another owner must replay this answer.
    pub(crate) async fn assert_replays(self, store: &dyn Store, answer: &str) {
        match self.begin(store, Owner([9; 16])).await {
            Ok(Begun::Replay(completion)) => assert_eq!(completion.answer, answer),
            other => panic!("expected a replay, got {other:?}"),
        }
    }

    /// Begins, completes and replays.
    pub(crate) async fn cycle(self, store: &dyn Store) {
        let grant = self.grant(store, FIRST).await;
        assert!(matches!(self.complete(store, &grant, "done").await, Ok(Completed::Done)));
        self.assert_replays(store, "done").await;
    }

    /// The stored value and its expiry.
    pub(crate) async fn stored_value(self, server: &RedisServer) -> (RespValue, RespValue) {
        let name = self.name();
        (ask(server, &[b"GET", &name[..]]).await, ask(server, &[b"PEXPIRETIME", &name[..]]).await)
    }
}

pub(crate) fn completion(grant: &Grant, answer: &str) -> Complete {
    let answer = Bytes::copy_from_slice(answer.as_bytes());
    let claim = Claim::from(grant);
    Complete { claim, fingerprint: grant.fingerprint, answer, retention: DAY, ended: Timestamp(0), age: Duration::ZERO }
}
