//! A service for which a test answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::runtime::{Runtime, Tokio, timeout};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::SqsUrl;
use super::queue::{Queue, SqsApi};

/// A call that does not come until then never comes.
const DEADLINE: Duration = Duration::from_secs(20);

/// Long enough for a call that would come.
const QUIET: Duration = Duration::from_millis(100);

pub(super) struct StandIn {
    address: SocketAddr,
    calls: UnboundedReceiver<StandInCall>,
}

/// A call that waits for its answer.
pub(super) struct StandInCall {
    pub(super) operation: String,
    pub(super) body: Value,
    answer: oneshot::Sender<StandInAnswer>,
}

struct StandInAnswer {
    status: u16,
    body: Value,
    /// How long the body comes behind the head.
    pause: Duration,
}

impl StandIn {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, calls) = unbounded_channel();
        Tokio::current().spawn(Box::pin(async move {
            while let Ok((stream, _)) = listener.accept().await {
                Tokio::current().spawn(Box::pin(serve(stream, sender.clone())));
            }
        }));
        Self { address, calls }
    }

    /// The URL of a queue that is known without asking.
    pub(super) fn url(&self, queue: &str, parameters: &str) -> SqsUrl {
        format!("sqs+http://{}/{queue}?account=1{parameters}", self.address).parse().unwrap()
    }

    pub(super) async fn api(&self) -> SqsApi {
        let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
        SqsApi::new(&self.url("q", "").place, &runtime).await.unwrap()
    }

    pub(super) async fn queue(&self) -> Queue {
        self.api().await.queue("q").await.unwrap()
    }

    /// The next call.
    pub(super) async fn call(&mut self) -> StandInCall {
        timeout(&Tokio::current(), DEADLINE, self.calls.recv()).await.expect("no call comes").unwrap()
    }

    /// Whether no call comes.
    pub(super) async fn is_quiet(&mut self) -> bool {
        timeout(&Tokio::current(), QUIET, self.calls.recv()).await.is_none()
    }
}

impl StandInCall {
    pub(super) fn answer(self, body: Value) {
        self.answer_slowly(body, Duration::ZERO);
    }

    pub(super) fn answer_slowly(self, body: Value, pause: Duration) {
        // The caller may be gone.
        let _ = self.answer.send(StandInAnswer { status: 200, body, pause });
    }

    pub(super) fn refuse(self, code: &str) {
        let body = json!({ "__type": code });
        let _ = self.answer.send(StandInAnswer { status: 400, body, pause: Duration::ZERO });
    }

    /// Answers a batch: every entry has succeeded.
    pub(super) fn succeed(self) {
        let ids = self.body["Entries"].as_array().unwrap().iter();
        let entries: Vec<Value> = ids.map(|entry| json!({ "Id": entry["Id"], "MessageId": "m" })).collect();
        self.answer(json!({ "Successful": entries }));
    }

    /// Answers a batch: every entry has failed.
    pub(super) fn fail(self, code: &str) {
        let ids = self.body["Entries"].as_array().unwrap().iter();
        let entries: Vec<Value> = ids.map(|entry| json!({ "Id": entry["Id"], "Code": code })).collect();
        self.answer(json!({ "Failed": entries }));
    }
}

/// One request to a connection.
async fn serve(mut stream: TcpStream, calls: UnboundedSender<StandInCall>) {
    let mut read = Vec::new();
    let (head, length) = loop {
        if let Some(found) = head_of(&read) {
            break found;
        }
        if stream.read_buf(&mut read).await.unwrap() == 0 {
            return;
        }
    };
    while read.len() < head + length {
        assert!(stream.read_buf(&mut read).await.unwrap() > 0, "the request has no end");
    }
    let fields = String::from_utf8_lossy(&read[..head]).into_owned();
    let operation = field(&fields, "x-amz-target").unwrap().trim_start_matches("AmazonSQS.").to_owned();
    let body = serde_json::from_slice(&read[head..]).unwrap();
    let (answer, answered) = oneshot::channel();
    let _ = calls.send(StandInCall { operation, body, answer });
    // Without an answer the connection ends.
    let Ok(StandInAnswer { status, body, pause }) = answered.await else { return };
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).await;
    if !pause.is_zero() {
        Tokio::current().sleep(pause).await;
    }
    let _ = stream.write_all(body.as_bytes()).await;
}

/// Where the body begins, and its length.
fn head_of(read: &[u8]) -> Option<(usize, usize)> {
    let end = read.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let length = field(&String::from_utf8_lossy(&read[..end]), "content-length")?.parse().ok()?;
    Some((end, length))
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    fields.into_iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}
