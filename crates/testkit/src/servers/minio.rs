//! Servers of MinIO, which speaks the protocol of S3.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Mutex;

use super::broker::{BrokerKind, BrokerServer};

/// A server of MinIO with a bucket `hapax`. It is no broker, but is started like one. It keeps its objects over a
/// restart.
#[derive(Clone, Copy, Debug)]
pub enum Minio {}

/// A server of MinIO on a free loopback port.
pub type MinioServer = BrokerServer<Minio>;

impl BrokerServer<Minio> {
    /// The name of its user.
    pub const KEY: &'static str = "hapax";

    /// The secret of its user.
    pub const SECRET: &'static str = "hapax-secret";

    /// The URL of answers under this prefix.
    pub fn answers(&self, prefix: &str) -> String {
        format!("s3://hapax/{prefix}?endpoint={}", self.url())
    }
}

impl BrokerKind for Minio {
    const NAME: &'static str = "minio";
    const URL: &'static str = "http://";
    const READY: &'static str = "API: http://";
    const SHARED: &'static [&'static str] = &[];

    /// Its servers form no cluster.
    fn member(_addresses: &[SocketAddr], _index: usize) -> Vec<String> {
        Vec::new()
    }

    fn shared() -> &'static Mutex<Option<Arc<BrokerServer<Self>>>> {
        static SHARED: Mutex<Option<Arc<MinioServer>>> = Mutex::const_new(None);
        &SHARED
    }
}
