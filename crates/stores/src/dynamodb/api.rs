//! The calls of DynamoDB, and the clock that their replies show.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::{Error, ErrorKind, Result, Timestamp};
use hapax_net::aws::{AwsArrival, AwsCall, AwsClient, AwsCredentials, AwsEndpoint, AwsFailure};
use hapax_net::http::{HttpClient, HttpSettings};
use hapax_net::tls::{self, ServerTrust, TlsFiles};
use serde_json::Value;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use super::answers::{Attributes, TableFailure, undated, unreadable};
use super::clock::{ClockRange, DatedReply, ServiceClock};
use super::request;
use super::url::DynamoDbUrl;
use crate::errors::{invalid, not_applied};

/// The result of a call.
pub(super) type TableResult<T> = Result<T, TableFailure>;

/// The largest answer: a page of a scan has up to a mebibyte, and one item more, in base64.
const MAX_ANSWER: usize = 4 << 20;

/// How many operations of a handle are in flight. Each has a connection of its own, or a few.
const MAX_CALLS: usize = 128;

/// How many replies are asked for to settle the clock.
const QUESTIONS: usize = 6;

/// The pause after three replies did not agree on the clock. Meanwhile a lease ends only when it has ended by both
/// clocks, and a write is stamped by the later one.
const PAUSE: Duration = Duration::from_secs(1);

/// A table, and who calls it. Clones share the connections.
#[derive(Clone)]
pub(super) struct TableApi(Arc<ApiParts>);

struct ApiParts {
    table: Arc<str>,
    /// Two, so that the clock can be read over two connections.
    clients: [AwsClient; 2],
    calls: Arc<Semaphore>,
    /// Its tasks run on the executor of this handle, and its clock is that of all handles.
    runtime: Arc<dyn Runtime>,
    shared: Arc<SharedParts>,
}

/// What all handles to a table share.
struct SharedParts {
    url: DynamoDbUrl,
    credentials: AwsCredentials,
    clock: ServiceClock,
    /// When the clock could not be settled, on the boot-time clock. Locked while it is being settled.
    unsettled: Mutex<Option<Duration>>,
}

impl TableApi {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// Those of the TLS library.
    pub(super) fn new(url: &DynamoDbUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let region = url.region();
        let credentials = match url.is_aws() {
            true => AwsCredentials::from_chain(region, http_client(url, &runtime)?, Arc::clone(&runtime)),
            false => AwsCredentials::of_a_stand_in(),
        };
        let (clock, unsettled) = (ServiceClock::default(), Mutex::default());
        Self::with(Arc::new(SharedParts { url: url.clone(), credentials, clock, unsettled }), runtime)
    }

    /// The same table, with connections of its own. The clock of the runtime is that of this handle.
    pub(super) fn dedicated(&self, runtime: Arc<dyn Runtime>) -> Result<Self> {
        Self::with(Arc::clone(&self.0.shared), runtime)
    }

    fn with(shared: Arc<SharedParts>, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let clients = [shared.client(&runtime)?, shared.client(&runtime)?];
        let (table, calls) = (shared.url.table().into(), Arc::new(Semaphore::new(MAX_CALLS)));
        Ok(Self(Arc::new(ApiParts { table, clients, calls, runtime, shared })))
    }

    pub(super) fn table(&self) -> &str {
        &self.0.table
    }

    pub(super) fn url(&self) -> &DynamoDbUrl {
        &self.0.shared.url
    }

