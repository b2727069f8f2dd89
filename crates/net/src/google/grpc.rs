//! Calls and streams of a service, and what failures tell.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use hapax_core::runtime::{BoxFuture, Runtime, timeout};
use hapax_core::{BoxError, Error, ErrorKind, Result};
use http::HeaderValue;
use http::uri::PathAndQuery;
use hyper::rt::Executor;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use parking_lot::Mutex;
use prost::Message;
use tonic::client::Grpc;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, ConnectError, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::GoogleCredentials;
use super::credentials::AccessToken;
use crate::http::{HostResolver, SystemResolver};
use crate::tls::{self, ServerTrust, TlsFiles};

/// The largest message of an answer, in bytes. A stream of Pub/Sub brings several messages of ten megabytes at once.
const MAX_ANSWER: usize = 256 << 20;

/// The largest head and the largest trailers of an answer, in bytes. A refusal may name a thousand things in them.
const MAX_HEADER: u32 = 4 << 20;

/// How often a connection is asked whether it is there, and how long it may take to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_WITHIN: Duration = Duration::from_secs(10);

/// How much later than we the service ends a call that nobody waits for. It must not be the first one to do so: a
/// connection that gives no answer in time is left.
const NOTICE: Duration = Duration::from_millis(500);

/// A service of Google Cloud, or a stand-in.
#[derive(Clone, Debug)]
pub struct GoogleEndpoint {
    /// `https://HOST`, or `http://HOST:PORT` for a stand-in.
    pub uri: String,
    /// Those of a stand-in are never sent.
    pub credentials: GoogleCredentials,
    /// How long a connection may take.
    pub connect_within: Duration,
}

/// A service that is called over one connection. Clones share it.
#[derive(Clone)]
pub struct GoogleClient {
    connection: Arc<Mutex<Connection>>,
    endpoint: Endpoint,
    connector: HttpsConnector<HttpConnector<HostResolver>>,
    credentials: GoogleCredentials,
    runtime: Arc<dyn Runtime>,
}

/// The connection, and how many there were before it.
struct Connection {
    channel: Channel,
    number: u64,
}

/// A call, or the beginning of a stream.
#[derive(Clone, Debug)]
pub struct GoogleCall<Q> {
    /// The method: `/package.Service/Method`.
    pub path: &'static str,
    /// The field by which the service finds the place that answers, and its value.
    pub route: (&'static str, String),
    /// The message.
    pub request: Q,
    /// How long the answer may take. A stream has no limit.
    pub limit: Duration,
}

/// Why a call has no result.
#[derive(Debug)]
pub enum GoogleFailure {
    /// The service has answered with this status.
    Answered(GoogleStatus),
    /// Nothing was sent.
    NotSent(Error),
    /// The call may have reached the service.
    Unknown(BoxError),
}

/// The status with which a service has answered.
#[derive(Clone, Debug)]
pub struct GoogleStatus {
    /// The code.
    pub code: Code,
    /// The message of the service.
    pub message: String,
    /// The reasons of the service for each thing that the call names.
    pub details: BTreeMap<String, String>,
}

impl GoogleClient {
    /// A client without a connection. It connects with the first call, and again after each loss.
    ///
    /// # Errors
    /// `Invalid` if the endpoint is no URL, `Unusable` if the system has no authorities for TLS.
    pub fn new(endpoint: GoogleEndpoint, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let GoogleEndpoint { uri, credentials, connect_within } = endpoint;
        let mut connector = HttpConnector::new_with_resolver(HostResolver(Arc::new(SystemResolver)));
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(connect_within));
        // Without this, the connector would refuse https URLs. The connector around it adds TLS.
        connector.enforce_http(false);
        let mut tls = match uri.starts_with("https:") {
            true => tls::client_config(ServerTrust::Named, &TlsFiles::default())?,
            false => tls::unused_config()?,
        };
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let wrong = |error| Error::new(ErrorKind::Invalid, "the endpoint is no URL").caused_by(error);
        let channel = Endpoint::from_shared(uri).map_err(wrong)?;
        let channel = channel.executor(TaskExecutor(Arc::clone(&runtime)));
        let channel = channel.connect_timeout(connect_within).http2_keep_alive_interval(KEEP_ALIVE);
        let channel = channel.http2_max_header_list_size(MAX_HEADER);
        let endpoint = channel.keep_alive_timeout(KEEP_ALIVE_WITHIN).keep_alive_while_idle(true);
        let connector = HttpsConnector::from((connector, tls));
        let channel = endpoint.connect_with_connector_lazy(connector.clone());
        let connection = Arc::new(Mutex::new(Connection { channel, number: 0 }));
        Ok(Self { connection, endpoint, connector, credentials, runtime })
    }

