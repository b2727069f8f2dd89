//! The sample payment service. It charges a card for every request and does not deduplicate retries.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::commands::demo::customer::Arrivals;
use crate::commands::demo::random::{RandomStream, RandomTopic};
use crate::commands::demo::server::{ChargeService, accept, busy, declined, failure, response, text};
use crate::commands::demo::traffic::{PaymentOrder, ServiceBehavior};

/// The running service. Dropping it stops it.
#[derive(Debug)]
pub(super) struct PaymentService {
    address: SocketAddr,
    state: Arc<ServiceState>,
    // Dropping it closes the listener and the connections.
    _accepting: JoinSet<Infallible>,
}

impl PaymentService {
    /// Starts the service on a free port. It writes every charge to `log`.
    pub(super) async fn start(seed: u64, log: &Path) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let log = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        let state = Arc::new(ServiceState::new(seed, log));
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&state)));
        Ok(Self { address, state, _accepting: accepting })
    }

    /// Returns the address of the service.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until all requests have ended, so that the log is complete.
    pub(super) async fn finish(&self) {
        self.state.tasks.close();
        self.state.tasks.wait().await;
    }
}

#[async_trait]
impl Arrivals for PaymentService {
    async fn wait_for_request(&self, payment: u32) {
        self.state.wait_for_request(payment).await;
    }
}

#[derive(Debug)]
struct ServiceState {
    seed: u64,
    log: Mutex<File>,
    numbers: AtomicU64,
    arrivals: Mutex<HashMap<u32, u32>>,
    arrived: Notify,
    tasks: TaskTracker,
}

#[async_trait]
impl ChargeService for ServiceState {
    /// Handles one request, with a pause before and after the charge.
    async fn charge(&self, order: PaymentOrder, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let arrival = self.count_arrival(order.payment);
        let instance = [order.payment.into(), arrival.into()];
        let mut delay = RandomStream::new(self.seed, RandomTopic::ServiceDelay, &instance);
        // The pauses let crashes and closed connections happen both before and after the charge.
        sleep(Duration::from_millis(delay.in_range(0, 8))).await;
        let number = format!("{:06}", self.numbers.fetch_add(1, Ordering::Relaxed));
        let behavior = ServiceBehavior::new(self.seed, order.payment, arrival);
        match behavior {
            ServiceBehavior::Busy => return busy(),
            ServiceBehavior::Decline => return declined(&number, &order),
            ServiceBehavior::Charge | ServiceBehavior::ChargeAndFail => {}
        }
        let charge = Charge { id: format!("ch_{number}"), order, operation: text(headers, "hapax-operation") };
        if self.append(&charge).is_err() {
            return failure();
        }
        sleep(Duration::from_millis(delay.in_range(0, 7))).await;
        if behavior == ServiceBehavior::ChargeAndFail {
            return failure();
        }
        response(StatusCode::CREATED, &charge.receipt())
    }

    fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }
}

impl ServiceState {
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

    /// Counts a request for this payment and returns the number of earlier ones.
    fn count_arrival(&self, payment: u32) -> u32 {
        let mut arrivals = self.arrivals.lock();
        let seen = arrivals.entry(payment).or_default();
        *seen += 1;
        self.arrived.notify_waiters();
        *seen - 1
    }

    async fn wait_for_request(&self, payment: u32) {
        loop {
            // Register before checking, so that an arrival in between is not missed.
            let arrived = self.arrived.notified();
            if self.arrivals.lock().contains_key(&payment) {
                return;
            }
            arrived.await;
        }
    }

    fn append(&self, charge: &Charge) -> io::Result<()> {
        let line = format!("{}\n", charge.line());
        self.log.lock().write_all(line.as_bytes())
    }
}

/// One charge in the log of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Charge {
    /// A different id for every charge.
    pub(super) id: String,
    pub(super) order: PaymentOrder,
    /// The operation id in the request, if it had one.
    pub(super) operation: Option<String>,
}

impl Charge {
    /// Parses a line of the log.
    pub(super) fn read(line: &str) -> Option<Self> {
        let json: Value = serde_json::from_str(line).ok()?;
        Some(Self {
            id: json.get("charge")?.as_str()?.to_owned(),
            order: PaymentOrder::read(&json)?,
            operation: json.get("operation").and_then(Value::as_str).map(str::to_owned),
        })
    }

    /// Returns the line of the log.
    pub(super) fn line(&self) -> Value {
        let mut line = self.receipt();
        line["operation"] = json!(self.operation);
        line
    }

    /// Returns the receipt for the client.
    pub(super) fn receipt(&self) -> Value {
        json!({
            "charge": self.id,
            "payment": self.order.payment,
            "amount_cents": self.order.amount_cents,
            "nonce": self.order.nonce,
        })
    }
}
