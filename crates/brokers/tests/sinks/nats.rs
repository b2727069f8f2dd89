//! A stream of its own for each case.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::jetstream::{self, Context, stream};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use hapax_brokers::{NatsSink, NatsSinkConfig, NatsSource};
use hapax_core::broker::{Headers, Source};
use hapax_core::outbox::{Sink, TopicTemplate};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_testkit::servers::NatsServer;
use hapax_testkit::{ArrivedEvent, SinkBackend, SinkCapability, SinkCase, SinkOptions, SinkSetup, run_sink_case};
use tempfile::TempDir;

use crate::DEADLINE;

pub(crate) fn backend() -> SinkBackend {
    SinkBackend::new("nats", |case| run_sink_case(case, async || NatsSetup::new(case).await))
        .requiring("nats")
        .at_once(8)
}

struct NatsSetup {
    server: Arc<NatsServer>,
    name: &'static str,
    runtime: Arc<dyn Runtime>,
    _configuration: Option<TempDir>,
}

impl NatsSetup {
    async fn new(case: SinkCase) -> Self {
        let mut configuration = None;
        let server = match case.needs {
            // The others go on meanwhile.
            Some(SinkCapability::Restart) => Arc::new(NatsServer::start(&[]).await.unwrap()),
            Some(SinkCapability::SmallLimit) => {
                let folder = configuration.insert(tempfile::tempdir().unwrap());
                let path = folder.path().join("nats.conf");
                std::fs::write(&path, "max_payload: 20000\n").unwrap();
                Arc::new(NatsServer::start(&["-c", &path.display().to_string()]).await.unwrap())
            }
            _ => NatsServer::shared().await.unwrap(),
        };
        let runtime = Arc::new(Tokio::current());
        let setup = Self { server, name: case.name, runtime, _configuration: configuration };
        if case.needs != Some(SinkCapability::MissingTopic) {
            setup.create_topic().await;
        }
        setup
    }

    async fn context(&self) -> Context {
        let begun = Instant::now();
        loop {
            match async_nats::connect(self.server.url()).await {
                Ok(client) => return jetstream::new(client),
                Err(error) => assert!(begun.elapsed() < DEADLINE, "{error}"),
            }
            hapax_testkit::pause().await;
        }
    }
}

#[async_trait]
impl SinkSetup for NatsSetup {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn topic(&self) -> String {
        format!("{}.suite", self.name)
    }

    async fn open(&self, options: SinkOptions) -> Arc<dyn Sink> {
        let address = options.address.unwrap_or(self.server.address());
        let config: NatsSinkConfig = format!("nats://{address}").parse().unwrap();
        let config = config.topic(options.topic).timeout(options.timeout);
        Arc::new(NatsSink::open(config, self.runtime()).await.unwrap())
    }

    async fn arrived(&self) -> Vec<ArrivedEvent> {
        let stream = self.context().await.get_stream(self.name).await.unwrap();
        let count = stream.cached_info().state.messages;
        let config = pull::OrderedConfig { deliver_policy: DeliverPolicy::All, ..Default::default() };
        let messages = stream.create_consumer(config).await.unwrap().messages().await.unwrap();
        let arrived = messages.take(usize::try_from(count).unwrap()).map(|message| {
            let message = message.unwrap();
            let headers = message.headers.clone().unwrap_or_default();
            let headers: Headers = headers
                .iter()
                .flat_map(|(name, values)| {
                    values.iter().map(move |value| (name.to_string(), value.as_str().to_owned()))
                })
                .collect();
            let text = |name| headers.all(name).next().map(|value| String::from_utf8_lossy(value).into_owned());
            ArrivedEvent {
                id: text("ce-id").unwrap(),
                name: message.subject.to_string(),
                ordering_key: text("ce-partitionkey").map(Bytes::from),
                headers: headers.clone(),
                payload: message.payload.clone(),
            }
        });
        arrived.collect().await
    }

    fn split_topic(&self) -> (TopicTemplate, String) {
        (format!("{}.{{topic}}", self.name).parse().unwrap(), "suite".into())
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
        let subjects = vec![format!("{}.>", self.name)];
        let config = stream::Config { name: self.name.into(), subjects, ..Default::default() };
        self.context().await.create_stream(config).await.unwrap();
    }

    async fn source(&self) -> Box<dyn Source> {
        let url = format!("{}/{}?durable=d&order=header:ce-partitionkey", self.server.url(), self.name);
        Box::new(NatsSource::connect(&url.parse().unwrap(), self.runtime()).await.unwrap())
    }
}