    /// Makes a call, and returns its answer. The service learns how long we wait, and does nothing much later. If the
    /// service does not take the credentials, it tries others once.
    /// After a call without an answer in time, later calls take a new connection: the old one may be cut without a
    /// sign of it.
    ///
    /// # Errors
    /// Why there is no answer.
    ///
    /// # Cancel safety
    /// If dropped, the service may have done it.
    pub async fn call<Q, R>(&self, call: GoogleCall<Q>) -> Result<R, GoogleFailure>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let (is_sent, number) = (AtomicBool::new(false), self.connection.lock().number);
        let answer = self.authorized(|token| {
            let (call, is_sent) = (&call, &is_sent);
            Box::pin(async move {
                let mut request = Request::new(call.request.clone());
                authorize(request.metadata_mut(), token, &call.route)?;
                request.set_timeout(call.limit + NOTICE);
                is_sent.store(true, Ordering::Release);
                let (path, codec) = (PathAndQuery::from_static(call.path), ProstCodec::<Q, R>::default());
                let answer = self.grpc().await?.unary(request, path, codec).await;
                answer.map(tonic::Response::into_inner).map_err(failure)
            })
        });
        let late = || match is_sent.load(Ordering::Acquire) {
            true => GoogleFailure::Unknown(format!("no answer came within {:?}", call.limit).into()),
            false => GoogleFailure::NotSent(not_applied("credentials for Google Cloud are not found in time")),
        };
        let Some(answer) = timeout(&*self.runtime, call.limit, answer).await else {
            self.leave(number);
            return Err(late());
        };
        answer.map(|(answer, _)| answer)
    }

    /// Leaves a connection, unless another call has left it. Streams stay on it.
    fn leave(&self, number: u64) {
        let mut connection = self.connection.lock();
        if connection.number == number {
            let channel = self.endpoint.connect_with_connector_lazy(self.connector.clone());
            *connection = Connection { channel, number: number + 1 };
        }
    }

    /// Begins a stream in both directions with this message. `stopped` ends our direction. It returns when the service
    /// begins to answer, which it may do only with the first message.
    ///
    /// # Errors
    /// Why there is no stream.
    ///
    /// # Cancel safety
    /// If dropped, the service may have begun it, and notices its end.
    pub async fn stream<Q, R>(
        &self,
        call: GoogleCall<Q>,
        stopped: impl Fn() -> BoxFuture<'static, ()> + Send + Sync,
    ) -> Result<GoogleStream<R>, GoogleFailure>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let messages = self.authorized(|token| {
            let (call, stopped) = (&call, stopped());
            Box::pin(async move {
                let rest = stream::once(stopped).filter_map(|()| async { None });
                let mut request = Request::new(stream::iter([call.request.clone()]).chain(rest));
                authorize(request.metadata_mut(), token, &call.route)?;
                let (path, codec) = (PathAndQuery::from_static(call.path), ProstCodec::<Q, R>::default());
                self.grpc().await?.streaming(request, path, codec).await.map_err(failure)
            })
        });
        let (answer, token) = messages.await?;
        Ok(GoogleStream { messages: answer.into_inner(), credentials: self.credentials.clone(), token })
    }

    /// Tries with the present token, and once more with another one if the service does not take it. Returns the token,
    /// too.
    async fn authorized<'a, T>(
        &'a self,
        attempt: impl Fn(Option<HeaderValue>) -> BoxFuture<'a, Result<T, GoogleFailure>> + Send,
    ) -> Result<(T, Option<AccessToken>), GoogleFailure> {
        let mut is_second = false;
        loop {
            let token = self.credentials.current().await.map_err(GoogleFailure::NotSent)?;
            let sent = token.as_ref().map(AccessToken::header).transpose().map_err(GoogleFailure::NotSent)?;
            let failure = match attempt(sent).await {
                Ok(answer) => return Ok((answer, token)),
                Err(failure) => failure,
            };
            let is_refused = token.is_some_and(|token| failure.is_about_token() && self.credentials.refused(&token));
            if is_second || !is_refused {
                return Err(failure);
            }
            is_second = true;
        }
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, GoogleFailure> {
        let channel = self.connection.lock().channel.clone();
        let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_ANSWER);
        let unready = |error| GoogleFailure::NotSent(not_applied("Google Cloud cannot be reached").caused_by(error));
        grpc.ready().await.map_err(unready)?;
        Ok(grpc)
    }
}

