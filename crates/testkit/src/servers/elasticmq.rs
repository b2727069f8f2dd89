//! Servers of ElasticMQ, which speaks the protocol of AWS SQS.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Mutex;

use super::broker::{BrokerKind, BrokerServer};

/// A server of ElasticMQ, a stand-in for AWS SQS. It keeps its queues and messages over a restart.
#[derive(Clone, Copy, Debug)]
pub enum ElasticMq {}

/// A server of ElasticMQ on a free loopback port. Arguments are settings, such as `rest-sqs.sqs-limits=relaxed`.
pub type ElasticMqServer = BrokerServer<ElasticMq>;

impl BrokerKind for ElasticMq {
    const NAME: &'static str = "elasticmq";
    const URL: &'static str = "sqs+http://";
    const READY: &'static str = "=== ElasticMQ server";
    const SHARED: &'static [&'static str] = &[];

    /// Its servers form no cluster.
    fn member(_addresses: &[SocketAddr], _index: usize) -> Vec<String> {
        Vec::new()
    }

    fn shared() -> &'static Mutex<Option<Arc<BrokerServer<Self>>>> {
        static SHARED: Mutex<Option<Arc<ElasticMqServer>>> = Mutex::const_new(None);
        &SHARED
    }
}
