//! The sample payment service: it charges a card for every request that it receives, and knows nothing of retries.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use super::chance::{Chance, Topic};
use super::traffic::{Conduct, Order};

/// The running service. Dropped, it stops.
#[derive(Debug)]
pub(super) struct Service {
    address: SocketAddr,
    desk: Arc<Desk>,
    // Ends the listener and its connections when it is dropped.
    _accepting: JoinSet<Infallible>,
}

impl Service {
    /// Starts the service on a port of its own; it writes its charges to `log`.
    pub(super) async fn start(seed: u64, log: &Path) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let log = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        let desk = Arc::new(Desk::new(seed, log));
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&desk)));
        Ok(Self { address, desk, _accepting: accepting })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until a request for this payment has been received.
    pub(super) async fn received(&self, payment: u32) {
        self.desk.received(payment).await;
    }

    /// Waits until all that was received is dealt with: from then on the log is complete.
    pub(super) async fn finish(&self) {
        self.desk.tasks.close();
        self.desk.tasks.wait().await;
    }
}

async fn accept(listener: TcpListener, desk: Arc<Desk>) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        // A failed accept is trouble of that one connection, or a want of file handles that passes.
        match listener.accept().await {
            Ok((stream, _)) => drop(connections.spawn(serve(stream, Arc::clone(&desk)))),
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, desk: Arc<Desk>) {
    let service = service_fn(move |request| answer(request, Arc::clone(&desk)));
    // The error is the caller's hanging up, which is part of the show.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, desk: Arc<Desk>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    if head.method != Method::POST || head.uri.path() != "/charges" {
        return Ok(response(StatusCode::NOT_FOUND, &json!({})));
    }
    // A body that is cut off is no request: it fails here, and nothing is charged.
    let body = body.collect().await?.to_bytes();
    let Some(order) = serde_json::from_slice(&body).ok().and_then(|json| Order::read(&json)) else {
        return Ok(response(StatusCode::BAD_REQUEST, &json!({})));
    };
    // In a task of its own: a card is charged to the end although the caller has hung up.
    let desk_of_task = Arc::clone(&desk);
    let charging = desk.tasks.spawn(async move { desk_of_task.charge(order, &head.headers).await });
    Ok(charging.await.unwrap_or_else(|_| failure()))
}

#[derive(Debug)]
struct Desk {
    seed: u64,
    log: Mutex<File>,
    numbers: AtomicU64,
    arrivals: Mutex<HashMap<u32, u32>>,
    arrived: Notify,
    tasks: TaskTracker,
}

impl Desk {
    fn new(seed: u64, log: File) -> Self {
        Self {
            seed,
            log: Mutex::new(log),
            numbers: AtomicU64::new(1),
            arrivals: Mutex::default(),
            arrived: Notify::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Deals with one request, taking its time before and after the charge.
    async fn charge(&self, order: Order, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let arrival = self.count(order.payment);
        let place = [order.payment.into(), arrival.into()];
        let mut pace = Chance::new(self.seed, Topic::Pace, &place);
        sleep(Duration::from_millis(pace.between(0, 8))).await;
        let number = format!("{:06}", self.numbers.fetch_add(1, Ordering::Relaxed));
        let conduct = Conduct::new(self.seed, order.payment, arrival);
        match conduct {
            Conduct::Busy => return busy(),
            Conduct::Decline => return declined(&number, &order),
            Conduct::Charge | Conduct::ChargeAndFail => {}
        }
        let charge = Charge { id: format!("ch_{number}"), order, operation: text(headers, "hapax-operation") };
        if self.append(&charge).is_err() {
            return failure();
        }
        sleep(Duration::from_millis(pace.between(0, 7))).await;
        if conduct == Conduct::ChargeAndFail {
            return failure();
        }
        response(StatusCode::CREATED, &charge.receipt())
    }

    /// Says how many requests for this payment came before this one.
    fn count(&self, payment: u32) -> u32 {
        let mut arrivals = self.arrivals();
        let seen = arrivals.entry(payment).or_default();
        *seen += 1;
        self.arrived.notify_waiters();
        *seen - 1
    }

    async fn received(&self, payment: u32) {
        loop {
            // Made before the look at the list: it hears of every arrival after that look.
            let arrived = self.arrived.notified();
            if self.arrivals().contains_key(&payment) {
                return;
            }
            arrived.await;
        }
    }

    fn arrivals(&self) -> MutexGuard<'_, HashMap<u32, u32>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, charge: &Charge) -> io::Result<()> {
        let line = format!("{}\n", charge.line());
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.write_all(line.as_bytes())
    }
}

/// One charge, as it stands in the log of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Charge {
    /// Different for every charge.
    pub(super) id: String,
    /// What was charged.
    pub(super) order: Order,
    /// The operation id that came with the request, if any.
    pub(super) operation: Option<String>,
}

impl Charge {
    /// Reads a line of the log.
    pub(super) fn read(line: &str) -> Option<Self> {
        let json: Value = serde_json::from_str(line).ok()?;
        Some(Self {
            id: json.get("charge")?.as_str()?.to_owned(),
            order: Order::read(&json)?,
            operation: json.get("operation").and_then(Value::as_str).map(str::to_owned),
        })
    }

    /// Its line in the log.
    pub(super) fn line(&self) -> Value {
        let mut line = self.receipt();
        line["operation"] = json!(self.operation);
        line
    }

    /// What the client is told of it.
    pub(super) fn receipt(&self) -> Value {
        json!({
            "charge": self.id,
            "payment": self.order.payment,
            "amount_cents": self.order.amount_cents,
            "nonce": self.order.nonce,
        })
    }
}

fn declined(number: &str, order: &Order) -> Response<Full<Bytes>> {
    // With a number of its own: two refusals of one payment are told apart.
    let told = json!({ "declined": format!("no_{number}"), "payment": order.payment });
    response(StatusCode::PAYMENT_REQUIRED, &told)
}

fn busy() -> Response<Full<Bytes>> {
    let told = json!({ "error": "too busy, nothing was charged" });
    let mut response = response(StatusCode::SERVICE_UNAVAILABLE, &told);
    let in_a_second = header::HeaderValue::from_static("1");
    response.headers_mut().insert(header::RETRY_AFTER, in_a_second);
    response
}

fn failure() -> Response<Full<Bytes>> {
    let told = json!({ "error": "something broke" });
    response(StatusCode::INTERNAL_SERVER_ERROR, &told)
}

fn response(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body.to_string()));
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}
