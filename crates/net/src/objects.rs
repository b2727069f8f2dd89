//! A bucket of S3, of Google Cloud Storage, or of what else speaks the protocol of S3: five calls, each sent once.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use hapax_core::runtime::Runtime;
use hapax_core::{BoxError, Error, ErrorKind};
#[cfg(feature = "google")]
use http::Request;
use http::header::CONTENT_TYPE;
use http::{Method, Response, Uri};

use crate::aws::{AwsClient, AwsCredentials, AwsEndpoint, AwsFailure, OutgoingCall, S3};
#[cfg(feature = "google")]
use crate::google::{GoogleCredentials, GoogleObjects, NAME_IS_TAKEN, fields_of_a_write};
use crate::http::{AnswerLimits, HttpClient};
use crate::xml;

/// A bucket of S3, and who uses it.
#[derive(Debug)]
pub struct BucketEndpoint {
    /// Where it is, for instance `https://answers.s3.eu-west-1.amazonaws.com`, or `http://127.0.0.1:9000/answers`.
    pub uri: Uri,
    /// The region in signatures.
    pub region: String,
    /// The credentials with which calls are signed.
    pub credentials: AwsCredentials,
}

/// Puts objects into a bucket, gets and removes them. Clones share the connections.
///
/// A call is sent again only if the service has refused it because of the credentials or the time. The name of an
/// object has letters, digits and `-`, `_`, `.`, `=` and `/` only, so that nobody has to encode it.
#[derive(Clone, Debug)]
pub struct BucketClient {
    requests: BucketRequests,
    /// Without a `/` at its end.
    base: String,
    limits: AnswerLimits,
}

/// How requests are authorized and sent.
#[derive(Clone, Debug)]
enum BucketRequests {
    Aws(AwsClient),
    #[cfg(feature = "google")]
    Google(Box<GoogleObjects>),
}

/// Why a call has no result.
#[derive(Debug)]
pub struct BucketFailure {
    /// None if the bucket has refused nothing.
    code: Option<String>,
    cause: BoxError,
}

/// A part of the objects of a bucket.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ObjectNames {
    /// The names.
    pub names: Vec<String>,
    /// Where the next part begins. None if this is the last one.
    pub next: Option<String>,
}

/// A rule of a bucket about how long it keeps objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifecycleRule {
    /// The prefix of the names of its objects.
    pub prefix: String,
    /// Whether it is for some of these objects only: those with a tag or of a size.
    pub is_partial: bool,
    /// How many days after it was written an object is removed. None if the rule removes none by their age.
    pub days: Option<u32>,
    /// How many days an older version is kept. None if the rule removes none.
    pub noncurrent_days: Option<u32>,
}

impl BucketClient {
    /// A client of S3 without connections. `limits` are those of each call.
    ///
    /// # Errors
    /// `Invalid` if the endpoint has no host.
    pub fn new(
        endpoint: BucketEndpoint,
        limits: AnswerLimits,
        http: HttpClient,
        runtime: Arc<dyn Runtime>,
    ) -> hapax_core::Result<Self> {
        let BucketEndpoint { uri, region, credentials } = endpoint;
        let base = uri.to_string().trim_end_matches('/').to_owned();
        let endpoint = AwsEndpoint { uri, region, service: S3, target: "", credentials };
        Ok(Self { requests: BucketRequests::Aws(AwsClient::new(endpoint, http, runtime)?), base, limits })
    }

    /// A client of Google Cloud Storage without connections. `limits` are those of each call. `place` is where the
    /// bucket is, for instance `https://storage.googleapis.com/answers`.
    #[cfg(feature = "google")]
    pub fn of_google(
        place: &str,
        credentials: GoogleCredentials,
        limits: AnswerLimits,
        http: HttpClient,
        runtime: Arc<dyn Runtime>,
    ) -> Self {
        let base = place.trim_end_matches('/').to_owned();
        let requests = BucketRequests::Google(Box::new(GoogleObjects::new(credentials, http, runtime)));
        Self { requests, base, limits }
    }

    /// Writes an object. If there is one of this name, it is replaced. Google Cloud Storage does not replace it: the
    /// write succeeds if the same bytes are there.
    ///
    /// # Errors
    /// Why it may not be written.
    ///
    /// # Cancel safety
    /// If dropped, the object may be written.
    pub async fn put(&self, name: &str, body: Bytes) -> Result<(), BucketFailure> {
        match &self.requests {
            BucketRequests::Aws(_) => self.call(Method::PUT, &self.object(name), body).await.map(|_| ()),
            #[cfg(feature = "google")]
            BucketRequests::Google(_) => self.create(name, body).await,
        }
    }

