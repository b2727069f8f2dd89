//! The clients. Each makes one payment with the faults of its [`ClientBehavior`].

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::client::{PaymentClient, RequestOutcome};
use super::client_log::{ClientLog, Exchange};
use super::pipeline::Shop;
use super::progress::Progress;
use super::random::{RandomStream, RandomTopic};
use super::response::ReceivedResponse;
use super::traffic::{ClientBehavior, HangUp, OrderVersion, Payment};

/// All clients of a run.
#[derive(Debug)]
pub(super) struct Customers(Vec<Arc<Customer>>);

impl Customers {
    /// Creates a client for each payment.
    pub(super) fn new(seed: u64, payments: u32, context: &Arc<CustomerContext>) -> Self {
        let customer = |number| {
            let payment = Payment::new(seed, number);
            let log = Mutex::new(ClientLog::new(payment.clone()));
            Arc::new(Customer { seed, context: Arc::clone(context), log, payment })
        };
        Self((0..payments).map(customer).collect())
    }

    /// Lets every client pay.
    pub(super) async fn pay(&self) -> anyhow::Result<()> {
        self.run_concurrently(|customer| async move { customer.pay().await }).await
    }

    /// Lets every client repeat its requests after the last crash.
    pub(super) async fn repeat(&self) -> anyhow::Result<()> {
        self.run_concurrently(|customer| async move { customer.repeat().await }).await
    }

    /// Returns the logs of all clients.
    pub(super) fn logs(&self) -> Vec<ClientLog> {
        self.0.iter().map(|customer| customer.log.lock().clone()).collect()
    }

    async fn run_concurrently<F>(&self, action: fn(Arc<Customer>) -> F) -> anyhow::Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut running = JoinSet::new();
        for customer in &self.0 {
            if running.len() == CONCURRENT_CLIENTS
                && let Some(ended) = running.join_next().await
            {
                ended.context("a client of the demo panicked")?;
            }
            running.spawn(action(Arc::clone(customer)));
        }
        while let Some(ended) = running.join_next().await {
            ended.context("a client of the demo panicked")?;
        }
        Ok(())
    }
}

const CONCURRENT_CLIENTS: usize = 32;

/// The parts that all clients share.
#[derive(Debug)]
pub(super) struct CustomerContext {
    client: PaymentClient,
    shop: Arc<Shop>,
    progress: Arc<Progress>,
    clock: AtomicU64,
}

impl CustomerContext {
    /// Clients send requests by `client`. Some of them wait until one has arrived at the shop.
    pub(super) fn new(client: PaymentClient, shop: Arc<Shop>, progress: Arc<Progress>) -> Arc<Self> {
        Arc::new(Self { client, shop, progress, clock: AtomicU64::new(0) })
    }

    /// Returns the time of a logical clock: a later call returns a larger number.
    fn next_time(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }
}

#[derive(Debug)]
struct Customer {
    seed: u64,
    payment: Payment,
    context: Arc<CustomerContext>,
    log: Mutex<ClientLog>,
}

impl Customer {
    async fn pay(&self) {
        self.context.progress.wait_for_turn(self.payment.number).await;
        if let Some(how) = self.payment.leaves {
            self.hang_up(how).await;
            self.context.progress.count_settled();
            return;
        }
        match self.payment.behavior {
            ClientBehavior::Plain => self.settle(OrderVersion::Original).await,
            ClientBehavior::Again { times } => self.settle_and_repeat(times).await,
            ClientBehavior::Concurrent { count } => {
                join_all((0..count).map(|_| self.settle(OrderVersion::Original))).await;
            }
            ClientBehavior::ChangedAfter => {
                self.settle(OrderVersion::Original).await;
                self.settle(OrderVersion::Changed).await;
            }
            ClientBehavior::ChangedMeanwhile => self.send_changed_meanwhile().await,
            ClientBehavior::HangUp(how) => {
                self.hang_up(how).await;
                self.settle(OrderVersion::Original).await;
            }
        }
        // The audit can only compare responses of a payment that was requested several times.
        while self.requests() < FIRST_REQUESTS {
            self.settle(OrderVersion::Original).await;
        }
        self.context.progress.count_settled();
    }

    async fn repeat(&self) {
        let requests = if self.payment.leaves.is_some() { 0 } else { LATER_REQUESTS };
        for _ in 0..requests {
            self.settle(OrderVersion::Original).await;
        }
        if requests > 0 && self.payment.has_changed_order() {
            self.settle(OrderVersion::Changed).await;
        }
        self.context.progress.count_repeated();
    }

    async fn settle_and_repeat(&self, times: u32) {
        for _ in 0..=times {
            self.settle(OrderVersion::Original).await;
        }
    }

    /// Sends the changed order after the service has received the original one. Otherwise the changed order could
    /// arrive first and be charged.
    async fn send_changed_meanwhile(&self) {
        let settled = CancellationToken::new();
        let order = async {
            self.settle(OrderVersion::Original).await;
            settled.cancel();
        };
        let changed = async {
            tokio::select! {
                () = self.context.shop.wait_for_request(self.payment.number) => {}
                () = settled.cancelled() => {}
            }
            self.settle(OrderVersion::Changed).await;
        };
        tokio::join!(order, changed);
    }

    /// Retries until it gets a final response.
    async fn settle(&self, version: OrderVersion) {
        let started = Instant::now();
        loop {
            let outcome = self.send(version).await;
            if outcome.response.is_final() {
                return;
            }
            if started.elapsed() > RETRY_LIMIT {
                self.log.lock().gave_up = true;
                return;
            }
            sleep(self.pause(&outcome)).await;
        }
    }

    async fn send(&self, version: OrderVersion) -> RequestOutcome {
        let sent_at = self.context.next_time();
        self.context.progress.count_request();
        let outcome = self.context.client.send(&self.payment, version).await;
        self.record(version, sent_at, outcome.response.clone());
        outcome
    }

    async fn hang_up(&self, how: HangUp) {
        let sent_at = self.context.next_time();
        self.context.progress.count_request();
        let response = self.context.client.hang_up(&self.payment, how).await;
        self.record(OrderVersion::Original, sent_at, response);
    }

    fn record(&self, version: OrderVersion, sent_at: u64, response: ReceivedResponse) {
        let received_at = self.context.next_time();
        self.log.lock().exchanges.push(Exchange { version, response, sent_at, received_at });
    }

    /// Returns the pause before a retry: Retry-After, but shortened, since a demo has to be short, and some jitter.
    fn pause(&self, outcome: &RequestOutcome) -> Duration {
        let instance = [self.payment.number.into(), self.requests() as u64];
        let jitter = RandomStream::new(self.seed, RandomTopic::RetryDelay, &instance).in_range(10, 40);
        let retry_after = outcome.retry_after.unwrap_or_default();
        retry_after.min(LONGEST_PAUSE) + Duration::from_millis(jitter)
    }

    fn requests(&self) -> usize {
        self.log.lock().requests()
    }
}

/// How long a client retries.
const RETRY_LIMIT: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The number of requests for every payment before the last crash, at least, and after it.
const FIRST_REQUESTS: usize = 3;
const LATER_REQUESTS: usize = 2;
