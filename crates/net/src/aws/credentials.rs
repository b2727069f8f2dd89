use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_config::Region;
use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::provider_config::ProviderConfig;
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::lent::{LentHttp, LentRuntime};
use crate::http::HttpClient;

/// How long before their end credentials are renewed.
const EARLY: Duration = Duration::from_secs(300);

/// The pause between two searches for credentials while the present ones may hold.
const PAUSE: Duration = Duration::from_secs(10);

/// How long the search for credentials may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The credentials of a process for AWS. Clones share them.
///
/// They are renewed five minutes before they end, in the background. If that fails, the present ones are used to their
/// end.
#[derive(Clone)]
pub struct AwsCredentials(CredentialSource);

#[derive(Clone)]
enum CredentialSource {
    Fixed(Credentials),
    Chain(Arc<Chain>),
}

struct Chain {
    provider: SharedCredentialsProvider,
    state: Mutex<ChainState>,
    /// Told at the end of each search.
    has_ended: Notify,
    runtime: Arc<dyn Runtime>,
}

#[derive(Default)]
struct ChainState {
    kept: Option<KeptCredentials>,
    /// Why the last search has found none. None if it has found some.
    failure: Option<Arc<CredentialsError>>,
    is_searching: bool,
    /// When the last search ended, on the boot-time clock.
    ended: Duration,
    /// When the service last refused credentials and others were searched for because of that.
    refused: Option<Duration>,
}

/// What a search has found.
struct KeptCredentials {
    credentials: Credentials,
    /// When, on the boot-time clock.
    found: Duration,
    /// Whether the service does not take them any more.
    is_refused: bool,
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
        let (provider, state) = (SharedCredentialsProvider::new(provider), Mutex::default());
        Self(CredentialSource::Chain(Arc::new(Chain { provider, state, has_ended: Notify::new(), runtime })))
    }

    /// The credentials for a request of now. It waits only if there are none that may hold.
    ///
    /// # Errors
    /// `Unusable` if no place has any, `NotApplied` if a place cannot be asked now.
    ///
    /// # Cancel safety
    /// Safe to drop. The search goes on.
    pub(super) async fn current(&self) -> Result<Credentials> {
        let chain = match &self.0 {
            CredentialSource::Fixed(credentials) => return Ok(credentials.clone()),
            CredentialSource::Chain(chain) => chain,
        };
        let mut has_waited = false;
        loop {
            // Before the look: an end in between is noticed.
            let ended = chain.has_ended.notified();
            if let Some(found) = chain.look(has_waited) {
                return found;
            }
            has_waited = true;
            ended.await;
        }
    }

    /// Notes that the service does not take these credentials. Returns whether others are searched for, which is done
    /// once in a while.
    pub(super) fn refused(&self, credentials: &Credentials) -> bool {
        let CredentialSource::Chain(chain) = &self.0 else { return false };
        let mut state = chain.state.lock();
        let now = chain.runtime.boottime_now();
        let has_searched = state.refused.is_some_and(|refused| now.saturating_sub(refused) < PAUSE);
        let ChainState { kept, refused, .. } = &mut *state;
        match kept {
            // Another call has noted it, or others were found meanwhile.
            Some(known) if known.is_refused || !known.is(credentials) => true,
            Some(known) if !has_searched => {
                (known.is_refused, *refused) = (true, Some(now));
                true
            }
            Some(_) | None => false,
        }
    }
}

impl Chain {
    /// The credentials, if nothing has to be waited for. Starts a search if it is time.
    fn look(self: &Arc<Self>, has_waited: bool) -> Option<Result<Credentials>> {
        let (mut state, now) = (self.state.lock(), self.runtime.boottime_now());
        let found = state.kept.as_ref().filter(|kept| kept.holds(now, &*self.runtime));
        let found = found.map(|kept| (kept.credentials.clone(), kept.is_long(&*self.runtime)));
        if let Some((credentials, true)) = found {
            return Some(Ok(credentials));
        }
        // A search that has failed meanwhile has failed for this caller, too.
        if let Some(failure) = state.failure.as_ref().filter(|_| has_waited && found.is_none()) {
            return Some(Err(missing(Arc::clone(failure))));
        }
        let has_just_ended = found.is_some() && now.saturating_sub(state.ended) < PAUSE;
        if !state.is_searching && !has_just_ended {
            state.is_searching = true;
            let chain = Arc::clone(self);
            self.runtime.spawn(Box::pin(async move { chain.search().await }));
        }
        found.map(|(credentials, _)| Ok(credentials))
    }

    async fn search(&self) {
        let found = timeout(&*self.runtime, PATIENCE, self.provider.provide_credentials()).await;
        let found = found.unwrap_or_else(|| Err(CredentialsError::provider_timed_out(PATIENCE)));
        let (mut state, now) = (self.state.lock(), self.runtime.boottime_now());
        (state.is_searching, state.ended) = (false, now);
        match found {
            Ok(credentials) => {
                state.kept = Some(KeptCredentials { credentials, found: now, is_refused: false });
                state.failure = None;
            }
            Err(error) => state.failure = Some(Arc::new(error)),
        }
        drop(state);
        self.has_ended.notify_waiters();
    }
}

impl KeptCredentials {
    fn is(&self, other: &Credentials) -> bool {
        let Self { credentials, .. } = self;
        credentials.access_key_id() == other.access_key_id()
            && credentials.secret_access_key() == other.secret_access_key()
            && credentials.session_token() == other.session_token()
    }

    /// Whether no others are searched for.
    fn is_long(&self, runtime: &dyn Runtime) -> bool {
        self.left(runtime).is_none_or(|left| left > EARLY)
    }

    /// Whether the service may take them. New ones also if they have ended by the clock of this host, which may be
    /// wrong.
    fn holds(&self, now: Duration, runtime: &dyn Runtime) -> bool {
        let is_new = now.saturating_sub(self.found) < PAUSE;
        !self.is_refused && (is_new || self.left(runtime).is_none_or(|left| !left.is_zero()))
    }

    /// How long they still hold. None: for ever.
    fn left(&self, runtime: &dyn Runtime) -> Option<Duration> {
        let now = UNIX_EPOCH + Duration::from_micros(runtime.wall_now().0);
        self.credentials.expiry().map(|end: SystemTime| end.duration_since(now).unwrap_or_default())
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
