//! Stand-ins for Google Cloud Spanner.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use super::broker::{BrokerKind, BrokerServer};

/// The emulator of Google, which is started like a broker. It keeps its databases in memory. In each of them it runs
/// one transaction at a time, and aborts one of two that meet.
#[derive(Clone, Copy, Debug)]
pub enum SpannerEmulator {}

/// An emulator of Spanner on a free loopback port, which answers gRPC. It has no instance and no database at its start.
/// Arguments are options, such as `--enable_fault_injection`.
pub type SpannerServer = BrokerServer<SpannerEmulator>;

impl BrokerServer<SpannerEmulator> {
    /// The URL of a database with this name, which may not exist.
    pub fn named(&self, database: &str) -> String {
        format!("spanner://shop/tests/{database}?endpoint={}", self.url())
    }

    /// The URL of a database that no other test of this process uses. It does not exist yet.
    pub fn new_database(&self) -> String {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        self.named(&format!("records-{}", NUMBERS.fetch_add(1, Ordering::Relaxed)))
    }
}

impl BrokerKind for SpannerEmulator {
    const NAME: &'static str = "spanner";
    const URL: &'static str = "http://";
    const READY: &'static str = "Server address: ";
    const SHARED: &'static [&'static str] = &[];

    /// Its servers form no cluster.
    fn member(_addresses: &[SocketAddr], _index: usize) -> Vec<String> {
        Vec::new()
    }

    fn shared() -> &'static Mutex<Option<Arc<BrokerServer<Self>>>> {
        static SHARED: Mutex<Option<Arc<SpannerServer>>> = Mutex::const_new(None);
        &SHARED
    }
}
