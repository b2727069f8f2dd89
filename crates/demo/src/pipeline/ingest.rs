//! The ingest service: puts every order that arrives into the queue of the workers. It knows nothing of retries: a copy
//! that reaches it becomes another message.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::places;
use super::rows::ENQUEUED;
use super::service::DemoServiceArgs;
use crate::random::{RandomStream, RandomTopic, fresh_seed};
use crate::server::{accept, busy, declined, failure, response, text};
use crate::traffic::{PaymentOrder, ServiceBehavior};

/// Serves requests for ever.
pub(super) async fn serve(args: &DemoServiceArgs) -> Result<()> {
    let ingest = Ingest::open(args).await?;
    let listener = TcpListener::bind(args.listen).await.context("the ingest service cannot listen")?;
    match accept(listener, Arc::new(ingest)).await {}
}

/// Where the ingest service writes requests down and puts its messages.
#[async_trait]
pub(super) trait Intake: Send + Sync + 'static {
    /// Writes the request down and, unless it is refused, puts its message into the queue. Returns its id.
    async fn take(&self, order: &PaymentOrder, operation: &str) -> Result<(i64, ServiceBehavior)>;
}

/// The ingest service.
pub(in super::super) struct Ingest {
    seed: u64,
    intake: Box<dyn Intake>,
    refusals: AtomicU64,
}

impl Ingest {
    async fn open(args: &DemoServiceArgs) -> Result<Self> {
        Ok(Self { seed: args.seed, intake: places::intake(args).await?, refusals: AtomicU64::new(0) })
    }

    /// Handles one request. It runs to its end even if the client closes the connection.
    pub(in super::super) async fn charge(&self, order: PaymentOrder, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let instance = [order.payment.into(), process::id().into()];
        let mut delay = RandomStream::new(self.seed, RandomTopic::ServiceDelay, &instance);
        // The pauses let crashes and closed connections happen both before and after the transaction.
        sleep(Duration::from_millis(delay.in_range(0, 8))).await;
        let operation = text(headers, "hapax-operation").unwrap_or_else(fresh_key);
        let Ok((request, behavior)) = self.intake.take(&order, &operation).await else {
            return failure();
        };
        sleep(Duration::from_millis(delay.in_range(0, 7))).await;
        match behavior {
            ServiceBehavior::Busy => busy(),
            ServiceBehavior::Decline => declined(&self.refusal(), &order),
            ServiceBehavior::ChargeAndFail => failure(),
            ServiceBehavior::Charge => response(StatusCode::ACCEPTED, &order.json("request", request)),
        }
    }

    /// Every refusal has its own number, so that the audit notices a second one for the same payment.
    fn refusal(&self) -> String {
        format!("{}_{}", process::id(), self.refusals.fetch_add(1, Ordering::Relaxed))
    }
}

/// What a request came to.
pub(super) fn result(behavior: ServiceBehavior) -> &'static str {
    match behavior {
        ServiceBehavior::Busy => "busy",
        ServiceBehavior::Decline => "declined",
        ServiceBehavior::Charge | ServiceBehavior::ChargeAndFail => ENQUEUED,
    }
}

/// The key of a message whose request came without an operation.
fn fresh_key() -> String {
    format!("{:016x}{:016x}", fresh_seed(), fresh_seed())
}
