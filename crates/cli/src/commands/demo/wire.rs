//! The client's end of the network: sends requests, and counts them.

use std::net::SocketAddr;
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

use super::answer::Answer;
use super::traffic::{Asked, HangUp, Payment, Sent};

/// Sends requests to one address.
#[derive(Debug)]
pub(super) struct Wire {
    target: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// An answer, and when the client is asked to come back.
#[derive(Debug)]
pub(super) struct Reply {
    /// What it says.
    pub(super) answer: Answer,
    /// What `Retry-After` says.
    pub(super) retry_after: Option<Duration>,
}

impl Wire {
    /// Sends to this address.
    pub(super) fn new(target: SocketAddr) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(1)));
        // Whether to ask again is the client's decision, and is counted.
        let client = Client::builder(TokioExecutor::new()).retry_canceled_requests(false).build(connector);
        Self { target, client }
    }

    /// Sends one request and waits for its answer. Requests that run at the same time have connections of their own.
    pub(super) async fn ask(&self, payment: &Payment, asked: Asked) -> Reply {
        let request = Request::post(format!("http://{}/charges", self.target))
            .header(header::AUTHORIZATION, &payment.merchant)
            .header("Idempotency-Key", &payment.key)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(payment.order(asked).body()))
            .expect("an address, a merchant and a key are plain words and numbers");
        let answer = async {
            match self.client.request(request).await {
                Ok(response) => read(response).await,
                Err(error) if error.is_connect() => Reply::none(Answer::NotSent),
                Err(_) => Reply::none(Answer::Broken),
            }
        };
        let answer = timeout(PATIENCE, answer).await;
        answer.unwrap_or_else(|_| Reply::none(Answer::Broken))
    }

    /// Sends a request, or half of it, and hangs up without waiting for the answer.
    pub(super) async fn hang_up(&self, payment: &Payment, how: HangUp) -> Answer {
        let Ok(mut stream) = TcpStream::connect(self.target).await else {
            return Answer::NotSent;
        };
        let body = payment.order.body();
        let head = format!(
            "POST /charges HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\nIdempotency-Key: {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.target,
            payment.merchant,
            payment.key,
            body.len(),
        );
        let sent = match how.sent {
            Sent::Whole => &body[..],
            Sent::Half => &body[..body.len() / 2],
        };
        let message = [head.as_bytes(), sent].concat();
        if stream.write_all(&message).await.is_err() {
            return Answer::Broken;
        }
        sleep(how.after).await;
        Answer::HungUp
    }
}

/// How long a client waits for one answer.
const PATIENCE: Duration = Duration::from_secs(10);

impl Reply {
    /// No answer.
    pub(super) fn none(answer: Answer) -> Self {
        Self { answer, retry_after: None }
    }
}

async fn read(response: Response<Incoming>) -> Reply {
    let (head, body) = response.into_parts();
    let Ok(body) = body.collect().await else {
        return Reply::none(Answer::Broken);
    };
    Reply { answer: Answer::read(&head, body.to_bytes()), retry_after: seconds(head.headers.get(header::RETRY_AFTER)) }
}

fn seconds(retry_after: Option<&HeaderValue>) -> Option<Duration> {
    let seconds = retry_after?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
