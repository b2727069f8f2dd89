//! One endpoint: its room, its client and its health.

use std::error::Error as StdError;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hapax_core::outbox::{OutgoingEvent, Published};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::store::{Finding, Severity};
use hapax_core::{Error, ErrorKind, Result};
use hapax_net::http::{HttpClient, HttpSettings, RequestFailure, ResolveHost};
use hapax_net::tls::{self, ServerTrust, TlsFiles};
use http::Uri;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use url::{Host, Url};

use crate::webhook::WebhookEndpoint;
use crate::webhook::addresses::{AllowedAddresses, CheckedResolver, NoAllowedAddress};
use crate::webhook::answers::{EventFate, RequestEnd, describe, judge};
use crate::webhook::health::{Admission, EndpointHealth, HealthChange, RequestTicket};
use crate::webhook::request::RequestTemplate;

/// So many events wait for the room of their endpoints at most. A relay publishes about as many at once.
const MAX_WAITING: usize = 1024;

/// How long the name of a host may take in a check, which a probe of health waits for.
const RESOLVED_WITHIN: Duration = Duration::from_secs(5);

/// When an event is tried again that found no room.
const WHILE_FULL: Duration = Duration::from_millis(100);

/// How much of an answer is read, of which only the head counts.
const MAX_ANSWER: usize = 64 << 10;

/// What all endpoints of a sink share.
pub(super) struct EndpointSurroundings {
    pub(super) resolver: Arc<dyn ResolveHost>,
    pub(super) runtime: Arc<dyn Runtime>,
    /// The number of endpoints.
    pub(super) count: usize,
}

pub(super) struct Endpoint {
    name: String,
    host: Host,
    allows_networks: bool,
    is_encrypted: bool,
    resolver: CheckedResolver,
    template: RequestTemplate,
    client: HttpClient,
    health: Mutex<EndpointHealth>,
    /// One for each request.
    permits: Semaphore,
    max_in_flight: u32,
    waiting: AtomicUsize,
    is_closed: AtomicBool,
    /// The share of this endpoint of [`MAX_WAITING`]. One that does not answer leaves the rest to the others.
    max_waiting: usize,
    time_limit: Duration,
    runtime: Arc<dyn Runtime>,
}

impl Endpoint {
    /// # Errors
    /// `Invalid` with the name of the endpoint, and what is wrong.
    pub(super) fn open(name: &str, config: &WebhookEndpoint, around: &EndpointSurroundings) -> Result<Self> {
        let invalid = |what: String| Error::new(ErrorKind::Invalid, format!("the endpoint `{name}`: {what}"));
        let allowed = AllowedAddresses::new(&config.allowed_networks).map_err(invalid)?;
        let allows_networks = allowed.has_networks();
        let (host, uri) = parse_url(config, &allowed).map_err(invalid)?;
        let max_in_flight = u32::try_from(config.max_in_flight).ok().filter(|room| (1..=10_000).contains(room));
        let max_in_flight = max_in_flight.ok_or_else(|| invalid("1 to 10,000 requests run at once".into()))?;
        if config.time_limit.is_zero() {
            return Err(invalid("a request needs a time limit above 0".into()));
        }
        let is_encrypted = uri.scheme_str() == Some("https");
        let files = TlsFiles { ca: config.authorities.clone(), identity: None };
        let tls = is_encrypted.then(|| tls::client_config(ServerTrust::Named, &files)).transpose();
        let resolver = CheckedResolver { resolver: Arc::clone(&around.resolver), allowed: Arc::new(allowed) };
        let client = HttpClient::new(HttpSettings {
            tls: tls.map_err(|error| invalid(error.to_string()))?,
            resolver: Arc::new(resolver.clone()),
            time_limit: config.time_limit,
            max_body: MAX_ANSWER,
            runtime: Arc::clone(&around.runtime),
        })?;
        Ok(Self {
            name: name.to_owned(),
            host,
            allows_networks,
            is_encrypted,
            resolver,
            template: RequestTemplate::new(uri, config).map_err(invalid)?,
            client,
            health: Mutex::default(),
            permits: Semaphore::new(config.max_in_flight),
            max_in_flight,
            waiting: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            max_waiting: MAX_WAITING / around.count.max(1),
            time_limit: config.time_limit,
            runtime: Arc::clone(&around.runtime),
        })
    }

    /// Sends the event, unless the endpoint is left alone now.
    ///
    /// # Cancel safety
    /// If dropped, the receiver may have the event.
    pub(super) async fn publish(&self, event: &OutgoingEvent) -> Published {
        if self.is_closed.load(Ordering::Acquire) {
            return closed();
        }
        let wait = self.health.lock().wait(self.runtime.boottime_now());
        if !wait.is_zero() {
            return self.left_alone(wait);
        }
        let Some(_permit) = self.permit().await else {
            let cause = not_applied(format!("the endpoint `{}` has no room for another request", self.name));
            return Published::NotPublished { after: WHILE_FULL, cause };
        };
        if self.is_closed.load(Ordering::Acquire) {
            return closed();
        }
        let request = match self.template.fill(event, self.runtime.wall_now()) {
            Ok(request) => request,
            Err(reason) => return Published::Refused(format!("the endpoint `{}`: {reason}", self.name)),
        };
        // Others may have found out meanwhile that it fails.
        let admission = self.health.lock().admit(self.runtime.boottime_now(), self.time_limit);
        let ticket = match admission {
            Admission::Start(ticket) => ticket,
            Admission::Wait(wait) => return self.left_alone(wait),
        };
        let end = self.client.send_for_head(request).await;
        self.take_end(ticket, event, end)
    }

