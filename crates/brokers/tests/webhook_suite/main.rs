//! The sink suite against webhooks.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]
#![expect(clippy::disallowed_methods, reason = "the receiver is a server of its own")]

#[path = "../webhook/receiver.rs"]
#[expect(dead_code, reason = "the suite needs a part of it")]
mod receiver;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_brokers::{WebhookEndpoint, WebhookSecret, WebhookSink, WebhookSinkConfig};
use hapax_core::broker::Headers;
use hapax_core::outbox::{Sink, TopicTemplate};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_testkit::{ArrivedEvent, SinkBackend, SinkCapability, SinkOptions, SinkSetup, run_sink_case, sink_main};

use crate::receiver::{Got, Receiver};

const LACKS: &[(SinkCapability, &str)] = &[
    (SinkCapability::Restart, "a check sends nothing, because a receiver would take it for an event"),
    (SinkCapability::MissingTopic, "endpoints are in the configuration; one that is not there is refused"),
    (SinkCapability::SmallLimit, "HTTP has no limit of its own"),
    (SinkCapability::Source, "the receiver is a service behind the gateway"),
];

fn main() -> ExitCode {
    let run = |case| run_sink_case(case, async || ReceiverSetup(Receiver::answering(200).await));
    sink_main(&[SinkBackend::new("webhook", run).lacking(LACKS).at_once(4)])
}

struct ReceiverSetup(Receiver);

#[async_trait]
impl SinkSetup for ReceiverSetup {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(Tokio::current())
    }

    fn topic(&self) -> String {
        "orders".into()
    }

    async fn open(&self, options: SinkOptions) -> Arc<dyn Sink> {
        let address = options.address.unwrap_or_else(|| self.address());
        let mut endpoint = WebhookEndpoint::new(format!("http://{address}/orders"));
        endpoint.secrets = vec![WebhookSecret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")];
        (endpoint.allow_http, endpoint.allowed_networks) = (true, vec!["127.0.0.1".into()]);
        let forwarded = ["x-own", "original-idempotency-key", "original-msg-id", "x-msg-id"];
        (endpoint.time_limit, endpoint.forwarded) = (options.timeout, forwarded.map(String::from).to_vec());
        let mut config = WebhookSinkConfig::default();
        config.endpoints.insert("orders".into(), endpoint);
        config.template = options.topic;
        Arc::new(WebhookSink::open(config, self.runtime()).unwrap())
    }

    async fn arrived(&self) -> Vec<ArrivedEvent> {
        self.0.got().into_iter().map(arrived).collect()
    }

    fn split_topic(&self) -> (TopicTemplate, String) {
        ("ord{topic}".parse().unwrap(), "ers".into())
    }

    fn invalid_topic(&self) -> String {
        "payments".into()
    }

    fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.0.port).into()
    }
}

fn arrived(got: Got) -> ArrivedEvent {
    let key = got.headers.get("ce-partitionkey").map(|key| Bytes::copy_from_slice(key.as_bytes()));
    let mut headers = Headers::default();
    for (name, value) in &got.headers {
        headers.push(name.as_str(), value.as_bytes().to_vec());
    }
    let name = got.target.split(['/', ' ']).nth(2).unwrap().to_owned();
    ArrivedEvent { id: got.header("webhook-id").into(), name, ordering_key: key, headers, payload: got.body.into() }
}
