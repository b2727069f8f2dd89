use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, Result, Token};
use hapax_net::aws::AwsCredentials;
#[cfg(feature = "gcs")]
use hapax_net::google::GoogleCredentials;
use hapax_net::http::{AnswerLimits, HttpClient, HttpSettings};
use hapax_net::objects::{BucketClient, BucketEndpoint, BucketFailure, LifecycleRule};
use hapax_net::tls::{self, ServerTrust};

use super::BucketUrl;
use crate::errors::invalid;

/// The largest object that is read, in bytes.
pub(super) const LARGEST: usize = 256 << 20;

/// Answers in a bucket. Clones share the connections.
///
/// Each call is sent once. A failure is of the kind `NotApplied`: nothing names an object that is not confirmed, and to
/// write the same answer again under its name is harmless.
#[derive(Clone)]
pub struct AnswerBucket {
    client: BucketClient,
    url: BucketUrl,
    kept_for: Option<Duration>,
    runtime: Arc<dyn Runtime>,
}

/// What a bucket has under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundObject {
    /// An object.
    Bytes(Bytes),
    /// Nothing.
    Missing,
}

impl AnswerBucket {
    /// A bucket with the credentials of the usual places of AWS, or of Google for its buckets. Connects to nothing yet.
    ///
    /// # Errors
    /// `Unusable` if a file that the URL names cannot be used, or the system has no authorities for TLS.
    pub fn new(url: &BucketUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let http = http_client(url, &runtime)?;
        #[cfg(feature = "gcs")]
        if url.is_google() {
            return Self::of_google(url, http, runtime);
        }
        let credentials = AwsCredentials::from_chain(url.region(), http.clone(), Arc::clone(&runtime));
        Self::with(url, credentials, http, runtime)
    }

    /// A bucket with this key and its secret. Connects to nothing yet.
    ///
    /// # Errors
    /// See [`AnswerBucket::new`].
    pub fn with_key(url: &BucketUrl, (key, secret): (&str, &str), runtime: Arc<dyn Runtime>) -> Result<Self> {
        let http = http_client(url, &runtime)?;
        Self::with(url, AwsCredentials::of_key(key, secret), http, runtime)
    }

    #[cfg(feature = "gcs")]
    fn of_google(url: &BucketUrl, http: HttpClient, runtime: Arc<dyn Runtime>) -> Result<Self> {
        // A stand-in without TLS gets no token.
        let credentials = match url.has_tls() {
            true => GoogleCredentials::from_usual_places(Arc::clone(&runtime))?,
            false => GoogleCredentials::of_a_stand_in(),
        };
        let client = BucketClient::of_google(&url.place(), credentials, limits_of(url), http, Arc::clone(&runtime));
        Ok(Self { client, url: url.clone(), kept_for: None, runtime })
    }

    fn with(url: &BucketUrl, credentials: AwsCredentials, http: HttpClient, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let uri = url.place().parse();
        let uri = uri.map_err(|error| invalid("the URL of the bucket is no URI").caused_by(error))?;
        let endpoint = BucketEndpoint { uri, region: url.region().to_owned(), credentials };
        let client = BucketClient::new(endpoint, limits_of(url), http, Arc::clone(&runtime))?;
        Ok(Self { client, url: url.clone(), kept_for: None, runtime })
    }

    /// The same bucket, for which [`check`](Self::check) wants lifecycle rules that keep an answer at least that long:
    /// its retention, the time for which an outcome may stay unknown before, and a day.
    #[must_use]
    pub fn kept_for(mut self, longest: Duration) -> Self {
        self.kept_for = Some(longest);
        self
    }

    pub(super) fn runtime(&self) -> &dyn Runtime {
        &*self.runtime
    }

    /// How long the bucket has to keep an answer, if that is known.
    pub(super) fn wanted_life(&self) -> Option<Duration> {
        self.kept_for
    }

    /// The URL of the bucket.
    pub fn url(&self) -> &BucketUrl {
        &self.url
    }