    /// Writes an object of Google Cloud Storage. To replace one would need the right to remove it.
    #[cfg(feature = "google")]
    async fn create(&self, name: &str, body: Bytes) -> Result<(), BucketFailure> {
        let fields = fields_of_a_write(&body).into();
        match self.call_with(Method::PUT, &self.object(name), (body.clone(), fields)).await {
            Ok(_) => Ok(()),
            // An earlier try of this write may have had no answer.
            Err(failure) if failure.code() == NAME_IS_TAKEN => self.compare(name, &body).await,
            Err(failure) => Err(failure),
        }
    }

    #[cfg(feature = "google")]
    async fn compare(&self, name: &str, body: &Bytes) -> Result<(), BucketFailure> {
        if self.get(name).await? == *body {
            return Ok(());
        }
        let message = "another object has this name, and is not replaced";
        Err(BucketFailure::other(Error::new(ErrorKind::NotApplied, message)))
    }

    /// Reads an object.
    ///
    /// # Errors
    /// Why it is not read. If there is none, the code of the refusal is `NoSuchKey`, or `AccessDenied` for a user who
    /// may not list the bucket.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn get(&self, name: &str) -> Result<Bytes, BucketFailure> {
        Ok(self.call(Method::GET, &self.object(name), Bytes::new()).await?.into_body())
    }

    /// Removes an object. It is no error if there is none.
    ///
    /// # Errors
    /// Why it may still be there.
    ///
    /// # Cancel safety
    /// If dropped, the object may be removed.
    pub async fn delete(&self, name: &str) -> Result<(), BucketFailure> {
        match self.call(Method::DELETE, &self.object(name), Bytes::new()).await {
            Ok(_) => Ok(()),
            // S3 does not tell, and Google does.
            Err(failure) if failure.code() == "NoSuchKey" => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Lists objects whose names begin with this, up to 1,000, from `next` of the part before on.
    ///
    /// # Errors
    /// Why they are not listed.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn list(&self, prefix: &str, from: Option<&str>) -> Result<ObjectNames, BucketFailure> {
        let mut query = String::new();
        if let Some(from) = from {
            query = format!("continuation-token={}&", encoded(from));
        }
        let query = format!("?{query}list-type=2&prefix={}", encoded(prefix));
        let response = self.call(Method::GET, &query, Bytes::new()).await?;
        let text = String::from_utf8_lossy(response.body());
        let names = xml::elements(&text, "Contents").filter_map(|object| xml::text(object, "Key")).collect();
        let is_cut = xml::text(&text, "IsTruncated").as_deref() == Some("true");
        let next = xml::text(&text, "NextContinuationToken").filter(|_| is_cut);
        Ok(ObjectNames { names, next })
    }

    /// The rules of the bucket that are in force and remove objects by their age.
    ///
    /// # Errors
    /// Why they are not known.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn lifecycle(&self) -> Result<Vec<LifecycleRule>, BucketFailure> {
        match self.call(Method::GET, "?lifecycle=", Bytes::new()).await {
            Ok(response) => Ok(LifecycleRule::read_all(&String::from_utf8_lossy(response.body()))),
            Err(failure) if failure.code() == "NoSuchLifecycleConfiguration" => Ok(Vec::new()),
            Err(failure) => Err(failure),
        }
    }

    fn object(&self, name: &str) -> String {
        format!("/{name}")
    }

    async fn call(&self, method: Method, rest: &str, body: Bytes) -> Result<Response<Bytes>, BucketFailure> {
        self.call_with(method, rest, (body, Vec::new())).await
    }

    /// A call with a body and more fields of the head.
    async fn call_with(
        &self,
        method: Method,
        rest: &str,
        (body, mut fields): (Bytes, Vec<(&'static str, String)>),
    ) -> Result<Response<Bytes>, BucketFailure> {
        // The path of a bucket with a host of its own is `/`.
        let is_own_host = !self.base.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
        let slash = if is_own_host && rest.starts_with('?') { "/" } else { "" };
        let uri = format!("{}{slash}{rest}", self.base).parse::<Uri>();
        let uri = uri.map_err(|error| BucketFailure::other(unusable_name().caused_by(error)))?;
        if !body.is_empty() {
            fields.push((CONTENT_TYPE.as_str(), "application/octet-stream".to_owned()));
        }
        self.requests.send(OutgoingCall { method, uri, fields, body, time: None }, self.limits).await
    }
}

impl BucketRequests {
    async fn send(&self, call: OutgoingCall, limits: AnswerLimits) -> Result<Response<Bytes>, BucketFailure> {
        match self {
            Self::Aws(client) => Ok(client.exchange(&call, limits).await?.0),
            #[cfg(feature = "google")]
            Self::Google(objects) => {
                let OutgoingCall { method, uri, fields, body, .. } = call;
                let mut request = Request::builder().method(method).uri(uri);
                for (name, value) in fields {
                    request = request.header(name, value);
                }
                objects.exchange(request.body(body).map_err(BucketFailure::other)?, limits).await
            }
        }
    }
}

impl BucketFailure {
    #[cfg(feature = "google")]
    pub(crate) fn refused(code: String, cause: impl Into<BoxError>) -> Self {
        Self { code: Some(code), cause: cause.into() }
    }

    pub(crate) fn other(cause: impl Into<BoxError>) -> Self {
        Self { code: None, cause: cause.into() }
    }

    /// The code with which the bucket has refused the call. Empty if it has refused nothing.
    pub fn code(&self) -> &str {
        self.code.as_deref().unwrap_or_default()
    }
}

impl From<AwsFailure> for BucketFailure {
    fn from(failure: AwsFailure) -> Self {
        let code = match &failure {
            AwsFailure::Refused(refusal) => Some(refusal.code.clone()),
            AwsFailure::NotSent(_) | AwsFailure::Unknown(_) => None,
        };
        Self { code, cause: failure.into() }
    }
}

/// As its cause.
impl fmt::Display for BucketFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl StdError for BucketFailure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.source()
    }
}

