//! Calls whose bodies are JSON, and what their answers mean.

use std::error::Error as StdError;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use aws_credential_types::Credentials;
use bytes::Bytes;
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::{BoxError, Error, ErrorKind, Timestamp};
use http::header::{CONTENT_TYPE, DATE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use serde_json::Value;

use super::AwsCredentials;
use super::sign::UnsignedRequest;
use crate::http::{AnswerLimits, HttpClient, RequestFailure, connection_of};
use crate::xml;

/// The media type of a body.
const JSON: &str = "application/x-amz-json-1.0";

/// How far the clock of this host may be from that of a service before the service's is used. AWS takes five minutes.
const FAR: u64 = 60_000_000;

/// The codes of a service that finds the time or the signature of a request wrong.
const WRONG_TIME: &[&str] = &[
    "InvalidSignatureException",
    "RequestExpired",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "SignatureDoesNotMatchException",
];

/// The codes of a service that takes credentials no longer: they have ended, or the key is not in use any more.
const ENDED: &[&str] = &[
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidToken",
    "TokenRefreshRequired",
    "UnrecognizedClientException",
];

/// The longest message of a refusal, in characters.
const LONGEST_MESSAGE: usize = 500;

/// A service, and who calls it.
#[derive(Debug)]
pub struct AwsEndpoint {
    /// Where it is, for instance `https://sqs.eu-west-1.amazonaws.com/`.
    pub uri: Uri,
    /// The region in signatures.
    pub region: String,
    /// The name of the service in signatures, for instance `sqs`.
    pub service: &'static str,
    /// The prefix of the names of its operations, for instance `AmazonSQS`. Only calls in JSON have it.
    pub target: &'static str,
    /// Who calls it.
    pub credentials: AwsCredentials,
}

/// Calls a service of AWS. Clones share the connections.
///
/// It sends a call again only if the service has refused it: because of credentials that it takes no longer, once with
/// new ones, or because of the time, once with the time of the service.
#[derive(Clone, Debug)]
pub struct AwsClient(Arc<ClientParts>);

#[derive(Debug)]
struct ClientParts {
    endpoint: AwsEndpoint,
    host: String,
    http: HttpClient,
    /// What is added to the clock of this host, in microseconds.
    offset: AtomicI64,
    runtime: Arc<dyn Runtime>,
}

/// A call.
#[derive(Debug)]
pub struct AwsCall {
    /// The operation, for instance `SendMessageBatch`.
    pub operation: &'static str,
    /// The body in JSON.
    pub body: Bytes,
    /// How long its answer may take. The head with the search for credentials.
    pub limits: AnswerLimits,
    /// The clock of the service, if the caller knows it. The request is signed with this time.
    pub time: Option<Timestamp>,
}

/// A request without its signature. The field `host` is not among its own.
pub(crate) struct OutgoingCall {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) fields: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
    /// As in [`AwsCall::time`].
    pub(crate) time: Option<Timestamp>,
}

/// The answer to a call.
#[derive(Debug)]
pub struct AwsAnswer {
    /// The body in JSON.
    pub body: Bytes,
    /// How it came.
    pub arrival: AwsArrival,
}

/// When an answer came, over which connection, and what it says of the time.
#[derive(Clone, Copy, Debug, Default)]
pub struct AwsArrival {
    /// Before its request was sent, on the boot-time clock.
    pub sent: Duration,
    /// When it began to arrive, on the boot-time clock.
    pub began: Duration,
    /// The clock of the service in whole seconds, from the field `Date`. None if the answer has no such field.
    pub date: Option<Timestamp>,
    /// Our end of the connection.
    pub connection: Option<SocketAddr>,
}

/// Why a call has no result.
#[derive(Debug)]
pub enum AwsFailure {
    /// The service refused it, and did nothing.
    Refused(AwsRefusal),
    /// Nothing was sent, for instance because there are no credentials. Its kind is `NotApplied` or `Unusable`.
    NotSent(Error),
    /// The service may have done it.
    Unknown(BoxError),
}

/// What a service says of a call that it refuses.
#[derive(Default)]
pub struct AwsRefusal {
    /// The code, without the name of the service, for instance `QueueDoesNotExist`. `HTTP 404` for an answer that is
    /// none of AWS.
    pub code: String,
    /// Why, in the words of the service. Only the beginning: about a wrong signature a service repeats what was signed,
    /// with the session token.
    pub message: String,
    /// The whole body. Some refusals carry more than a message.
    pub body: Bytes,
    /// How it came.
    pub arrival: AwsArrival,
}

