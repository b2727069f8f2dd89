use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_config::Region;
use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::provider_config::ProviderConfig;
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use hapax_core::runtime::{BoxFuture, Runtime};
use hapax_core::{Error, ErrorKind, Result};

use super::lent::{LentHttp, LentRuntime};
use crate::http::HttpClient;
use crate::renewed::{FindCredentials, RenewedCredentials};

/// The credentials of a process for AWS. Clones share them.
///
/// They are renewed five minutes before they end, in the background. If that fails, the present ones are used to their
/// end.
#[derive(Clone)]
pub struct AwsCredentials(CredentialSource);

#[derive(Clone)]
enum CredentialSource {
    Fixed(Credentials),
    Chain(Arc<RenewedCredentials<ChainPlaces>>),
}

/// The provider of a chain.
struct ChainPlaces(SharedCredentialsProvider);

impl FindCredentials for ChainPlaces {
    type Found = Credentials;
    type Failure = CredentialsError;

    fn find(&self) -> BoxFuture<'_, Result<Credentials, CredentialsError>> {
        Box::pin(self.0.provide_credentials())
    }

    fn late(limit: Duration) -> CredentialsError {
        CredentialsError::provider_timed_out(limit)
    }

    fn broken() -> CredentialsError {
        CredentialsError::unhandled("the search has panicked")
    }

    fn end(found: &Credentials) -> Option<SystemTime> {
        found.expiry()
    }

    fn is_same(one: &Credentials, other: &Credentials) -> bool {
        one.access_key_id() == other.access_key_id()
            && one.secret_access_key() == other.secret_access_key()
            && one.session_token() == other.session_token()
    }
}

impl AwsCredentials {
    /// Those of the usual places, of which the first one that has any counts: the environment, the profile, the file of
    /// a web identity, the agent of a container, and the metadata service of the machine. Nothing is asked for yet.
    /// Files are read again at each search.
    ///
    /// `region` is where a role is assumed.
    pub fn from_chain(region: &str, http: HttpClient, runtime: Arc<dyn Runtime>) -> Self {
        let places = UsualPlaces { region: Region::new(region.to_owned()), http, runtime: Arc::clone(&runtime) };
        Self::provided_by(places, runtime)
    }

    /// Those of a stand-in for AWS that checks none.
    pub fn of_a_stand_in() -> Self {
        Self::of_key("hapax", "hapax")
    }

    /// A key that never ends, and its secret.
    pub fn of_key(key: &str, secret: &str) -> Self {
        Self(CredentialSource::Fixed(Credentials::new(key, secret, None, None, "hapax")))
    }

    pub(super) fn provided_by(provider: impl ProvideCredentials + 'static, runtime: Arc<dyn Runtime>) -> Self {
        let places = ChainPlaces(SharedCredentialsProvider::new(provider));
        Self(CredentialSource::Chain(Arc::new(RenewedCredentials::new(places, runtime))))
    }

    /// The credentials for a request of now. It waits only if there are none that may hold.
    ///
    /// # Errors
    /// `Unusable` if no place has any, `NotApplied` if a place cannot be asked now.
    ///
    /// # Cancel safety
    /// Safe to drop. The search goes on.
    pub(super) async fn current(&self) -> Result<Credentials> {
        match &self.0 {
            CredentialSource::Fixed(credentials) => Ok(credentials.clone()),
            CredentialSource::Chain(chain) => chain.current().await.map_err(missing),
        }
    }

    /// Notes that the service does not take these credentials. Returns whether others are searched for, which is done
    /// once in a while.
    pub(super) fn refused(&self, credentials: &Credentials) -> bool {
        match &self.0 {
            CredentialSource::Fixed(_) => false,
            CredentialSource::Chain(chain) => chain.refused(credentials),
        }
    }
}

/// Builds the chain for each search: a chain reads the files of profiles once.
#[derive(Debug)]
struct UsualPlaces {
    region: Region,
    http: HttpClient,
    runtime: Arc<dyn Runtime>,
}

impl UsualPlaces {
    async fn find(&self) -> Result<Credentials, CredentialsError> {
        let lent = LentRuntime(Arc::clone(&self.runtime));
        let config = ProviderConfig::empty()
            .with_http_client(LentHttp::new(self.http.clone()))
            .with_time_source(lent.clone())
            .with_sleep_impl(lent);
        let chain = DefaultCredentialsChain::builder().configure(config).region(self.region.clone());
        chain.build().await.provide_credentials().await
    }
}

impl ProvideCredentials for UsualPlaces {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.find())
    }
}

fn missing(error: Arc<CredentialsError>) -> Error {
    #[expect(clippy::wildcard_enum_match_arm, reason = "an enum of the library, which may grow")]
    let (kind, what) = match &*error {
        CredentialsError::CredentialsNotLoaded(_) => (
            ErrorKind::Unusable,
            "no place has credentials for AWS: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, a web \
             identity, or a role of the container or the machine",
        ),
        CredentialsError::InvalidConfiguration(_) => {
            (ErrorKind::Unusable, "the settings of the credentials for AWS cannot be used")
        }
        _ => (ErrorKind::NotApplied, "the credentials for AWS cannot be asked for now"),
    };
    Error::new(kind, what).caused_by(error)
}

/// Shows no credential.
impl fmt::Debug for AwsCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsCredentials").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
