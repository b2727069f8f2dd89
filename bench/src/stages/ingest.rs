//! Puts every request into a topic, and answers when the broker has confirmed it. It knows nothing of retries.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, ProducerContext, ThreadedProducer};
use rdkafka::{ClientConfig, ClientContext};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{StagePlaces, microseconds, number_of};
use crate::proxies;

/// The fields of the response that have the times at which the request arrived and the broker had confirmed it.
pub(crate) const ARRIVED: &str = "bench-arrived";
pub(crate) const PUBLISHED: &str = "bench-published";

pub(super) async fn serve(address: SocketAddr, places: &StagePlaces) -> anyhow::Result<()> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &places.kafka).set("enable.idempotence", "true").set("linger.ms", "0");
    let topic = IngestTopic { name: places.topic.clone(), producer: config.create_with_context(Confirmations)? };
    let topic = Arc::new(topic);
    proxies::serve(address, move |request| {
        let topic = Arc::clone(&topic);
        async move {
            topic.take(request).await.unwrap_or_else(|error| {
                let mut response = Response::new(Full::from(error.to_string()));
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                response
            })
        }
    })
    .await
}

struct IngestTopic {
    name: String,
    producer: ThreadedProducer<Confirmations>,
}

impl IngestTopic {
    async fn take(&self, request: Request<Incoming>) -> anyhow::Result<Response<Full<Bytes>>> {
        let arrived = microseconds();
        let operation = request.headers().get("hapax-operation").map(|operation| operation.as_bytes().to_vec());
        let operation = match operation {
            Some(operation) => operation,
            None => fresh_operation()?,
        };
        let body = request.into_body().collect().await?.to_bytes();
        let account = format!("account-{}", number_of(&body)? % 1_000);
        let (sender, confirmed) = oneshot::channel();
        let headers = OwnedHeaders::new().insert(Header { key: "Idempotency-Key", value: Some(&operation) });
        let record = BaseRecord::with_opaque_to(&self.name, Box::new(sender)).key(&account);
        self.producer.send(record.payload(&body[..]).headers(headers)).map_err(|(error, _)| error)?;
        confirmed.await??;
        let response = Response::builder().status(StatusCode::ACCEPTED).header(ARRIVED, arrived);
        Ok(response.header(PUBLISHED, microseconds()).body(Full::from("{\"status\":\"accepted\"}"))?)
    }
}

/// The key of a message whose request came without the gate.
fn fresh_operation() -> anyhow::Result<Vec<u8>> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(Uuid::from_bytes(bytes).to_string().into_bytes())
}

/// Tells each request when the broker has its message.
struct Confirmations;

impl ClientContext for Confirmations {}

impl ProducerContext for Confirmations {
    type DeliveryOpaque = Box<oneshot::Sender<Result<(), KafkaError>>>;

    fn delivery(&self, result: &DeliveryResult<'_>, sender: Self::DeliveryOpaque) {
        // A request that nobody waits for has no receiver.
        let _ = sender.send(result.as_ref().map(drop).map_err(|(error, _)| error.clone()));
    }
}