    /// Waits for the room of a request, not longer than a request takes.
    async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(permit) = self.permits.try_acquire() {
            return Some(permit);
        }
        let _place = WaitingPlace::take(self)?;
        timeout(&*self.runtime, self.time_limit, self.permits.acquire()).await?.ok()
    }

    fn left_alone(&self, wait: Duration) -> Published {
        let cause = not_applied(format!("the endpoint `{}` is left alone for a while", self.name));
        Published::NotPublished { after: wait, cause }
    }

    fn take_end(&self, ticket: RequestTicket, event: &OutgoingEvent, end: RequestEnd) -> Published {
        let meaning = judge(&end, self.runtime.wall_now());
        let now = self.runtime.boottime_now();
        let (fate, change) = self.health.lock().take(ticket, event.id, meaning, now);
        let message = format!("the endpoint `{}`: {}", self.name, describe(&end));
        match change {
            HealthChange::None => {}
            HealthChange::Opened => {
                let (endpoint, cause) = (&self.name, source_of(&end));
                tracing::error!(endpoint, cause, "{message}; it gets one request at a time until it takes one");
            }
            HealthChange::Closed => tracing::info!(endpoint = self.name, "a webhook endpoint works again"),
        }
        match fate {
            EventFate::Taken => Published::Yes { caught: false },
            EventFate::NotTaken => {
                Published::NotPublished { after: meaning.after, cause: caused(ErrorKind::NotApplied, message, end) }
            }
            EventFate::Unknown => Published::Unknown(caused(ErrorKind::Unknown, message, end)),
            EventFate::NeverTaken => Published::Refused(message),
        }
    }

    /// Why nothing can be delivered now: the host cannot be resolved, or has no allowed address.
    pub(super) async fn undeliverable(&self) -> Option<String> {
        let Host::Domain(host) = &self.host else { return None };
        let found = timeout(&*self.runtime, RESOLVED_WITHIN, self.resolver.resolve(host)).await;
        let what = match found {
            Some(Ok(_)) => return None,
            Some(Err(error)) if NoAllowedAddress::is_cause_of(&error) => error.to_string(),
            Some(Err(error)) => format!("{host} cannot be resolved now: {error}"),
            None => format!("{host} cannot be resolved now: no answer in time"),
        };
        Some(format!("the endpoint `{}`: {what}", self.name))
    }

    /// Resolves the host, and checks its addresses.
    pub(super) async fn check(&self) -> Option<Finding> {
        let name = &self.name;
        if let Some(message) = self.undeliverable().await {
            // The events of this endpoint wait. Those of the others go on.
            return Some(Finding { severity: Severity::Warn, message });
        }
        let is_open = !self.is_encrypted && !self.allows_networks;
        let what = "events travel over the internet without encryption; use an https URL";
        is_open.then(|| Finding { severity: Severity::Warn, message: format!("the endpoint `{name}`: {what}") })
    }

    /// Waits for the requests that run, and starts no other one.
    pub(super) async fn close(&self) {
        // Those that wait for room get it before, and then do not start.
        self.is_closed.store(true, Ordering::Release);
        let _all = timeout(&*self.runtime, self.time_limit, self.permits.acquire_many(self.max_in_flight)).await;
        self.permits.close();
    }
}

/// One of the events that wait for room.
struct WaitingPlace<'a>(&'a AtomicUsize);

impl<'a> WaitingPlace<'a> {
    fn take(endpoint: &'a Endpoint) -> Option<Self> {
        let place = Self(&endpoint.waiting);
        // A place that is too much is given back when it is dropped.
        (endpoint.waiting.fetch_add(1, Ordering::AcqRel) < endpoint.max_waiting).then_some(place)
    }
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The host and the URL, if it may be used.
fn parse_url(config: &WebhookEndpoint, allowed: &AllowedAddresses) -> Result<(Host, Uri), String> {
    // The error shows no part of the URL: it may have a password.
    let url = Url::parse(&config.url).map_err(|error| format!("its URL cannot be read: {error}"))?;
    match url.scheme() {
        "https" => {}
        "http" if config.allow_http => {}
        "http" => return Err("its URL is not https, and http is not allowed".into()),
        _ => return Err("its URL is neither https nor http".into()),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("its URL has a user or a password; use a header instead".into());
    }
    if url.fragment().is_some() {
        return Err("its URL has a fragment, which is never sent".into());
    }
    let host = url.host().ok_or("its URL has no host")?.to_owned();
    let address = match &host {
        Host::Domain(_) => None,
        Host::Ipv4(address) => Some(IpAddr::from(*address)),
        Host::Ipv6(address) => Some(IpAddr::from(*address)),
    };
    // The connector does not resolve an address, so this is the only check of it.
    if let Some(address) = address.filter(|address| !allowed.allow(*address)) {
        return Err(format!("{address} is not a public address: allow its network, or correct the URL"));
    }
    let uri = url.as_str().parse().map_err(|_| "its URL cannot be used in a request")?;
    Ok((host, uri))
}

fn closed() -> Published {
    Published::NotPublished { after: Duration::ZERO, cause: not_applied("the sink is closed".into()) }
}

fn not_applied(message: String) -> Error {
    Error::new(ErrorKind::NotApplied, message)
}

fn caused(kind: ErrorKind, message: String, end: RequestEnd) -> Error {
    let error = Error::new(kind, message);
    match end {
        Err(RequestFailure::Unsent(cause) | RequestFailure::Cut(cause)) => error.caused_by(cause),
        Ok(_) | Err(RequestFailure::TimedOut { .. }) => error,
    }
}

/// The innermost cause, for a log line.
fn source_of(end: &RequestEnd) -> Option<String> {
    let mut innermost = end.as_ref().err()?.source()?;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    Some(innermost.to_string())
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("name", &self.name).finish_non_exhaustive()
    }
}
