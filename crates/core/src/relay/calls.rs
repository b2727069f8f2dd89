//! The calls to database and sink that a relay waits for.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::error::{Error, ErrorKind, Result};
use crate::outbox::{Outbox, Published};
use crate::relay::claims::ClaimsReport;
use crate::relay::publisher::SentRow;
use crate::relay::reader::ReadReport;
use crate::relay::upkeep::UpkeepReport;
use crate::relay::writes::WriteReport;
use crate::runtime::{BoxFuture, Runtime, timeout};

/// How long one call to the outbox may take.
const CALL_WITHIN: Duration = Duration::from_secs(60);

/// The result of a call, for the part of the engine that made it.
pub(super) enum RelayReport {
    Claims(ClaimsReport),
    Read(ReadReport),
    Published(SentRow, Published),
    Write(WriteReport),
    Upkeep(UpkeepReport),
}

/// The calls that have not ended.
pub(super) struct RelayCalls {
    outbox: Arc<dyn Outbox>,
    runtime: Arc<dyn Runtime>,
    running: FuturesUnordered<BoxFuture<'static, RelayReport>>,
}

impl RelayCalls {
    pub(super) fn new(outbox: Arc<dyn Outbox>, runtime: Arc<dyn Runtime>) -> Self {
        Self { outbox, runtime, running: FuturesUnordered::new() }
    }

    pub(super) fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    pub(super) fn outbox(&self) -> &Arc<dyn Outbox> {
        &self.outbox
    }

    pub(super) fn now(&self) -> Duration {
        self.runtime.boottime_now()
    }

    pub(super) fn start(&mut self, call: impl Future<Output = RelayReport> + Send + 'static) {
        self.running.push(Box::pin(call));
    }

    /// Calls the database of the outbox, and waits for at most the time that one call has.
    pub(super) fn call_database<T: Send + 'static>(
        &mut self,
        call: impl Future<Output = Result<T>> + Send + 'static,
        report: impl FnOnce(Result<T>) -> RelayReport + Send + 'static,
    ) {
        let runtime = Arc::clone(&self.runtime);
        self.start(async move {
            let late = || Err(Error::new(ErrorKind::Unknown, "the outbox did not answer within a minute"));
            report(timeout(&*runtime, CALL_WITHIN, call).await.unwrap_or_else(late))
        });
    }

    /// Waits for the next report. Pending for ever if no call runs.
    pub(super) async fn next(&mut self) -> RelayReport {
        match self.running.next().await {
            Some(report) => report,
            None => std::future::pending().await,
        }
    }

    /// The report of another call that has ended by now.
    pub(super) fn next_ended(&mut self) -> Option<RelayReport> {
        self.running.next().now_or_never().flatten()
    }

    /// Waits for no call any more.
    pub(super) fn abandon(&mut self) {
        self.running.clear();
    }
}
