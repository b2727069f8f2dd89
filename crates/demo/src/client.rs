//! Sends payments over HTTP.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::response::ReceivedResponse;
use super::traffic::{HangUp, OrderVersion, Payment, SentPart};

/// Sends requests to some addresses in turn.
#[derive(Debug)]
pub(super) struct PaymentClient {
    targets: Vec<SocketAddr>,
    requests: AtomicUsize,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// A response and its Retry-After.
#[derive(Debug)]
pub(super) struct RequestOutcome {
    pub(super) response: ReceivedResponse,
    pub(super) retry_after: Option<Duration>,
}

impl PaymentClient {
    /// Creates a client of these addresses.
    ///
    /// # Panics
    /// Without an address.
    pub(super) fn new(targets: Vec<SocketAddr>) -> Self {
        assert!(!targets.is_empty(), "a client needs an address");
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(1)));
        // The demo counts retries, so the library must not retry by itself.
        let client = Client::builder(TokioExecutor::new()).retry_canceled_requests(false).build(connector);
        Self { targets, requests: AtomicUsize::new(0), client }
    }

    /// The next request goes to the next address.
    fn target(&self) -> SocketAddr {
        self.targets[self.requests.fetch_add(1, Ordering::Relaxed) % self.targets.len()]
    }

    /// Sends one request and waits for its response. Concurrent requests use separate connections.
    pub(super) async fn send(&self, payment: &Payment, version: OrderVersion) -> RequestOutcome {
        let request = Request::post(format!("http://{}/charges", self.target()))
            // The host counts as a part of the request: it is the same at every address.
            .header(header::HOST, HOST)
            .header(header::AUTHORIZATION, &payment.merchant)
            .header("Idempotency-Key", &payment.key)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(payment.order(version).body()))
            .expect("address, merchant and key are valid in a request");
        let outcome = async {
            match self.client.request(request).await {
                Ok(response) => read(response).await,
                // Without a connection nothing was sent, so the audit must not count a request.
                Err(error) if error.is_connect() => RequestOutcome::without_delay(ReceivedResponse::NotSent),
                Err(_) => RequestOutcome::without_delay(ReceivedResponse::Broken),
            }
        };
        let outcome = timeout(RESPONSE_TIMEOUT, outcome).await;
        outcome.unwrap_or_else(|_| RequestOutcome::without_delay(ReceivedResponse::Broken))
    }

    /// Sends a request, or half of it, and closes the connection without waiting for the response. It writes the
    /// request by hand, because an HTTP library never sends half a body.
    pub(super) async fn hang_up(&self, payment: &Payment, how: HangUp) -> ReceivedResponse {
        let target = self.target();
        let Ok(mut stream) = TcpStream::connect(target).await else {
            return ReceivedResponse::NotSent;
        };
        let body = payment.order.body();
        let head = format!(
            "POST /charges HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\nIdempotency-Key: {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            HOST,
            payment.merchant,
            payment.key,
            body.len(),
        );
        let sent = match how.part {
            SentPart::Whole => &body[..],
            SentPart::Half => &body[..body.len() / 2],
        };
        let message = [head.as_bytes(), sent].concat();
        if stream.write_all(&message).await.is_err() {
            return ReceivedResponse::Broken;
        }
        sleep(how.pause).await;
        ReceivedResponse::HungUp
    }
}

/// The name under which clients know the service.
const HOST: &str = "payments.example";

/// How long a client waits for one response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

impl RequestOutcome {
    fn without_delay(response: ReceivedResponse) -> Self {
        Self { response, retry_after: None }
    }
}

async fn read(response: Response<Incoming>) -> RequestOutcome {
    let (head, body) = response.into_parts();
    let Ok(body) = body.collect().await else {
        return RequestOutcome::without_delay(ReceivedResponse::Broken);
    };
    let response = ReceivedResponse::read(&head, body.to_bytes());
    RequestOutcome { response, retry_after: seconds(head.headers.get(header::RETRY_AFTER)) }
}

fn seconds(retry_after: Option<&HeaderValue>) -> Option<Duration> {
    let seconds = retry_after?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
