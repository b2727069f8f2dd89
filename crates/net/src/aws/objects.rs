//! A bucket of S3, or of what speaks its protocol: five calls, each sent once.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind};
use http::header::CONTENT_TYPE;
use http::{Method, Response, Uri};

use super::json::OutgoingCall;
use super::sign::S3;
use super::{AwsClient, AwsCredentials, AwsEndpoint, AwsFailure, xml};
use crate::http::{AnswerLimits, HttpClient};

/// A bucket, and who uses it.
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
    client: AwsClient,
    /// Without a `/` at its end.
    base: String,
    limits: AnswerLimits,
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
    /// A client without connections. `limits` are those of each call.
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
        Ok(Self { client: AwsClient::new(endpoint, http, runtime)?, base, limits })
    }

    /// Writes an object. If there is one of this name, it is replaced.
    ///
    /// # Errors
    /// Why it may not be written.
    ///
    /// # Cancel safety
    /// If dropped, the object may be written.
    pub async fn put(&self, name: &str, body: Bytes) -> Result<(), AwsFailure> {
        self.call(Method::PUT, &self.object(name), body).await.map(|_| ())
    }

    /// Reads an object.
    ///
    /// # Errors
    /// Why it is not read. If there is none, the code of the refusal is `NoSuchKey`, or `AccessDenied` for a user who
    /// may not list the bucket.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn get(&self, name: &str) -> Result<Bytes, AwsFailure> {
        Ok(self.call(Method::GET, &self.object(name), Bytes::new()).await?.into_body())
    }

    /// Removes an object. It is no error if there is none.
    ///
    /// # Errors
    /// Why it may still be there.
    ///
    /// # Cancel safety
    /// If dropped, the object may be removed.
    pub async fn delete(&self, name: &str) -> Result<(), AwsFailure> {
        self.call(Method::DELETE, &self.object(name), Bytes::new()).await.map(|_| ())
    }

    /// Lists objects whose names begin with this, up to 1,000, from `next` of the part before on.
    ///
    /// # Errors
    /// Why they are not listed.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn list(&self, prefix: &str, from: Option<&str>) -> Result<ObjectNames, AwsFailure> {
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
    pub async fn lifecycle(&self) -> Result<Vec<LifecycleRule>, AwsFailure> {
        match self.call(Method::GET, "?lifecycle=", Bytes::new()).await {
            Ok(response) => Ok(LifecycleRule::read_all(&String::from_utf8_lossy(response.body()))),
            Err(AwsFailure::Refused(refusal)) if refusal.code == "NoSuchLifecycleConfiguration" => Ok(Vec::new()),
            Err(failure) => Err(failure),
        }
    }

    fn object(&self, name: &str) -> String {
        format!("/{name}")
    }

    async fn call(&self, method: Method, rest: &str, body: Bytes) -> Result<Response<Bytes>, AwsFailure> {
        // The path of a bucket with a host of its own is `/`.
        let is_own_host = !self.base.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
        let slash = if is_own_host && rest.starts_with('?') { "/" } else { "" };
        let uri = format!("{}{slash}{rest}", self.base).parse::<Uri>();
        let uri = uri.map_err(|error| AwsFailure::NotSent(unusable_name().caused_by(error)))?;
        let has_body = !body.is_empty();
        let fields = has_body.then(|| (CONTENT_TYPE.as_str(), "application/octet-stream".to_owned()));
        let request = OutgoingCall { method, uri, fields: fields.into_iter().collect(), body, time: None };
        let (response, _) = self.client.exchange(&request, self.limits).await?;
        Ok(response)
    }
}

impl LifecycleRule {
    /// Those that are in force and remove objects by their age.
    fn read_all(text: &str) -> Vec<Self> {
        let days = |of: &str, element, name| {
            xml::elements(of, element).find_map(|inside| xml::text(inside, name)?.parse::<u32>().ok())
        };
        let rule = |rule: &str| Self {
            prefix: xml::text(rule, "Prefix").unwrap_or_default(),
            is_partial: ["Tag", "ObjectSizeGreaterThan", "ObjectSizeLessThan"]
                .iter()
                .any(|name| xml::elements(rule, name).next().is_some()),
            days: days(rule, "Expiration", "Days"),
            noncurrent_days: days(rule, "NoncurrentVersionExpiration", "NoncurrentDays"),
        };
        let is_in_force = |rule: &&str| xml::text(rule, "Status").as_deref() == Some("Enabled");
        let rules = xml::elements(text, "Rule").filter(is_in_force).map(rule);
        rules.filter(|rule| rule.days.is_some() || rule.noncurrent_days.is_some()).collect()
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
