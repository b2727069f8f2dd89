use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;
use tokio::time::interval;

use crate::stages::{ARRIVED, PUBLISHED, microseconds, payment};

/// How many clients send payments at full speed.
const CLIENTS: usize = 64;

/// Sends payments to the first process of a pipeline.
#[derive(Clone)]
pub(super) struct PaymentSender {
    client: Client<HttpConnector, Full<Bytes>>,
    uri: Uri,
}

/// The times of one payment, up to its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentPayment {
    pub(super) number: u64,
    pub(super) sent: u64,
    /// At the ingest service.
    pub(super) arrived: u64,
    /// The broker has confirmed the message.
    pub(super) published: u64,
    pub(super) answered: u64,
}

impl PaymentSender {
    pub(super) fn new(address: SocketAddr) -> anyhow::Result<Self> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, uri: format!("http://{address}/charges").parse()? })
    }

    /// Sends these payments. Each client sends the next one when it has its answer.
    pub(super) async fn saturate(&self, numbers: Range<u64>) -> anyhow::Result<Vec<SentPayment>> {
        let next = Arc::new(AtomicU64::new(numbers.start));
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (sender, next) = (self.clone(), Arc::clone(&next));
            clients.spawn(async move { sender.pay_all(&next, numbers.end).await });
        }
        let sent: Vec<_> = clients.join_all().await.into_iter().collect::<anyhow::Result<_>>()?;
        Ok(sent.into_iter().flatten().collect())
    }

    async fn pay_all(&self, next: &AtomicU64, end: u64) -> anyhow::Result<Vec<SentPayment>> {
        let mut sent = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= end {
                return Ok(sent);
            }
            sent.push(self.pay(number).await?);
        }
    }

    /// Sends these payments one after the other, each at its time, whether earlier ones have their answers or not.
    pub(super) async fn pace(&self, numbers: Range<u64>, pause: Duration) -> anyhow::Result<Vec<SentPayment>> {
        let mut clock = interval(pause);
        let mut payments = JoinSet::new();
        for number in numbers {
            clock.tick().await;
            let sender = self.clone();
            payments.spawn(async move { sender.pay(number).await });
        }
        payments.join_all().await.into_iter().collect()
    }

    async fn pay(&self, number: u64) -> anyhow::Result<SentPayment> {
        let request = Request::post(self.uri.clone())
            .header("content-type", "application/json")
            .header("idempotency-key", format!("payment-{number}"))
            // The records of one run are no copies for the next one.
            .header("authorization", format!("Bearer {}", self.uri));
        let sent = microseconds();
        let (head, body) = self.client.request(request.body(payment(number).into())?).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        let answered = microseconds();
        let text = String::from_utf8_lossy(&body);
        ensure!(head.status == StatusCode::ACCEPTED, "payment {number}: {} {text}", head.status);
        let (arrived, published) = (time(&head.headers, ARRIVED)?, time(&head.headers, PUBLISHED)?);
        Ok(SentPayment { number, sent, arrived, published, answered })
    }
}

fn time(headers: &HeaderMap, field: &str) -> anyhow::Result<u64> {
    let value = headers.get(field).with_context(|| format!("a response has no {field}"))?;
    Ok(value.to_str()?.parse()?)
}
