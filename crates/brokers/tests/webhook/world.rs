//! Sinks, events and resolvers of the tests.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use hapax_brokers::{ResolveHost, WebhookEndpoint, WebhookSecret, WebhookSink, WebhookSinkConfig};
use hapax_core::EventId;
use hapax_core::outbox::{OutgoingEvent, Published, Sink};
use hapax_core::runtime::Tokio;
use tokio::time::interval;

/// A test that takes longer has failed, even on a slow machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// An endpoint on this machine, with a time limit that no answer of a working receiver exceeds.
pub(crate) fn local(url: impl Into<String>) -> WebhookEndpoint {
    let mut endpoint = WebhookEndpoint::new(url);
    endpoint.secrets = vec![WebhookSecret::new(SECRET)];
    (endpoint.allow_http, endpoint.allowed_networks) = (true, vec!["127.0.0.1".into()]);
    endpoint.time_limit = DEADLINE;
    endpoint
}

pub(crate) fn sink(endpoints: impl IntoIterator<Item = (&'static str, WebhookEndpoint)>) -> WebhookSink {
    sink_with(endpoints, None)
}

pub(crate) fn sink_with(
    endpoints: impl IntoIterator<Item = (&'static str, WebhookEndpoint)>,
    resolver: Option<Arc<dyn ResolveHost>>,
) -> WebhookSink {
    let mut config = WebhookSinkConfig::default();
    config.endpoints = endpoints.into_iter().map(|(name, endpoint)| (name.to_owned(), endpoint)).collect();
    config.resolver = resolver.unwrap_or(config.resolver);
    WebhookSink::open(config, Arc::new(Tokio::current())).unwrap()
}

/// An event whose id has this number.
pub(crate) fn event(number: u32, topic: &str) -> Arc<OutgoingEvent> {
    let mut id = [0; 16];
    id[12..].copy_from_slice(&number.to_be_bytes());
    Arc::new(OutgoingEvent::new(EventId::from_bytes(id), topic, format!("event {number}")))
}

/// Publishes the event of this number to the endpoint `e`.
pub(crate) async fn publish(sink: &WebhookSink, number: u32) -> Published {
    in_time(sink.publish(&event(number, "e"))).await
}

pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("an end in time")
}

/// Waits until this holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let (deadline, mut looks) = (Instant::now() + DEADLINE, interval(Duration::from_millis(5)));
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        looks.tick().await;
    }
}

/// Publishes the event of this number until the endpoint takes it.
pub(crate) async fn publish_at_last(sink: &WebhookSink, number: u32) {
    let mut tries = interval(Duration::from_millis(20));
    in_time(async {
        while !matches!(sink.publish(&event(number, "e")).await, Published::Yes { .. }) {
            tries.tick().await;
        }
    })
    .await;
}

/// The result in one word, with what the reason says.
pub(crate) fn word(published: &Published) -> (&'static str, String) {
    match published {
        Published::Yes { .. } => ("yes", String::new()),
        Published::NotPublished { cause, .. } => ("not-published", format!("{cause:?}")),
        Published::Unknown(cause) => ("unknown", format!("{cause:?}")),
        Published::Refused(reason) => ("refused", reason.clone()),
    }
}

/// Gives another answer to each lookup; the last one stays.
#[derive(Debug)]
pub(crate) struct ChangingResolver {
    answers: Vec<Vec<IpAddr>>,
    lookups: AtomicUsize,
}

impl ChangingResolver {
    pub(crate) fn new(answers: &[&[&str]]) -> Arc<Self> {
        let addresses = |answer: &&[&str]| answer.iter().map(|address| address.parse().unwrap()).collect();
        Arc::new(Self { answers: answers.iter().map(addresses).collect(), lookups: AtomicUsize::new(0) })
    }

    pub(crate) fn lookups(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl ResolveHost for ChangingResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        assert_eq!(host, "hooks.example");
        let number = self.lookups.fetch_add(1, Ordering::SeqCst);
        Ok(self.answers[number.min(self.answers.len() - 1)].clone())
    }
}
