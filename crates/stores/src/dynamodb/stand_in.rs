//! A service for which a test answers. It answers the questions for its clock by itself.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use hapax_core::Timestamp;
use hapax_core::runtime::{Runtime, Tokio, timeout};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::DynamoDb;

/// A call that does not come until then never comes.
const DEADLINE: Duration = Duration::from_secs(20);

/// Long enough for a call that would come.
const QUIET: Duration = Duration::from_millis(100);

pub(super) struct StandInTable {
    address: SocketAddr,
    calls: UnboundedReceiver<TableCall>,
    pub(super) clock: Arc<StandInClock>,
}

/// The clock that the answers show.
#[derive(Default)]
pub(super) struct StandInClock {
    /// How many seconds it is ahead.
    ahead: AtomicI64,
    /// How many seconds the next answer to a call of a test is ahead of that.
    lie: AtomicI64,
    is_missing: AtomicBool,
    /// The questions for it.
    questions: AtomicU64,
}

/// A call that waits for its answer.
pub(super) struct TableCall {
    pub(super) operation: String,
    pub(super) body: Value,
    /// The field `x-amz-date`.
    pub(super) signed_at: String,
    answer: oneshot::Sender<(u16, Value)>,
}

impl StandInClock {
    pub(super) fn set_ahead(&self, seconds: i64) {
        self.ahead.store(seconds, Ordering::SeqCst);
    }

    pub(super) fn lie_once(&self, seconds: i64) {
        self.lie.store(seconds, Ordering::SeqCst);
    }

    /// No answer shows the clock.
    pub(super) fn hide(&self) {
        self.is_missing.store(true, Ordering::SeqCst);
    }

    pub(super) fn questions(&self) -> u64 {
        self.questions.load(Ordering::SeqCst)
    }

    pub(super) fn now(&self) -> Timestamp {
        let seconds = self.ahead.load(Ordering::SeqCst);
        Timestamp(Tokio::current().wall_now().0.saturating_add_signed(seconds * 1_000_000))
    }

    /// The field `Date`.
    fn field(&self, lie: i64) -> String {
        if self.is_missing.load(Ordering::SeqCst) {
            return String::new();
        }
        let shown = Duration::from_micros(self.now().0.saturating_add_signed(lie * 1_000_000));
        format!("date: {}\r\n", httpdate::fmt_http_date(UNIX_EPOCH + shown))
    }
}

impl StandInTable {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, calls) = unbounded_channel();
        let clock = Arc::new(StandInClock::default());
        let shown = Arc::clone(&clock);
        Tokio::current().spawn(Box::pin(async move {
            while let Ok((stream, _)) = listener.accept().await {
                Tokio::current().spawn(Box::pin(serve(stream, sender.clone(), Arc::clone(&shown))));
            }
        }));
        Self { address, calls, clock }
    }

    pub(super) fn store(&self) -> Arc<DynamoDb> {
        let url = format!("dynamodb://eu-west-1/payments?endpoint=http://{}", self.address);
        Arc::new(DynamoDb::with(&url.parse().unwrap(), Arc::new(Tokio::current())).unwrap())
    }

    /// The next call, but for questions for the clock.
    pub(super) async fn call(&mut self) -> TableCall {
        timeout(&Tokio::current(), DEADLINE, self.calls.recv()).await.expect("no call comes").unwrap()
    }

    /// Whether no call comes.
    pub(super) async fn is_quiet(&mut self) -> bool {
        timeout(&Tokio::current(), QUIET, self.calls.recv()).await.is_none()
    }
}

impl TableCall {
    pub(super) fn answer(self, body: Value) {
        // The caller may be gone.
        let _ = self.answer.send((200, body));
    }

    pub(super) fn refuse(self, code: &str) {
        let _ = self.answer.send((400, json!({ "__type": code })));
    }

    /// The condition of a write does not hold: this is stored.
    pub(super) fn refuse_for(self, item: &Value) {
        let _ = self.answer.send((400, json!({ "__type": "ConditionalCheckFailedException", "Item": item })));
    }

    pub(super) fn fail(self, status: u16) {
        let _ = self.answer.send((status, json!({ "__type": "InternalServerError" })));
    }
}

/// The requests to a connection, one after the other.
async fn serve(mut stream: TcpStream, calls: UnboundedSender<TableCall>, clock: Arc<StandInClock>) {
    let mut read = Vec::new();
    loop {
        let (head, end) = match head_of(&read) {
            Some((head, length)) if read.len() >= head + length => (head, head + length),
            Some(_) | None => match stream.read_buf(&mut read).await {
                Ok(1..) => continue,
                // The client is gone.
                Ok(0) | Err(_) => return,
            },
        };
        let request: Vec<u8> = read.drain(..end).collect();
        // Without an answer the connection ends.
        let Some((status, body, lie)) = answer(&request, head, (&calls, &clock)).await else { return };
        let (body, date) = (body.to_string(), clock.field(lie));
        let length = body.len();
        let head = format!("HTTP/1.1 {status} X\r\n{date}content-length: {length}\r\n\r\n");
        if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The status and the body of an answer, and how many seconds its clock is wrong.
async fn answer(
    request: &[u8],
    head: usize,
    (calls, clock): (&UnboundedSender<TableCall>, &StandInClock),
) -> Option<(u16, Value, i64)> {
    let fields = String::from_utf8_lossy(&request[..head]).into_owned();
    let operation = field(&fields, "x-amz-target").unwrap().trim_start_matches("DynamoDB_20120810.").to_owned();
    let body: Value = serde_json::from_slice(&request[head..]).unwrap();
    if body == super::request::clock_question("payments") {
        clock.questions.fetch_add(1, Ordering::SeqCst);
        return Some((200, json!({}), 0));
    }
    let (answer, answered) = oneshot::channel();
    let signed_at = field(&fields, "x-amz-date").unwrap().to_owned();
    let _ = calls.send(TableCall { operation, body, signed_at, answer });
    let (status, body) = answered.await.ok()?;
    Some((status, body, clock.lie.swap(0, Ordering::SeqCst)))
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
