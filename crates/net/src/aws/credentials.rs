use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_config::Region;
use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::provider_config::ProviderConfig;
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::{Error, ErrorKind, Result};
use tokio::sync::Mutex;

use super::lent::{LentHttp, LentRuntime};
use crate::http::HttpClient;

/// How long before their end credentials are renewed.
const EARLY: Duration = Duration::from_secs(300);

/// The pause between two tries to renew credentials that still hold.
const PAUSE: Duration = Duration::from_secs(10);

/// How long the search for credentials may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The credentials of a process for AWS. Clones share them.
///
/// They are renewed five minutes before they end. If that fails, the present ones are used to their end.
#[derive(Clone)]
pub struct AwsCredentials(Arc<CredentialSource>);

enum CredentialSource {
    Fixed(Credentials),
    Chain { provider: SharedCredentialsProvider, kept: Mutex<Option<KeptCredentials>>, runtime: Arc<dyn Runtime> },
}

/// What the provider gave last.
#[derive(Clone)]
struct KeptCredentials {
    credentials: Credentials,
    /// When they were last asked for, on the boot-time clock.
    asked: Duration,
    /// Whether the service does not take them any more.
    is_refused: bool,
}

impl AwsCredentials {
    /// Those of the usual places, of which the first one that has any counts: the environment, the profile, the file of
    /// a web identity, the agent of a container, and the metadata service of the machine. Nothing is asked for yet.
    ///
    /// `region` is where a role is assumed.
    pub async fn from_chain(region: &str, http: HttpClient, runtime: Arc<dyn Runtime>) -> Self {
        let lent = LentRuntime(Arc::clone(&runtime));
        let config = ProviderConfig::empty()
            .with_http_client(LentHttp::new(http))
            .with_time_source(lent.clone())
            .with_sleep_impl(lent);
        let chain = DefaultCredentialsChain::builder().configure(config).region(Region::new(region.to_owned()));
        Self::provided_by(chain.build().await, runtime)
    }

    /// Those of a stand-in for AWS that checks none.
    pub fn of_a_stand_in() -> Self {
        Self(Arc::new(CredentialSource::Fixed(Credentials::new("hapax", "hapax", None, None, "hapax"))))
    }

    pub(super) fn provided_by(provider: impl ProvideCredentials + 'static, runtime: Arc<dyn Runtime>) -> Self {
        let (provider, kept) = (SharedCredentialsProvider::new(provider), Mutex::new(None));
        Self(Arc::new(CredentialSource::Chain { provider, kept, runtime }))
    }

    /// The credentials for a request of now.
    ///
    /// # Errors
    /// `Unusable` if no place has any, `NotApplied` if a place cannot be asked now.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub(super) async fn current(&self) -> Result<Credentials> {
        let (provider, kept, runtime) = match &*self.0 {
            CredentialSource::Fixed(credentials) => return Ok(credentials.clone()),
            CredentialSource::Chain { provider, kept, runtime } => (provider, kept, runtime),
        };
        let mut kept = kept.lock().await;
        let now = runtime.boottime_now();
        if let Some(known) = &mut *kept {
            if known.is_fresh(now, &**runtime) {
                return Ok(known.credentials.clone());
            }
            known.asked = now;
        }
        let found = timeout(&**runtime, PATIENCE, provider.provide_credentials()).await;
        let found = found.unwrap_or_else(|| Err(CredentialsError::provider_timed_out(PATIENCE)));
        match (found, &*kept) {
            (Ok(credentials), _) => {
                *kept = Some(KeptCredentials { credentials: credentials.clone(), asked: now, is_refused: false });
                Ok(credentials)
            }
            (Err(_), Some(known)) if known.holds(&**runtime) => Ok(known.credentials.clone()),
            (Err(error), _) => Err(missing(error)),
        }
    }

    /// Notes that the service does not take these credentials any more.
    pub(super) async fn refused(&self, credentials: &Credentials) {
        if let CredentialSource::Chain { kept, .. } = &*self.0
            && let Some(known) = &mut *kept.lock().await
            && known.credentials.access_key_id() == credentials.access_key_id()
            && known.credentials.session_token() == credentials.session_token()
        {
            known.is_refused = true;
        }
    }
}

impl KeptCredentials {
    /// Whether they are used without asking for others.
    fn is_fresh(&self, now: Duration, runtime: &dyn Runtime) -> bool {
        let is_long = self.left(runtime).is_none_or(|left| left > EARLY);
        let has_just_asked = now.saturating_sub(self.asked) < PAUSE && self.holds(runtime);
        !self.is_refused && (is_long || has_just_asked)
    }

    /// Whether the service may still take them.
    fn holds(&self, runtime: &dyn Runtime) -> bool {
        !self.is_refused && self.left(runtime).is_none_or(|left| !left.is_zero())
    }

    /// How long they still hold. None: for ever.
    fn left(&self, runtime: &dyn Runtime) -> Option<Duration> {
        let now = UNIX_EPOCH + Duration::from_micros(runtime.wall_now().0);
        self.credentials.expiry().map(|end: SystemTime| end.duration_since(now).unwrap_or_default())
    }
}

fn missing(error: CredentialsError) -> Error {
    #[expect(clippy::wildcard_enum_match_arm, reason = "an enum of the library, which may grow")]
    let (kind, what) = match &error {
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
