//! Stand-ins for Google Cloud Pub/Sub.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Mutex;

use super::broker::{BrokerKind, BrokerServer};

/// The emulator of Google. It loses the order of a key with the first message that is given back, and everything at its
/// end.
#[derive(Clone, Copy, Debug)]
pub enum PubSub {}

/// An emulator of Pub/Sub on a free loopback port, which answers gRPC and REST.
pub type PubSubServer = BrokerServer<PubSub>;

/// The stand-in of the client for Go. It keeps the order of keys, and loses everything at its end.
#[derive(Clone, Copy, Debug)]
pub enum PsTest {}

/// A server of pstest on a free loopback port, which answers gRPC.
pub type PsTestServer = BrokerServer<PsTest>;

impl BrokerServer<PubSub> {
    /// The URL of a topic or a subscription with this name.
    pub fn named(&self, name: &str) -> String {
        format!("pubsub://shop/{name}?endpoint={}", self.url())
    }
}

impl BrokerServer<PsTest> {
    /// The URL of a topic or a subscription with this name.
    pub fn named(&self, name: &str) -> String {
        format!("pubsub://shop/{name}?endpoint={}", self.url())
    }

    /// Where the server answers tests over HTTP: `fixtures/pstest/main.go` lists the questions.
    pub fn test_address(&self) -> SocketAddr {
        SocketAddr::new(self.address().ip(), self.address().port() + 10_000)
    }
}

impl BrokerKind for PubSub {
    const NAME: &'static str = "pubsub";
    const URL: &'static str = "http://";
    const READY: &'static str = "Server started, listening on";
    const SHARED: &'static [&'static str] = &[];

    /// Its servers form no cluster.
    fn member(_addresses: &[SocketAddr], _index: usize) -> Vec<String> {
        Vec::new()
    }

    fn shared() -> &'static Mutex<Option<Arc<BrokerServer<Self>>>> {
        static SHARED: Mutex<Option<Arc<PubSubServer>>> = Mutex::const_new(None);
        &SHARED
    }
}

impl BrokerKind for PsTest {
    const NAME: &'static str = "pstest";
    const URL: &'static str = "http://";
    const READY: &'static str = "Server started, listening on";
    const SHARED: &'static [&'static str] = &[];

    /// Its servers form no cluster.
    fn member(_addresses: &[SocketAddr], _index: usize) -> Vec<String> {
        Vec::new()
    }

    fn shared() -> &'static Mutex<Option<Arc<BrokerServer<Self>>>> {
        static SHARED: Mutex<Option<Arc<PsTestServer>>> = Mutex::const_new(None);
        &SHARED
    }
}