    /// Writes an object and waits until the bucket has confirmed it.
    ///
    /// # Errors
    /// `NotApplied` if the object may not be there.
    ///
    /// # Cancel safety
    /// If dropped, the object may be written.
    pub async fn put(&self, name: &str, answer: Bytes) -> Result<()> {
        self.client.put(name, answer).await.map_err(|failure| self.failed("does not take an answer", failure))
    }

    /// Reads an object.
    ///
    /// # Errors
    /// `NotApplied` if it is not known what is there.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn get(&self, name: &str) -> Result<FoundObject> {
        let failure = match self.client.get(name).await {
            Ok(bytes) => return Ok(FoundObject::Bytes(bytes)),
            Err(failure) => failure,
        };
        let code = failure.code();
        // A denied access may hide that there is no object. It may have many other causes, so only a list counts.
        if code == "NoSuchKey" || code == "AccessDenied" && self.is_unlisted(name).await {
            return Ok(FoundObject::Missing);
        }
        Err(self.failed("does not give an answer", failure))
    }

    /// Whether a list of the bucket shows that it has no object of this name.
    async fn is_unlisted(&self, name: &str) -> bool {
        let listed = self.client.list(name, None).await;
        listed.is_ok_and(|part| part.names.iter().all(|listed| listed != name))
    }

    /// The names of the objects in a folder that were written under this token or an earlier one.
    ///
    /// # Errors
    /// `NotApplied` if they are not known.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn names_up_to(&self, folder: &str, token: Token) -> Result<Vec<String>> {
        let (mut names, mut from) = (Vec::new(), None);
        loop {
            let listed = self.client.list(&format!("{folder}/"), from.as_deref()).await;
            let listed = listed.map_err(|failure| self.failed("does not list the answers of a record", failure))?;
            names.extend(
                listed.names.into_iter().filter(|name| written_under(name).is_some_and(|other| other <= token)),
            );
            match listed.next {
                Some(next) => from = Some(next),
                None => return Ok(names),
            }
        }
    }

    /// The rules of the bucket that remove objects by their age.
    ///
    /// # Errors
    /// `NotApplied` if they are not known, for instance because they must not be read.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub(super) async fn lifecycle(&self) -> Result<Vec<LifecycleRule>> {
        self.client.lifecycle().await.map_err(|failure| self.failed("does not show its lifecycle rules", failure))
    }

    /// Removes an object. It is no error if there is none.
    ///
    /// # Errors
    /// `NotApplied` if it may still be there.
    ///
    /// # Cancel safety
    /// If dropped, the object may be removed.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.client.delete(name).await.map_err(|failure| self.failed("does not remove an object", failure))
    }

    fn failed(&self, what: &str, failure: BucketFailure) -> Error {
        let error = Error::new(ErrorKind::NotApplied, format!("the bucket {} {what}", self.url));
        error.caused_by(failure).beside_store()
    }
}

/// The token in the name of an object: the 20 digits before the hash.
fn written_under(name: &str) -> Option<Token> {
    let (token, _) = name.rsplit('/').next()?.split_once('-')?;
    token.parse().ok().filter(|_| token.len() == 20).map(Token)
}

fn limits_of(url: &BucketUrl) -> AnswerLimits {
    AnswerLimits { head: url.timeout, body: url.timeout }
}

fn http_client(url: &BucketUrl, runtime: &Arc<dyn Runtime>) -> Result<HttpClient> {
    let tls = tls::client_config(ServerTrust::Named, &url.tls_files());
    // Without TLS for the bucket it is only for credentials, which may have places without TLS, too.
    let tls = if url.has_tls() { Some(tls?) } else { tls.ok() };
    let (max_body, time_limit) = (LARGEST, url.timeout);
    HttpClient::new(HttpSettings { tls, max_body, time_limit, ..HttpSettings::new(Arc::clone(runtime)) })
}

impl fmt::Debug for AnswerBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnswerBucket").field(&self.url).finish()
    }
}
