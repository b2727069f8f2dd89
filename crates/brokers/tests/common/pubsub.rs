//! Topics of stand-ins for Pub/Sub, asked without the code under test.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hapax_core::runtime::{Runtime, Tokio};
use hapax_net::http::{HttpClient, HttpSettings};
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};

/// An answer that takes longer has failed.
const DEADLINE: Duration = Duration::from_secs(60);

/// The REST interface of an emulator.
#[derive(Clone)]
pub(crate) struct Emulator {
    http: HttpClient,
    address: SocketAddr,
}

/// A message that an emulator has.
#[derive(Clone, Debug)]
pub(crate) struct StoredMessage {
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) ordering_key: String,
    pub(crate) data: Bytes,
    pub(crate) ack_id: String,
}

/// The JSON of an answer over HTTP.
pub(crate) async fn ask(http: &HttpClient, method: Method, url: &str, body: &Value) -> (StatusCode, Value) {
    let begun = Instant::now();
    loop {
        let body = if method == Method::GET { Bytes::new() } else { body.to_string().into() };
        let request = Request::builder().method(method.clone()).uri(url).header("content-type", "application/json");
        match http.send(request.body(body).unwrap()).await {
            Ok(answer) => return (answer.status(), serde_json::from_slice(answer.body()).unwrap_or_default()),
            Err(failure) => assert!(begun.elapsed() < DEADLINE, "{url}: {failure:?}"),
        }
        hapax_testkit::pause().await;
    }
}

pub(crate) fn http_client() -> HttpClient {
    let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
    HttpClient::new(HttpSettings { max_body: 64 << 20, ..HttpSettings::new(runtime) }).unwrap()
}

impl Emulator {
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self { http: http_client(), address }
    }

    /// Makes a call until the service answers it.
    pub(crate) async fn call(&self, method: Method, path: &str, body: Value) -> Value {
        let url = format!("http://{}/v1/projects/shop/{path}", self.address);
        let (status, answer) = ask(&self.http, method, &url, &body).await;
        // Another try may have created it.
        assert!(status.is_success() || status == StatusCode::CONFLICT, "{path}: {status} {answer}");
        answer
    }

    pub(crate) async fn create_topic(&self, topic: &str) {
        self.call(Method::PUT, &format!("topics/{topic}"), json!({})).await;
    }

    /// Creates a subscription with these settings.
    pub(crate) async fn subscribe(&self, topic: &str, subscription: &str, mut settings: Value) {
        settings["topic"] = json!(format!("projects/shop/topics/{topic}"));
        self.call(Method::PUT, &format!("subscriptions/{subscription}"), settings).await;
    }

    pub(crate) async fn publish(&self, topic: &str, data: &[u8], attributes: &[(String, String)], key: &str) {
        let attributes: BTreeMap<&String, &String> = attributes.iter().map(|(name, value)| (name, value)).collect();
        let message = json!({ "data": BASE64_STANDARD.encode(data), "attributes": attributes, "orderingKey": key });
        self.call(Method::POST, &format!("topics/{topic}:publish"), json!({ "messages": [message] })).await;
    }

    /// The messages that a subscription gives out now.
    pub(crate) async fn pull(&self, subscription: &str) -> Vec<StoredMessage> {
        let asked = json!({ "maxMessages": 1000, "returnImmediately": true });
        let answer = self.call(Method::POST, &format!("subscriptions/{subscription}:pull"), asked).await;
        let received = answer["receivedMessages"].as_array().cloned().unwrap_or_default();
        received.iter().map(read).collect()
    }

    pub(crate) async fn acknowledge(&self, subscription: &str, messages: &[StoredMessage]) {
        let ack_ids: Vec<&String> = messages.iter().map(|message| &message.ack_id).collect();
        self.call(Method::POST, &format!("subscriptions/{subscription}:acknowledge"), json!({ "ackIds": ack_ids }))
            .await;
    }

    /// The messages that are not acknowledged, delivered or not, as another subscription of the topic sees them. That
    /// one must be older than the messages. `number` is another one each time.
    pub(crate) async fn unacknowledged(&self, subscription: &str, looker: &str, number: usize) -> Vec<StoredMessage> {
        let snapshot = format!("{subscription}-{number}");
        let of = json!({ "subscription": format!("projects/shop/subscriptions/{subscription}") });
        self.call(Method::PUT, &format!("snapshots/{snapshot}"), of).await;
        let seek = json!({ "snapshot": format!("projects/shop/snapshots/{snapshot}") });
        self.call(Method::POST, &format!("subscriptions/{looker}:seek"), seek).await;
        let mut found = Vec::new();
        loop {
            let more = self.pull(looker).await;
            if more.is_empty() {
                self.call(Method::DELETE, &format!("snapshots/{snapshot}"), json!({})).await;
                return found;
            }
            found.extend(more);
        }
    }
}

fn read(received: &Value) -> StoredMessage {
    let message = &received["message"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let attributes = message["attributes"].as_object().cloned().unwrap_or_default();
    StoredMessage {
        attributes: attributes.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
        ordering_key: text(&message["orderingKey"]),
        data: BASE64_STANDARD.decode(text(&message["data"])).unwrap().into(),
        ack_id: text(&received["ackId"]),
    }
}
