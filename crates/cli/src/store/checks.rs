//! What must be known of a store before it is used.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use bytes::Bytes;
use hapax::machine::{Begin, Begun, Claim, Complete, Grant, Lapse, Pinned};
use hapax::runtime::Runtime;
use hapax::store::{Finding, Protocol, Severity};
use hapax::{Call, Error, ErrorKind, Identity, Inspect, Key, Millis, Owner, Scope, Seconds, Store};
use tokio::time::timeout;

use crate::causes::in_words;
use crate::hex::hex;

/// Looks at a store: whether it is one to rely on, and whether the namespace has the secret that it began with.
#[derive(Clone, Debug)]
pub(crate) struct StoreChecks {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) inspect: Arc<dyn Inspect>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) namespace: String,
    /// The secret of the namespace, if it has one.
    pub(crate) secret: Option<Identity>,
    /// How long the store may take over each answer.
    pub(crate) timeout: Duration,
}

/// Why a store cannot be used.
#[derive(Debug)]
pub(crate) enum CheckFailure {
    /// It must not be, as things stand: somebody has to act.
    Refused(anyhow::Error),
    /// It cannot be asked now.
    Unreachable(anyhow::Error),
}

impl CheckFailure {
    /// With its causes in its own words.
    pub(crate) fn into_error(self) -> anyhow::Error {
        match self {
            Self::Refused(error) | Self::Unreachable(error) => anyhow!(in_words(error.as_ref())),
        }
    }
}

impl From<Error> for CheckFailure {
    fn from(error: Error) -> Self {
        // Only what passes by itself is waited for.
        if matches!(error.kind(), ErrorKind::NotApplied | ErrorKind::Unknown | ErrorKind::Full) {
            Self::Unreachable(error.into())
        } else {
            Self::Refused(error.into())
        }
    }
}

impl StoreChecks {
    /// Everything; what is worth a warning, if it may be used.
    pub(crate) async fn pass(&self) -> Result<Vec<Finding>, CheckFailure> {
        let findings = self.findings().await?;
        if let Some(refusal) = findings.iter().find(|finding| finding.severity == Severity::Refuse) {
            return Err(CheckFailure::Refused(anyhow!("{}", refusal.message)));
        }
        self.pin().await?;
        self.try_a_record().await?;
        Ok(findings)
    }

    /// A store may answer, and take nothing: a file that can only be read, for instance.
    async fn try_a_record(&self) -> Result<(), Error> {
        let begun = self.begin(trial(&*self.runtime, &self.namespace)?).await?;
        if let Begun::Granted(grant) | Begun::Mine(grant) = begun {
            self.record(&grant, TRIAL).await?;
        }
        Ok(())
    }

    /// What the store's own check finds.
    pub(crate) async fn findings(&self) -> Result<Vec<Finding>, Error> {
        self.in_time(self.inspect.check()).await
    }

    async fn in_time<T>(&self, asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let silent = |_| Err(Error::new(ErrorKind::Unknown, "the store does not answer"));
        timeout(self.timeout, asked).await.unwrap_or_else(silent)
    }

    /// Compares the secret of the namespace with the one in use: under another one every retry would look new.
    async fn pin(&self) -> Result<(), CheckFailure> {
        let identity = self.secret.clone().unwrap_or_default();
        let (protocol, owner) = (Protocol::over(&*self.store), self.new_owner());
        let pinned = self.in_time(protocol.pin(&self.namespace, &identity, owner)).await?;
        let namespace = &self.namespace;
        match (pinned, &self.secret) {
            (Pinned::Yes, _) => Ok(()),
            (Pinned::Busy(_), _) => Err(CheckFailure::Unreachable(anyhow!(
                "another process is just recording the secret of the namespace {namespace}"
            ))),
            (Pinned::OtherSecret, Some(_)) => Err(CheckFailure::Refused(anyhow!(
                "the namespace {namespace} has another secret than the one in --secrets; give it that one, or take another namespace"
            ))),
            (Pinned::OtherSecret, None) => Err(CheckFailure::Refused(anyhow!(
                "the namespace {namespace} has a secret; name its file by --secrets, or take another namespace"
            ))),
            (Pinned::Unreadable, _) => Err(CheckFailure::Refused(anyhow!(
                "the record of the secret of the namespace {namespace} is indeterminate or dead; take another namespace"
            ))),
        }
    }

    fn new_owner(&self) -> Owner {
        let mut owner = Owner([0; 16]);
        self.runtime.fill_random(&mut owner.0);
        owner
    }

    async fn begin(&self, call: Call) -> Result<Begun, Error> {
        // Retry: writing the same trial twice is harmless.
        let (owner, on_lapse) = (self.new_owner(), Lapse::Retry);
        let ask = Begin { call, owner, lease: TRIAL_LEASE, unknown_retention: TRIAL, on_lapse };
        self.in_time(Protocol::over(&*self.store).begin(&ask)).await
    }

    async fn record(&self, grant: &Grant, retention: Seconds) -> Result<(), Error> {
        let (claim, fingerprint) = (Claim::from(grant), grant.fingerprint);
        let ask = Complete { claim, fingerprint, answer: Bytes::new(), retention, age: Duration::ZERO };
        // Whoever else has recorded it meanwhile has recorded the same.
        self.in_time(Protocol::over(&*self.store).complete(&grant.rk, &ask)).await.map(drop)
    }
}

/// A call of a key that nobody else has, to see whether a store takes records.
pub(crate) fn trial(runtime: &dyn Runtime, namespace: &str) -> Result<Call, Error> {
    let mut name = [0; 16];
    runtime.fill_random(&mut name);
    let name = hex(&name);
    Ok(Identity::plain().call(&Scope::tenant(namespace, "hapax/trial")?, &Key::new(name)?))
}

/// How long the record of a trial lives.
pub(crate) const TRIAL: Seconds = Seconds(60);

/// How long the lease of a trial lasts.
const TRIAL_LEASE: Millis = Millis(30_000);