impl AwsClient {
    /// A client without connections.
    ///
    /// # Errors
    /// `Invalid` if the endpoint has no host.
    pub fn new(endpoint: AwsEndpoint, http: HttpClient, runtime: Arc<dyn Runtime>) -> hapax_core::Result<Self> {
        let host = endpoint.uri.authority().map(|authority| authority.as_str().to_owned());
        let host = host.ok_or_else(|| Error::new(ErrorKind::Invalid, "the endpoint of AWS has no host"))?;
        // As the HTTP client writes it.
        let port = endpoint.uri.port_u16();
        let is_usual = port == Some(if endpoint.uri.scheme_str() == Some("https") { 443 } else { 80 });
        let host =
            if is_usual { host.rsplit_once(':').map_or(host.clone(), |(name, _)| name.to_owned()) } else { host };
        Ok(Self(Arc::new(ClientParts { endpoint, host, http, offset: AtomicI64::new(0), runtime })))
    }

    /// Makes a call, and returns its answer.
    ///
    /// # Errors
    /// Why there is none.
    ///
    /// # Cancel safety
    /// If dropped, the service may have done it.
    pub async fn call(&self, call: &AwsCall) -> Result<AwsAnswer, AwsFailure> {
        let AwsEndpoint { uri, target, .. } = &self.0.endpoint;
        let operation = format!("{target}.{}", call.operation);
        let fields = vec![(CONTENT_TYPE.as_str(), JSON.to_owned()), ("x-amz-target", operation)];
        let (uri, body, time) = (uri.clone(), call.body.clone(), call.time);
        let request = OutgoingCall { method: Method::POST, uri, fields, body, time };
        let (response, arrival) = self.exchange(&request, call.limits).await?;
        Ok(AwsAnswer { body: response.into_body(), arrival })
    }

    /// Sends a request, and returns the answer of a service that has carried it out.
    ///
    /// # Errors
    /// Why there is none.
    ///
    /// # Cancel safety
    /// If dropped, the service may have done it.
    pub(crate) async fn exchange(
        &self,
        request: &OutgoingCall,
        limits: AnswerLimits,
    ) -> Result<(Response<Bytes>, AwsArrival), AwsFailure> {
        let until = self.0.runtime.boottime_now() + limits.head;
        let limits = |left| AnswerLimits { head: left, ..limits };
        match self.attempt(request, (until, request.time), &limits).await {
            Ok(answer) => Ok(answer),
            // Without the time of the caller, which may be what the service has refused.
            Err(FailedAttempt { is_cured: true, .. }) => {
                self.attempt(request, (until, None), &limits).await.map_err(|failed| failed.failure)
            }
            Err(failed) => Err(failed.failure),
        }
    }

    async fn attempt(
        &self,
        request: &OutgoingCall,
        (until, time): (Duration, Option<Timestamp>),
        limits: &(impl Fn(Duration) -> AnswerLimits + Sync),
    ) -> Result<(Response<Bytes>, AwsArrival), FailedAttempt> {
        let parts = &*self.0;
        let left = || until.saturating_sub(parts.runtime.boottime_now());
        let credentials = timeout(&*parts.runtime, left(), parts.endpoint.credentials.current()).await;
        let credentials = credentials.unwrap_or_else(|| Err(slow_credentials())).map_err(AwsFailure::NotSent)?;
        let time = time.unwrap_or_else(|| parts.time());
        let signed = parts.signed(request, &credentials, time);
        let signed = signed.map_err(|error| AwsFailure::NotSent(unsignable(error)))?;
        let sent = parts.runtime.boottime_now();
        let (response, began) = parts.http.send_timed(signed, limits(left())).await.map_err(AwsFailure::from)?;
        let date = date_of(response.headers());
        let arrival = AwsArrival { sent, began, date, connection: connection_of(&response) };
        if response.status().is_success() {
            return Ok((response, arrival));
        }
        let (refusal, status) = (AwsRefusal::read(&response, arrival), response.status());
        if status.is_server_error() {
            return Err(AwsFailure::Unknown(format!("it answers {status}: {refusal}").into()).into());
        }
        let code = refusal.code.as_str();
        let is_cured = match ENDED.contains(&code) {
            true => parts.endpoint.credentials.refused(&credentials),
            // Another time, or another secret: a file may have been read while it was written.
            false => {
                WRONG_TIME.contains(&code)
                    && (parts.correct_time(time, date) || parts.endpoint.credentials.refused(&credentials))
            }
        };
        Err(FailedAttempt { failure: AwsFailure::Refused(refusal), is_cured })
    }
}

impl ClientParts {
    fn signed(&self, call: &OutgoingCall, by: &Credentials, time: Timestamp) -> Result<Request<Bytes>, BoxError> {
        let AwsEndpoint { region, service, .. } = &self.endpoint;
        let OutgoingCall { method, uri, body, .. } = call;
        let own = call.fields.iter().map(|(name, value)| (*name, &**value));
        let fields: Vec<_> = [(HOST.as_str(), &*self.host)].into_iter().chain(own).collect();
        let (uri_text, method) = (uri.to_string(), method.as_str());
        let unsigned = UnsignedRequest { method, uri: &uri_text, fields: &fields, body, region, service, time };
        let signature = unsigned.signature(by)?;
        let mut request = Request::builder().method(method).uri(uri.clone());
        for (name, value) in fields {
            request = request.header(name, value);
        }
        for (name, value) in signature {
            let mut value = HeaderValue::try_from(value)?;
            value.set_sensitive(true);
            request = request.header(name, value);
        }
        Ok(request.body(body.clone())?)
    }

