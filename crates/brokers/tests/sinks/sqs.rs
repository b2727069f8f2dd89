//! A queue of its own for each case.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hapax_brokers::{SqsSink, SqsSinkConfig, SqsSource};
use hapax_core::broker::{Headers, Source};
use hapax_core::outbox::{Sink, TopicTemplate};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_testkit::servers::ElasticMqServer;
use hapax_testkit::{ArrivedEvent, SinkBackend, SinkCapability, SinkCase, SinkOptions, SinkSetup, run_sink_case};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::elasticmq::TestQueue;

/// A word behind the name of each case.
const FIFO: &str = "suite.fifo";
const STANDARD: &str = "suite";

const NO_LIMIT: &str = "ElasticMQ has no MaximumMessageSize";
const NO_ORDER: &str = "a standard queue passes no ordering key on";

const LACKING: &[(SinkCapability, &str)] = &[
    (SinkCapability::SmallLimit, NO_LIMIT),
    // What follows only a standard queue lacks.
    (SinkCapability::Source, NO_ORDER),
];

pub(crate) fn fifo() -> SinkBackend {
    backend("sqs-fifo", FIFO).lacking(&LACKING[..1])
}

pub(crate) fn standard() -> SinkBackend {
    backend("sqs-standard", STANDARD).lacking(LACKING)
}

fn backend(name: &'static str, word: &'static str) -> SinkBackend {
    SinkBackend::new(name, move |case| run_sink_case(case, async || SqsSetup::new(case, word).await))
        .requiring("elasticmq")
        .at_once(4)
}

struct SqsSetup {
    server: Arc<ElasticMqServer>,
    case: &'static str,
    word: &'static str,
    queue: TestQueue,
    /// What was received, and then deleted, so far.
    arrived: Mutex<Vec<ArrivedEvent>>,
    runtime: Arc<dyn Runtime>,
}

impl SqsSetup {
    async fn new(case: SinkCase, word: &'static str) -> Self {
        let server = match case.needs {
            // The others go on meanwhile.
            Some(SinkCapability::Restart) => Arc::new(ElasticMqServer::start(&[]).await.unwrap()),
            _ => ElasticMqServer::shared().await.unwrap(),
        };
        let queue = TestQueue::named(&server, &format!("{}-{word}", case.name));
        let runtime = Arc::new(Tokio::current());
        let setup = Self { server, case: case.name, word, queue, arrived: Mutex::default(), runtime };
        if case.needs != Some(SinkCapability::MissingTopic) {
            setup.create_topic().await;
        }
        setup
    }

    fn read(&self, message: &Value) -> ArrivedEvent {
        let attributes = message["MessageAttributes"].as_object().unwrap();
        let value = |name: &str| attributes.get(name).map(|found| found["StringValue"].as_str().unwrap().to_owned());
        let mut headers: Headers = attributes.keys().map(|name| (name.as_str(), value(name).unwrap())).collect();
        if let Some(folded) = value("hapax-headers") {
            for (name, value) in serde_json::from_str::<Vec<(String, String)>>(&folded).unwrap() {
                headers.push(name, value);
            }
        }
        let body = message["Body"].as_str().unwrap();
        let payload = match value("hapax-encoding") {
            Some(_) => BASE64_STANDARD.decode(body).unwrap().into(),
            None => Bytes::copy_from_slice(body.as_bytes()),
        };
        let ordering_key = value("ce-partitionkey").map(Bytes::from);
        if let (true, Some(key)) = (self.queue.is_fifo(), &ordering_key) {
            assert_eq!(message["Attributes"]["MessageGroupId"].as_str().map(str::as_bytes), Some(&key[..]));
        }
        ArrivedEvent { id: value("ce-id").unwrap(), name: self.topic(), ordering_key, headers, payload }
    }
}

#[async_trait]
impl SinkSetup for SqsSetup {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn topic(&self) -> String {
        self.queue.name.clone()
    }

    async fn open(&self, options: SinkOptions) -> Arc<dyn Sink> {
        let address = options.address.unwrap_or(self.server.address());
        let config: SqsSinkConfig = format!("sqs+http://{address}").parse().unwrap();
        let config = config.topic(options.topic).timeout(options.timeout);
        Arc::new(SqsSink::open(config, self.runtime()).await.unwrap())
    }

    async fn arrived(&self) -> Vec<ArrivedEvent> {
        loop {
            let asked = json!({
                "MaxNumberOfMessages": 10, "VisibilityTimeout": 60,
                "MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"],
            });
            let received = self.queue.call("ReceiveMessage", asked).await;
            let messages = received["Messages"].as_array().cloned().unwrap_or_default();
            if messages.is_empty() {
                return self.arrived.lock().clone();
            }
            for message in &messages {
                let event = self.read(message);
                self.queue.call("DeleteMessage", json!({ "ReceiptHandle": message["ReceiptHandle"] })).await;
                self.arrived.lock().push(event);
            }
        }
    }

    fn split_topic(&self) -> (TopicTemplate, String) {
        (format!("{}-{{topic}}", self.case).parse().unwrap(), self.word.into())
    }

    fn invalid_topic(&self) -> String {
        "orders of today".into()
    }

    fn address(&self) -> SocketAddr {
        self.server.address()
    }

    fn kill_broker(&self) {
        self.server.kill();
    }

    async fn restart_broker(&self) {
        self.server.restart().await.unwrap();
    }

    async fn create_topic(&self) {
        self.queue.create().await;
    }

    async fn source(&self) -> Box<dyn Source> {
        let url = format!("sqs+http://{}/{}?wait=1", self.server.address(), self.queue.name);
        Box::new(SqsSource::connect(&url.parse().unwrap(), self.runtime()).await.unwrap())
    }
}
