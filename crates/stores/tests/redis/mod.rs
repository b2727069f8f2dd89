//! The suite's setup of Redis and Valkey: each case starts its own server, whose clock can be stepped.

mod groups;

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncCommands, Client};
use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::runtime::Tokio;
use hapax_core::store::Inspect;
use hapax_core::{RecordKey, Store};
use hapax_stores::Redis;
use hapax_testkit::servers::{RedisKind, RedisServer, RedisServerOptions, RespValue};
use hapax_testkit::{Backend, Capability, ClockStep, Setup, StoredPart, golden_call};

pub(crate) use groups::{cluster_backend, sentinel_backend};

pub(crate) fn backend(kind: RedisKind) -> Backend {
    let backend =
        Backend::new(kind.name(), move || async move { Box::new(RedisSetup::new(kind).await) as Box<dyn Setup> });
    // Both servers run the same scripts, so fewer sequences suffice for the second one.
    let backend = backend.sequences(if kind == RedisKind::Redis { 2_000 } else { 200 });
    backend.requiring(kind.name()).lacking(LACKING)
}

/// Redis with the answers in a bucket.
pub(crate) fn far_backend() -> Backend {
    let setup = || async { Box::new(RedisSetup::new(RedisKind::Redis).await) as Box<dyn Setup> };
    crate::far::backend("redis_and_s3", Some(RedisKind::Redis.name()), setup).lacking(&[
        (Capability::HighWaterMark, "the store keeps no token high-water mark"),
        (Capability::RoomToComplete, "answers in a bucket do not fill the store"),
    ])
}

const LACKING: &[(Capability, &str)] = &[(Capability::HighWaterMark, "the store keeps no token high-water mark")];

/// The golden record, encoded as version 1 writes it.
const GOLDEN: &str =
    "0102000100066517289880006c51e1855b0d5bcd2b9aa36d6b4b23809e91e75db3ace633676f6c64656e20616e73776572";

struct RedisSetup {
    server: RedisServer,
    store: Arc<Redis>,
    /// A connection of the test, which reads the stored value after every step.
    inspection: MultiplexedConnection,
}

impl RedisSetup {
    async fn new(kind: RedisKind) -> Self {
        // A small limit, so that the case of a full server fills it quickly.
        let options = RedisServerOptions::new(kind).with_args(&["--maxmemory", "64mb"]);
        let server = RedisServer::start(options).await.expect("the server starts");
        let url = server.url().parse().expect("the URL is valid");
        let store = Redis::with(&url, Arc::new(Tokio::current())).expect("the URL can be used");
        let client = Client::open(server.url()).expect("the URL is valid");
        let inspection = client.get_multiplexed_async_connection().await.expect("the server answers");
        Self { server, store: Arc::new(store), inspection }
    }

    async fn command(&self, words: &[&[u8]]) -> RespValue {
        self.server.command(words).await.expect("the server answers")
    }
}

/// The golden record as it is stored.
fn golden_value() -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&GOLDEN[at..at + 2], 16).expect("the golden record is hexadecimal");
    (0..GOLDEN.len()).step_by(2).map(digit).collect()
}

/// The Redis key of a record.
fn name(rk: &RecordKey) -> Vec<u8> {
    [b"hx:", &rk.as_bytes()[..]].concat()
}

#[async_trait]
impl Setup for RedisSetup {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as _
    }

    fn inspect(&self) -> Arc<dyn Inspect> {
        Arc::clone(&self.store) as _
    }

    async fn lapse(&self, rk: &RecordKey) {
        let seen = self.store.read(rk).await.expect("the store answers");
        self.step_clock(ClockStep::Forward(seen.lease_left)).await;
    }

    async fn expire(&self, rk: &RecordKey) {
        let seen = self.store.read(rk).await.expect("the store answers");
        // The server's clock counts whole milliseconds, and a key expires only after its last one.
        self.step_clock(ClockStep::Forward(seen.life_left + Duration::from_millis(1))).await;
    }

    async fn step_clock(&self, step: ClockStep) {
        self.server.step_clock(step).expect("its clock can be stepped");
    }

    /// Flips a bit of the fingerprint, or of the last byte of the answer.
    async fn corrupt(&self, rk: &RecordKey, part: StoredPart) {
        let name = name(rk);
        let RespValue::Bulk(value) = self.command(&[b"GET", &name]).await else { panic!("the record must exist") };
        let at = match part {
            StoredPart::Header => 12,
            StoredPart::Answer => value.len() - 1,
        };
        let flipped = [value[at] ^ 1];
        let written = self.command(&[b"SETRANGE", &name, at.to_string().as_bytes(), &flipped]).await;
        assert!(matches!(written, RespValue::Integer(_)), "{written:?}");
    }

    async fn put_golden(&self) {
        let value = golden_value();
        let name = name(&golden_call().record_key());
        assert_eq!(self.command(&[b"SET", &name, &value, b"EX", b"86400"]).await.text(), "OK");
    }

    async fn value(&self, rk: &RecordKey) -> Option<Bytes> {
        let value: Option<Vec<u8>> = self.inspection.clone().get(name(rk)).await.expect("the server answers");
        value.map(Bytes::from)
    }
}