    /// The time of the service, as far as it is known.
    fn time(&self) -> Timestamp {
        Timestamp(self.runtime.wall_now().0.saturating_add_signed(self.offset.load(Ordering::Relaxed)))
    }

    /// Takes over the time of a service that refuses a request of this time. Returns whether it is another one.
    fn correct_time(&self, signed: Timestamp, date: Option<Timestamp>) -> bool {
        let Some(date) = date else { return false };
        let micros = |time: Timestamp| i64::try_from(time.0).unwrap_or(i64::MAX);
        let (date, signed) = (micros(date), micros(signed));
        let is_far = date.abs_diff(signed) > FAR;
        if is_far {
            let now = micros(self.runtime.wall_now());
            self.offset.store(date.saturating_sub(now), Ordering::Relaxed);
        }
        is_far
    }
}

/// The time that an answer shows.
fn date_of(fields: &HeaderMap) -> Option<Timestamp> {
    let date = httpdate::parse_http_date(fields.get(DATE)?.to_str().ok()?).ok()?;
    Some(Timestamp(0).plus(date.duration_since(UNIX_EPOCH).ok()?))
}

/// An attempt that failed, and whether another one may succeed at once.
struct FailedAttempt {
    failure: AwsFailure,
    is_cured: bool,
}

impl From<AwsFailure> for FailedAttempt {
    fn from(failure: AwsFailure) -> Self {
        Self { failure, is_cured: false }
    }
}

impl From<RequestFailure> for AwsFailure {
    fn from(failure: RequestFailure) -> Self {
        match failure {
            RequestFailure::Unsent(_) | RequestFailure::TimedOut { sent: false, .. } => {
                Self::NotSent(Error::new(ErrorKind::NotApplied, "AWS cannot be reached").caused_by(failure))
            }
            RequestFailure::Cut(_) | RequestFailure::TimedOut { sent: true, .. } => Self::Unknown(failure.into()),
        }
    }
}

fn slow_credentials() -> Error {
    Error::new(ErrorKind::NotApplied, "credentials for AWS are not found in time")
}

fn unsignable(cause: BoxError) -> Error {
    Error::new(ErrorKind::Unusable, "a request to AWS cannot be signed").caused_by(cause)
}

impl AwsRefusal {
    fn read(response: &Response<Bytes>, arrival: AwsArrival) -> Self {
        let body: Value = serde_json::from_slice(response.body()).unwrap_or_default();
        let text = |json: [&str; 2], element| {
            let text = json.iter().find_map(|name| body.get(name)?.as_str()).map(str::to_owned);
            text.or_else(|| xml::text(&String::from_utf8_lossy(response.body()), element))
        };
        let code = text(["__type", "code"], "Code").map(|code| Self::short_code(&code).to_owned());
        let code = code.unwrap_or_else(|| format!("HTTP {}", response.status().as_u16()));
        let message = text(["message", "Message"], "Message").unwrap_or_default();
        Self { code, message: Self::beginning(&message), body: response.body().clone(), arrival }
    }

    /// The message without what was signed, and without the name of an object.
    fn beginning(message: &str) -> String {
        let line = message.lines().next().unwrap_or_default();
        let words = line.split("The Canonical String").next().unwrap_or_default();
        // The name of an object has a whole record key, which no log may show.
        let words = words.split(" on resource").next().unwrap_or_default();
        words.chars().take(LONGEST_MESSAGE).collect()
    }

    /// The code without the name of the service, which stands before a `#` or a `.`.
    pub fn short_code(code: &str) -> &str {
        code.rsplit(['#', '.']).next().unwrap_or(code)
    }
}

impl fmt::Display for AwsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, message, .. } = self;
        if message.is_empty() { f.write_str(code) } else { write!(f, "{code}: {message}") }
    }
}

/// Without the body, which may repeat what was signed.
impl fmt::Debug for AwsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, message, arrival, .. } = self;
        let mut shown = f.debug_struct("AwsRefusal");
        shown.field("code", code).field("message", message).field("arrival", arrival).finish_non_exhaustive()
    }
}

impl StdError for AwsRefusal {}

/// The cause is the source.
impl fmt::Display for AwsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "AWS refused a call: {refusal}"),
            Self::NotSent(error) => error.fmt(f),
            Self::Unknown(_) => f.write_str("AWS did not confirm a call"),
        }
    }
}

impl StdError for AwsFailure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Refused(_) => None,
            Self::NotSent(error) => error.source(),
            Self::Unknown(cause) => Some(&**cause),
        }
    }
}

#[cfg(test)]
mod tests;
