//! Sends a request, and says whether a byte of it may have left.

use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::BoxError;
use hapax_core::runtime::{BoxFuture, Runtime, timeout};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::rt::Executor;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::webhook::addresses::CheckedResolver;

/// How long an idle connection stays open. Common servers close theirs after 5 s; a request must not hit a connection
/// that the receiver is closing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// How much of an answer is read, and for how long, so that its connection can be used again.
const READ_BODY: usize = 64 << 10;
const READ_TIME: Duration = Duration::from_secs(1);

/// The largest head of an answer.
const MAX_HEAD: usize = 64 << 10;

/// The connections to one endpoint, over HTTP/1.1. They use no proxy, and a redirect is an answer like any other.
pub(super) struct WebhookClient {
    client: Client<HttpsConnector<HttpConnector<CheckedResolver>>, WatchedBody>,
    time_limit: Duration,
    runtime: Arc<dyn Runtime>,
}

/// How a request ended.
#[derive(Debug)]
pub(super) enum RequestEnd {
    /// The head of an answer came.
    Answered(StatusCode, HeaderMap),
    /// Nothing of the request left.
    Unsent(BoxError),
    /// The request, or a part of it, may have reached the receiver.
    Cut(BoxError),
    /// The time was up; `sent`: whether a part of the request may have reached the receiver.
    TimedOut { sent: bool },
}

impl WebhookClient {
    pub(super) fn new(
        tls: ClientConfig,
        resolver: CheckedResolver,
        time_limit: Duration,
        runtime: Arc<dyn Runtime>,
    ) -> Self {
        let mut connector = HttpConnector::new_with_resolver(resolver);
        connector.set_nodelay(true);
        // Divided among the addresses of a host: the second one has its turn if the first one does not answer.
        connector.set_connect_timeout(Some(time_limit / 2));
        // Without this, the connector would refuse https URLs. The connector around it adds TLS.
        connector.enforce_http(false);
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(connector);
        let mut builder = Client::builder(RuntimeExecutor(Arc::clone(&runtime)));
        builder.pool_idle_timeout(IDLE_TIMEOUT).http1_max_buf_size(MAX_HEAD);
        Self { client: builder.build(connector), time_limit, runtime }
    }

    /// Sends a request, and waits for the head of its answer.
    ///
    /// # Cancel safety
    /// If dropped, the request may have reached the receiver.
    pub(super) async fn send(&self, request: Request<Bytes>) -> RequestEnd {
        let is_sent = Arc::new(AtomicBool::new(request.body().is_empty()));
        let request = request.map(|bytes| WatchedBody { bytes, is_sent: Arc::clone(&is_sent) });
        let sent = || is_sent.load(Ordering::Acquire);
        let answered = timeout(&*self.runtime, self.time_limit, self.client.request(request)).await;
        let response = match answered {
            None => return RequestEnd::TimedOut { sent: sent() },
            Some(Err(error)) if error.is_connect() || !sent() => return RequestEnd::Unsent(error.into()),
            Some(Err(error)) => return RequestEnd::Cut(error.into()),
            Some(Ok(response)) => response,
        };
        let (head, body) = response.into_parts();
        self.read(body).await;
        RequestEnd::Answered(head.status, head.headers)
    }

    /// Reads the rest of an answer. The status has decided; the connection can be used again only after the end.
    async fn read(&self, body: Incoming) {
        let _ = timeout(&*self.runtime, READ_TIME, Limited::new(body, READ_BODY).collect()).await;
    }
}

impl fmt::Debug for WebhookClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookClient").finish_non_exhaustive()
    }
}

/// A body that notes when the connection takes it. The head of its request is written just before that, so a request
/// whose body was not taken has not left.
///
/// An empty body is never taken. Its request counts as sent from the start.
struct WatchedBody {
    bytes: Bytes,
    is_sent: Arc<AtomicBool>,
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        this.is_sent.store(true, Ordering::Release);
        let bytes = std::mem::take(&mut this.bytes);
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

/// Runs the tasks of connections on the runtime of the relay.
#[derive(Clone)]
struct RuntimeExecutor(Arc<dyn Runtime>);

impl Executor<BoxFuture<'static, ()>> for RuntimeExecutor {
    fn execute(&self, task: BoxFuture<'static, ()>) {
        self.0.spawn(task);
    }
}

/// Trusts the authorities in this PEM file, or those of the system without a file.
///
/// # Errors
/// Why no authority can be used.
pub(super) fn tls(authorities: Option<&Path>) -> Result<ClientConfig, String> {
    let found = match authorities {
        Some(file) => read_authorities(file)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut roots = RootCertStore::empty();
    let (taken, _) = roots.add_parsable_certificates(found);
    if taken == 0 {
        return Err("no trusted authority was found; name a PEM file with some".into());
    }
    client_that_trusts(roots)
}

/// For an endpoint without TLS. The connector needs a configuration but never uses it.
pub(super) fn unused_tls() -> Result<ClientConfig, String> {
    client_that_trusts(RootCertStore::empty())
}

fn client_that_trusts(roots: RootCertStore) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn read_authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |error: &dyn fmt::Display| format!("{} has no authorities in PEM: {error}", file.display());
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))?;
    certificates.collect::<Result<_, _>>().map_err(|error| wrong(&error))
}
