//! Access tokens, renewed before they end.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hapax_core::runtime::{BoxFuture, Runtime};
use hapax_core::{Error, ErrorKind, Result};
use http::HeaderValue;

use super::exchange::TokenExchange;
use super::places::{self, GooglePlaces};
use crate::http::{HttpClient, HttpSettings};
use crate::renewed::{FindCredentials, RenewedCredentials};
use crate::tls::{self, ServerTrust, TlsFiles};

/// The credentials of a process for Google Cloud. Clones share them.
///
/// They are renewed five minutes before they end, in the background. If that fails, the present ones are used to their
/// end.
#[derive(Clone)]
pub struct GoogleCredentials(Option<Arc<RenewedCredentials<TokenPlaces>>>);

/// An access token, as it is sent. Nothing prints it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct AccessToken {
    pub(super) text: Arc<str>,
    pub(super) end: SystemTime,
}

impl AccessToken {
    /// The value of the field `authorization`, which nothing prints.
    pub(super) fn header(&self) -> Result<HeaderValue> {
        let value = HeaderValue::from_str(&format!("Bearer {}", self.text));
        let mut value = value.map_err(|_| Error::new(ErrorKind::NotApplied, "the access token is no token"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Searches the usual places.
pub(super) struct TokenPlaces(GooglePlaces);

impl FindCredentials for TokenPlaces {
    type Found = AccessToken;
    type Failure = Error;

    fn find(&self) -> BoxFuture<'_, Result<AccessToken>> {
        Box::pin(self.0.find())
    }

    fn late(limit: Duration) -> Error {
        Error::new(ErrorKind::NotApplied, format!("no access token came within {limit:?}"))
    }

    fn broken() -> Error {
        Error::new(ErrorKind::NotApplied, "the search for an access token has panicked")
    }

    fn end(found: &AccessToken) -> Option<SystemTime> {
        Some(found.end)
    }

    fn is_same(one: &AccessToken, other: &AccessToken) -> bool {
        one == other
    }
}

impl GoogleCredentials {
    /// Those of the usual places, of which the first one that exists counts: the file that
    /// `GOOGLE_APPLICATION_CREDENTIALS` names, the file of `gcloud auth application-default login`, and the metadata
    /// server of the machine. Nothing is asked for yet. Files are read again at each search.
    ///
    /// # Errors
    /// `Unusable` if the system has no authorities for TLS.
    pub fn from_usual_places(runtime: Arc<dyn Runtime>) -> Result<Self> {
        let file = places::file_of_environment();
        let metadata = std::env::var("GCE_METADATA_HOST").ok().filter(|host| !host.is_empty());
        Self::from_places(file, metadata, runtime)
    }

    /// Those of this file, which has the form of a file of `GOOGLE_APPLICATION_CREDENTIALS`.
    ///
    /// # Errors
    /// As [`from_usual_places`](Self::from_usual_places).
    pub fn from_file(file: PathBuf, runtime: Arc<dyn Runtime>) -> Result<Self> {
        Self::from_places(Some(file), None, runtime)
    }

    /// None: a stand-in for a service of Google, which checks none.
    pub fn of_a_stand_in() -> Self {
        Self(None)
    }

    pub(super) fn from_places(
        file: Option<PathBuf>,
        metadata: Option<String>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self> {
        let tls = Some(tls::client_config(ServerTrust::Named, &TlsFiles::default())?);
        let http = HttpClient::new(HttpSettings { tls, ..HttpSettings::new(Arc::clone(&runtime)) })?;
        let exchange = TokenExchange::new(http, Arc::clone(&runtime));
        let places = TokenPlaces(GooglePlaces { file, metadata, exchange });
        Ok(Self(Some(Arc::new(RenewedCredentials::new(places, runtime)))))
    }

    /// The token for a request of now. It waits only if there is none that may hold. None for a stand-in.
    ///
    /// # Errors
    /// `Unusable` if a file cannot be used or is refused, `NotApplied` if no place can be asked now.
    ///
    /// # Cancel safety
    /// Safe to drop. The search goes on.
    pub(super) async fn current(&self) -> Result<Option<AccessToken>> {
        let Some(renewed) = &self.0 else { return Ok(None) };
        let found = renewed.current().await;
        let failed =
            |error: Arc<Error>| Error::new(error.kind(), "there is no access token for Google Cloud").caused_by(error);
        found.map(Some).map_err(failed)
    }

    /// Notes that the service does not take this token. Returns whether another one is searched for, which is done once
    /// in a while.
    pub(super) fn refused(&self, token: &AccessToken) -> bool {
        self.0.as_ref().is_some_and(|renewed| renewed.refused(token))
    }
}

/// Shows no token.
impl fmt::Debug for GoogleCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GoogleCredentials").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