impl LifecycleRule {
    /// Those that are in force and remove objects by their age, as S3 or Google Cloud Storage writes them.
    fn read_all(text: &str) -> Vec<Self> {
        let rules = xml::elements(text, "Rule").flat_map(|rule| match xml::elements(rule, "Condition").next() {
            Some(condition) => Self::read_google(rule, condition),
            None => Self::read_s3(rule).into_iter().collect(),
        });
        rules.filter(|rule| rule.days.is_some() || rule.noncurrent_days.is_some()).collect()
    }

    fn read_s3(rule: &str) -> Option<Self> {
        let days = |element, name| {
            xml::elements(rule, element).find_map(|inside| xml::text(inside, name)?.parse::<u32>().ok())
        };
        let is_in_force = xml::text(rule, "Status").as_deref() == Some("Enabled");
        is_in_force.then(|| Self {
            prefix: xml::text(rule, "Prefix").unwrap_or_default(),
            is_partial: ["Tag", "ObjectSizeGreaterThan", "ObjectSizeLessThan"]
                .iter()
                .any(|name| xml::elements(rule, name).next().is_some()),
            days: days("Expiration", "Days"),
            noncurrent_days: days("NoncurrentVersionExpiration", "NoncurrentDays"),
        })
    }

    /// A rule of Google Cloud Storage, once for each prefix that it names. It is for an object for which all of its
    /// conditions hold.
    fn read_google(rule: &str, condition: &str) -> Vec<Self> {
        if xml::elements(rule, "Action").all(|action| xml::elements(action, "Delete").next().is_none()) {
            return Vec::new();
        }
        const KNOWN: [&str; 4] = ["Age", "MatchesPrefix", "IsLive", "DaysSinceNoncurrentTime"];
        let number = |name| xml::text(condition, name).and_then(|days| days.parse::<u32>().ok());
        let prefixes: Vec<&str> = xml::elements(condition, "MatchesPrefix").collect();
        let prefixes = if prefixes.is_empty() { vec![""] } else { prefixes };
        let names = condition.split('<').filter_map(|part| part.split(['>', '/', ' ']).next()).map(str::trim);
        let is_partial = names.filter(|name| !name.is_empty()).any(|name| !KNOWN.contains(&name));
        // A rule for objects that are not live removes old versions.
        let is_old = xml::text(condition, "IsLive").as_deref() == Some("false");
        let noncurrent_days = number("DaysSinceNoncurrentTime").or_else(|| number("Age").filter(|_| is_old));
        let days = number("Age").filter(|_| noncurrent_days.is_none());
        let rule = |prefix: &str| Self { prefix: prefix.trim().to_owned(), is_partial, days, noncurrent_days };
        prefixes.into_iter().map(rule).collect()
    }
}

fn unusable_name() -> Error {
    Error::new(ErrorKind::Invalid, "the name of an object cannot be part of a URL")
}

/// A value in a query.
fn encoded(value: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    value.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests;
