//! How the suite sets Redis and Valkey up: each case has a server of its own, whose clock can be stepped.

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
use hapax_testkit::servers::{Kind, Options, RedisServer, Reply};
use hapax_testkit::{Backend, Capability, Setup, Step, golden_call};

pub(crate) fn backend(kind: Kind) -> Backend {
    let backend =
        Backend::new(kind.name(), move || async move { Box::new(RedisSetup::new(kind).await) as Box<dyn Setup> });
    // The scripts are the same: what one server made of them over thousands of sequences, the other is to make over some.
    let backend = backend.sequences(if kind == Kind::Redis { 2_000 } else { 200 });
    backend.requiring(kind.name()).lacking(&[(Capability::Mark, "no mark is kept beside the records")])
}

/// The golden record as one value: version 1 writes it so.
const GOLDEN: &str =
    "0102000100066517289880006c51e1855b0d5bcd2b9aa36d6b4b2380e2b388a92bdf3889676f6c64656e20616e73776572";

struct RedisSetup {
    server: RedisServer,
    store: Arc<Redis>,
    /// For the many looks at what is stored.
    looks: MultiplexedConnection,
}

impl RedisSetup {
    async fn new(kind: Kind) -> Self {
        // Little room, so that the case of a full server is soon there.
        let options = Options::new(kind).with_args(&["--maxmemory", "64mb"]);
        let server = RedisServer::start(options).await.expect("the server starts");
        let url = server.url().parse().expect("the URL is one");
        let store = Redis::open(&url, Arc::new(Tokio::current())).expect("the URL can be used");
        let client = Client::open(server.url()).expect("the URL is one");
        let looks = client.get_multiplexed_async_connection().await.expect("the server answers");
        Self { server, store: Arc::new(store), looks }
    }

    async fn ask(&self, words: &[&[u8]]) -> Reply {
        self.server.command(words).await.expect("the server answers")
    }
}

/// The key of a record, as the design has it.
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
        self.step_clock(Step::Forward(seen.lease_left)).await;
    }

    async fn expire(&self, rk: &RecordKey) {
        let seen = self.store.read(rk).await.expect("the store answers");
        // The server's clock of milliseconds must have gone past the last one.
        self.step_clock(Step::Forward(seen.life_left + Duration::from_millis(1))).await;
    }

    async fn step_clock(&self, step: Step) {
        self.server.step_clock(step).expect("its clock can be stepped");
    }

    /// Turns a bit of the fingerprint.
    async fn corrupt(&self, rk: &RecordKey) {
        let name = name(rk);
        let Reply::Bulk(value) = self.ask(&[b"GET", &name]).await else { panic!("the record is there") };
        let turned = [value[12] ^ 1];
        let written = self.ask(&[b"SETRANGE", &name, b"12", &turned]).await;
        assert!(matches!(written, Reply::Integer(_)), "{written:?}");
    }

    async fn put_golden(&self) {
        let digit = |at: usize| u8::from_str_radix(&GOLDEN[at..at + 2], 16).expect("the golden record is hexadecimal");
        let value: Vec<u8> = (0..GOLDEN.len()).step_by(2).map(digit).collect();
        let name = name(&golden_call().record_key());
        assert_eq!(self.ask(&[b"SET", &name, &value, b"EX", b"86400"]).await.text(), "OK");
    }

    async fn value(&self, rk: &RecordKey) -> Option<Bytes> {
        let value: Option<Vec<u8>> = self.looks.clone().get(name(rk)).await.expect("the server answers");
        value.map(Bytes::from)
    }
}