    pub(super) fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.0.runtime
    }

    /// Waits until an operation may begin: there are few others, and the clock is known. The operation keeps the
    /// permit.
    ///
    /// # Errors
    /// `NotApplied` if others take too long; and as [`time`](Self::time).
    pub(super) async fn admit(&self) -> Result<OwnedSemaphorePermit> {
        let patience = self.url().limits().head;
        let permit = timeout(&**self.runtime(), patience, Arc::clone(&self.0.calls).acquire_owned()).await;
        let permit = permit.and_then(Result::ok);
        let permit = permit.ok_or_else(|| not_applied("too many calls of DynamoDB are in flight"))?;
        self.time().await?;
        Ok(permit)
    }

    /// Makes a call.
    ///
    /// # Cancel safety
    /// If dropped, the service may have done it.
    pub(super) async fn call(&self, operation: &'static str, body: &Value) -> TableResult<Attributes> {
        self.call_by(&self.0.clients[0], operation, body).await
    }

    async fn call_by(&self, client: &AwsClient, operation: &'static str, body: &Value) -> TableResult<Attributes> {
        // A request with a time that is far from that of the service is refused.
        let time = self.range().map(|range| range.earliest);
        let call = AwsCall { operation, body: Bytes::from(body.to_string()), limits: self.url().limits(), time };
        match client.call(&call).await {
            Ok(answer) => {
                self.observe(&answer.arrival);
                serde_json::from_slice(&answer.body).map_err(unreadable)
            }
            Err(failure) => {
                if let AwsFailure::Refused(refusal) = &failure {
                    self.observe(&refusal.arrival);
                }
                Err(TableFailure::of(failure))
            }
        }
    }

    fn observe(&self, arrival: &AwsArrival) {
        let &AwsArrival { sent, began: received, date, connection } = arrival;
        if let Some(date) = date {
            self.0.shared.clock.judge(&DatedReply { date, sent, received, connection });
        }
    }

    /// The instants that the clock of the service may show now. None before the first reply.
    pub(super) fn range(&self) -> Option<ClockRange> {
        self.0.shared.clock.range(self.runtime().boottime_now())
    }

    /// The clock of the service, for the condition of a write. Reads the clock first if it is not settled.
    ///
    /// # Errors
    /// `NotApplied` or `Unusable` if three replies have never agreed on it.
    pub(super) async fn time(&self) -> Result<ClockRange> {
        if !self.is_settled() {
            self.settle().await?;
        }
        let range = self.range().ok_or_else(undated)?; // D13
        match self.0.shared.clock.is_proven() {
            true => Ok(range),
            false => Err(not_applied("the answers of DynamoDB do not agree on the time yet; try again")),
        }
    }

    /// The instant of a write.
    pub(super) fn stamp(&self) -> Result<Timestamp> {
        self.0.shared.clock.stamp(self.runtime().boottime_now()).ok_or_else(undated)
    }

    fn is_settled(&self) -> bool {
        self.0.shared.clock.is_settled(self.runtime().boottime_now())
    }

    /// Asks over two connections until three replies agree on the clock.
    async fn settle(&self) -> Result<()> {
        let unsettled = &self.0.shared.unsettled;
        let mut unsettled = match unsettled.try_lock() {
            Ok(unsettled) => unsettled,
            // Another call asks meanwhile. Both clocks count until then.
            Err(_) if self.0.shared.clock.is_proven() => return Ok(()),
            Err(_) => unsettled.lock().await,
        };
        let now = self.runtime().boottime_now();
        let has_just_tried = unsettled.is_some_and(|tried| now.saturating_sub(tried) < PAUSE);
        if has_just_tried && self.range().is_some() {
            return Ok(());
        }
        let question = request::clock_question(self.table());
        for client in self.0.clients.iter().cycle().take(QUESTIONS) {
            if self.is_settled() {
                *unsettled = None;
                return Ok(());
            }
            if let Err(failure) = self.call_by(client, "GetItem", &question).await {
                let error = failure.into_error();
                if error.kind() == ErrorKind::Unusable || !self.0.shared.clock.is_proven() {
                    return Err(nothing_written(error));
                }
                // The other questions would fail alike.
                break;
            }
        }
        *unsettled = (!self.is_settled()).then(|| self.runtime().boottime_now());
        Ok(())
    }
}

impl SharedParts {
    fn client(&self, runtime: &Arc<dyn Runtime>) -> Result<AwsClient> {
        let uri = format!("{}/", self.url.endpoint()).parse();
        let uri = uri.map_err(|error| invalid("the endpoint of DynamoDB is no URI").caused_by(error))?;
        let (region, credentials) = (self.url.region().to_owned(), self.credentials.clone());
        let endpoint = AwsEndpoint { uri, region, service: "dynamodb", target: "DynamoDB_20120810", credentials };
        AwsClient::new(endpoint, http_client(&self.url, runtime)?, Arc::clone(runtime))
    }
}

fn http_client(url: &DynamoDbUrl, runtime: &Arc<dyn Runtime>) -> Result<HttpClient> {
    let tls = url.is_aws().then(|| tls::client_config(ServerTrust::Named, &TlsFiles::default())).transpose()?;
    let time_limit = url.limits().head;
    let settings = HttpSettings { tls, max_body: MAX_ANSWER, time_limit, ..HttpSettings::new(Arc::clone(runtime)) };
    HttpClient::new(settings)
}

/// The error of a question before a call that was not made.
fn nothing_written(error: Error) -> Error {
    if error.kind() == ErrorKind::Unusable {
        return error;
    }
    not_applied("the clock of DynamoDB cannot be read").caused_by(error)
}

impl fmt::Debug for TableApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableApi").field("url", &self.0.shared.url).finish_non_exhaustive()
    }
}