/// The messages of a service.
pub struct GoogleStream<R> {
    messages: Streaming<R>,
    credentials: GoogleCredentials,
    token: Option<AccessToken>,
}

impl<R> GoogleStream<R> {
    /// The next message. None at the end of the stream.
    ///
    /// # Errors
    /// Why it has broken. A stream whose token is not taken any more has broken like others while another token may be
    /// found.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn next(&mut self) -> Result<Option<R>, GoogleFailure> {
        let failure = match self.messages.message().await {
            Ok(message) => return Ok(message),
            Err(status) => failure(status),
        };
        let token = self.token.as_ref().filter(|_| failure.is_about_token());
        if token.is_some_and(|token| self.credentials.refused(token)) {
            return Err(GoogleFailure::Unknown("the token of a stream is not taken any more".into()));
        }
        Err(failure)
    }
}

fn authorize(
    metadata: &mut MetadataMap,
    token: Option<HeaderValue>,
    (field, value): &(&str, String),
) -> Result<(), GoogleFailure> {
    let route = form_urlencoded::Serializer::new(String::new()).append_pair(field, value).finish();
    let unfit = |_| GoogleFailure::NotSent(not_applied("the name of a resource cannot be sent"));
    let route = HeaderValue::from_str(&route).map_err(unfit)?;
    let mut headers = std::mem::take(metadata).into_headers();
    headers.insert("x-goog-request-params", route);
    if let Some(token) = token {
        headers.insert(http::header::AUTHORIZATION, token);
    }
    *metadata = MetadataMap::from_headers(headers);
    Ok(())
}

fn failure(status: Status) -> GoogleFailure {
    let mut cause = status.source();
    if cause.is_none() {
        return GoogleFailure::Answered(GoogleStatus::of(&status));
    }
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return GoogleFailure::NotSent(not_applied("Google Cloud cannot be reached").caused_by(status));
        }
        cause = error.source();
    }
    GoogleFailure::Unknown(status.into())
}

impl GoogleFailure {
    fn is_about_token(&self) -> bool {
        matches!(self, Self::Answered(status) if status.code == Code::Unauthenticated)
    }
}

/// The message of a status as `google.rpc.Status` has it.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<RpcDetail>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RpcDetail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// The detail that names things: `google.rpc.ErrorInfo`.
#[derive(Clone, PartialEq, prost::Message)]
struct ErrorInfo {
    #[prost(btree_map = "string, string", tag = "3")]
    metadata: BTreeMap<String, String>,
}

impl GoogleStatus {
    fn of(status: &Status) -> Self {
        let details = RpcStatus::decode(status.details()).unwrap_or_default().details;
        let infos = details.iter().filter(|detail| detail.type_url.ends_with("/google.rpc.ErrorInfo"));
        let named = infos.filter_map(|detail| ErrorInfo::decode(&*detail.value).ok()).flat_map(|info| info.metadata);
        Self { code: status.code(), message: status.message().to_owned(), details: named.collect() }
    }
}

impl fmt::Display for GoogleStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, message, .. } = self;
        if message.is_empty() { write!(f, "{code:?}") } else { write!(f, "{code:?}: {message}") }
    }
}

/// The cause is the source.
impl fmt::Display for GoogleFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(status) => write!(f, "Google Cloud has answered a call with {status}"),
            Self::NotSent(error) => error.fmt(f),
            Self::Unknown(_) => f.write_str("Google Cloud did not confirm a call"),
        }
    }
}

impl StdError for GoogleFailure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Answered(_) => None,
            Self::NotSent(error) => error.source(),
            Self::Unknown(cause) => Some(&**cause),
        }
    }
}

impl fmt::Debug for GoogleClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GoogleClient").finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for GoogleStream<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GoogleStream").finish_non_exhaustive()
    }
}

/// Runs the tasks of connections.
struct TaskExecutor(Arc<dyn Runtime>);

impl Executor<BoxFuture<'static, ()>> for TaskExecutor {
    fn execute(&self, task: BoxFuture<'static, ()>) {
        self.0.spawn(task);
    }
}

fn not_applied(message: &'static str) -> Error {
    Error::new(ErrorKind::NotApplied, message)
}

#[cfg(test)]
mod tests;
