//! The checks that a store must pass before it is used.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use bytes::Bytes;
use hapax::machine::{Begin, Begun, Claim, Complete, Grant, Lapse, Pinned};
use hapax::runtime::Runtime;
use hapax::store::{Finding, Protocol, Severity};
use hapax::{Call, Error, ErrorKind, Identity, Inspect, Key, Millis, Owner, Scope, Seconds, Store, Timestamp};
use tokio::time::timeout;

use crate::causes::in_words;

/// Checks whether a store is reliable, takes records, and was used with the same secret before.
#[derive(Clone, Debug)]
pub(crate) struct StoreChecks {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) inspect: Arc<dyn Inspect>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) namespace: String,
    /// The configured secret, if there is one.
    pub(crate) secret: Option<Identity>,
    /// Limit for each reply of the store.
    pub(crate) timeout: Duration,
}

/// Why a store cannot be used.
#[derive(Debug)]
pub(crate) enum CheckFailure {
    /// The store must not be used until an operator has changed something.
    Refused(anyhow::Error),
    /// The store cannot be used now, but that may change without an operator.
    Unreachable(anyhow::Error),
}

impl CheckFailure {
    /// One error whose message includes all causes.
    pub(crate) fn into_error(self) -> anyhow::Error {
        match self {
            Self::Refused(error) | Self::Unreachable(error) => anyhow!(in_words(error.as_ref())),
        }
    }
}

impl From<Error> for CheckFailure {
    fn from(error: Error) -> Self {
        // Errors of these kinds can go away by themselves.
        if matches!(error.kind(), ErrorKind::NotApplied | ErrorKind::Unknown | ErrorKind::Full) {
            Self::Unreachable(error.into())
        } else {
            Self::Refused(error.into())
        }
    }
}

/// How long a check of something else than records may take.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Waits for a check, but not for long. Returns all findings.
pub(crate) async fn within_limit(
    check: impl Future<Output = hapax::Result<Vec<Finding>>>,
) -> hapax::Result<Vec<Finding>> {
    let no_reply = |_| Err(Error::new(ErrorKind::NotApplied, "it does not reply"));
    timeout(TIME_LIMIT, check).await.unwrap_or_else(no_reply)
}

/// Waits for a check. Returns its warnings if nothing in it refuses the use.
pub(crate) async fn usable(
    check: impl Future<Output = hapax::Result<Vec<Finding>>>,
) -> Result<Vec<Finding>, CheckFailure> {
    let findings = within_limit(check).await?;
    match findings.iter().find(|finding| finding.severity == Severity::Refuse) {
        Some(refusal) => Err(CheckFailure::Refused(anyhow!("{}", refusal.message))),
        None => Ok(findings),
    }
}

impl StoreChecks {
    /// Runs all checks. Returns the warnings if the store can be used.
    pub(crate) async fn run(&self) -> Result<Vec<Finding>, CheckFailure> {
        // Comes first, because nothing must be written to a store that must not be used.
        let findings = self.findings().await?;
        if let Some(refusal) = findings.iter().find(|finding| finding.severity == Severity::Refuse) {
            return Err(CheckFailure::Refused(anyhow!("{}", refusal.message)));
        }
        self.pin_secret().await?;
        self.write_trial_record().await?;
        Ok(findings)
    }

    /// Detects a store that replies but takes no record, such as a read-only file.
    pub(crate) async fn write_trial_record(&self) -> Result<(), Error> {
        let begun = self.begin(trial_call(&*self.runtime, &self.namespace)?).await?;
        if let Begun::Granted(grant) | Begun::Mine(grant) = begun {
            self.complete(&grant).await?;
        }
        Ok(())
    }

    /// The findings of the store's own check.
    pub(crate) async fn findings(&self) -> Result<Vec<Finding>, Error> {
        self.with_timeout(self.inspect.check()).await
    }

    /// The number of records with an unknown outcome, if the store can count them.
    pub(crate) async fn count_unknown(&self) -> Result<Option<u64>, Error> {
        self.with_timeout(self.inspect.count_unknown()).await
    }

    async fn with_timeout<T>(&self, reply: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let no_reply = |_| Err(Error::new(ErrorKind::Unknown, "the store does not reply"));
        timeout(self.timeout, reply).await.unwrap_or_else(no_reply)
    }

    /// Records the secret of the namespace, or compares it with the recorded one. Under another secret every retry
    /// would look new.
    async fn pin_secret(&self) -> Result<(), CheckFailure> {
        // For the identity without a secret, `pin` records nothing and only checks that no secret is recorded.
        let identity = self.secret.clone().unwrap_or_default();
        let (protocol, owner) = (Protocol::over(&*self.store), self.new_owner());
        let pinned = self.with_timeout(protocol.pin(&self.namespace, &identity, owner)).await?;
        let namespace = &self.namespace;
        match (pinned, &self.secret) {
            (Pinned::Yes, _) => Ok(()),
            (Pinned::Busy(_), _) => Err(CheckFailure::Unreachable(anyhow!(
                "another process is recording the secret of the namespace {namespace} at this moment"
            ))),
            (Pinned::OtherSecret, Some(_)) => Err(CheckFailure::Refused(anyhow!(
                "the namespace {namespace} has another secret than the one in --secrets; \
                 use that secret, or another namespace"
            ))),
            (Pinned::OtherSecret, None) => Err(CheckFailure::Refused(anyhow!(
                "the namespace {namespace} has a secret; name its file with --secrets, or use another namespace"
            ))),
            (Pinned::Unreadable, _) => Err(CheckFailure::Refused(anyhow!(
                "the record of the secret of the namespace {namespace} is dead or unknown; use another namespace"
            ))),
        }
    }

    fn new_owner(&self) -> Owner {
        let mut owner = Owner([0; 16]);
        self.runtime.fill_random(&mut owner.0);
        owner
    }

    async fn begin(&self, call: Call) -> Result<Begun, Error> {
        // The trial has no effect outside the store, so a lapsed attempt may be repeated.
        let (owner, on_lapse) = (self.new_owner(), Lapse::Retry);
        let ask = Begin { call, owner, lease: TRIAL_LEASE, unknown_retention: TRIAL_RETENTION, on_lapse };
        self.with_timeout(Protocol::over(&*self.store).begin(&ask)).await
    }

    async fn complete(&self, grant: &Grant) -> Result<(), Error> {
        let (claim, fingerprint) = (Claim::from(grant), grant.fingerprint);
        let ask = Complete {
            claim,
            fingerprint,
            answer: Bytes::new(),
            retention: TRIAL_RETENTION,
            ended: Timestamp(0),
            age: Duration::ZERO,
        };
        self.with_timeout(Protocol::over(&*self.store).complete(&grant.rk, &ask)).await.map(drop)
    }
}

/// A call with a random key, to find out whether a store takes records.
pub(crate) fn trial_call(runtime: &dyn Runtime, namespace: &str) -> Result<Call, Error> {
    let mut name = [0; 16];
    runtime.fill_random(&mut name);
    let name = format!("{:032x}", u128::from_be_bytes(name));
    Ok(Identity::plain().call(&Scope::tenant(namespace, "hapax/trial")?, &Key::new(name)?))
}

/// How long the record of a trial call lives.
pub(crate) const TRIAL_RETENTION: Seconds = Seconds(60);

/// The lease of a trial call.
const TRIAL_LEASE: Millis = Millis(30_000);
