//! What can be set: plain data with units, validated as a whole.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{BoxError, Error, ErrorKind, Result};
use crate::key::OperationId;
use crate::machine::Lapse;
use crate::record::{Millis, Seconds};

/// Settings of a gate.
///
/// ```
/// use std::time::Duration;
/// use hapax_core::Settings;
///
/// let mut settings = Settings::default();
/// settings.max_in_flight = 100;
/// settings.policy.retention = Duration::from_secs(7 * 24 * 3600);
/// settings.validate()?;
///
/// settings.policy.lease = Duration::from_millis(1);
/// assert!(settings.validate().is_err());
/// # Ok::<(), hapax_core::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// How long one call to the store may take before its outcome counts as unknown. 1 s.
    pub store_timeout: Duration,
    /// How many attempts may run at once; further calls are refused as overloaded. 4,096.
    pub max_in_flight: usize,
    /// How many of them may be one tenant's. 1,024.
    pub max_in_flight_per_tenant: usize,
    /// How many copies of calls under way in this process may wait for them. 10,000.
    pub max_twins: usize,
    /// How many of them may wait for one key. 1,000.
    pub max_twins_per_key: usize,
    /// The policy of calls that bring none of their own.
    pub policy: Policy,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            store_timeout: Duration::from_secs(1),
            max_in_flight: 4096,
            max_in_flight_per_tenant: 1024,
            max_twins: 10_000,
            max_twins_per_key: 1000,
            policy: Policy::default(),
        }
    }
}

/// How long things last, and what follows a lapse.
///
/// ```
/// use std::time::Duration;
/// use hapax_core::{OnBusy, OnLapse, Policy, Repeatable};
///
/// let mut policy = Policy::default();
/// policy.on_busy = OnBusy::Wait(Duration::from_secs(5));
/// policy.on_lapse = OnLapse::Retry(Repeatable::declared("the provider knows its copies by the operation's id"));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Policy {
    /// How long a grant is believed without renewal; renewed every third of it. 30 s; at least 1 s.
    pub lease: Duration,
    /// How long an answer is replayed, from its completion. 24 h; at least the lease.
    pub retention: Duration,
    /// How long a record lives whose outcome is not known. 30 d; must be longer than the lease.
    pub unknown_retention: Duration,
    /// How long a released record keeps its fingerprint and token. 10 min; at least the lease.
    pub released_retention: Duration,
    /// How long a handler may run; after that its lease is no longer renewed and it is told to stop. 15 min.
    pub max_execution: Duration,
    /// What follows when a lease runs out. Hold.
    pub on_lapse: OnLapse,
    /// What a copy gets while the first still runs. Reject.
    pub on_busy: OnBusy,
    /// What happens while the store cannot be asked. Reject.
    pub on_store_down: OnStoreDown,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(24 * 3600),
            unknown_retention: Duration::from_secs(30 * 24 * 3600),
            released_retention: Duration::from_secs(600),
            max_execution: Duration::from_secs(15 * 60),
            on_lapse: OnLapse::Hold,
            on_busy: OnBusy::Reject,
            on_store_down: OnStoreDown::Reject,
        }
    }
}

/// What follows when a lease runs out and nobody knows whether the effect happened.
///
/// ```
/// use hapax_core::{OnLapse, Policy, Repeatable};
///
/// let mut policy = Policy::default();
/// // Its `upsert` can be carried out twice and leaves one row.
/// policy.on_lapse = OnLapse::Retry(Repeatable::declared("the row is written under the operation's id"));
/// ```
#[derive(Clone, Debug, Default)]
pub enum OnLapse {
    /// The key answers *outcome unknown* until somebody finds out.
    #[default]
    Hold,
    /// The next call runs the handler again.
    Retry(Repeatable),
    /// The next call asks whether it happened, and goes on from there.
    Resolve(Arc<dyn Probe>),
}

/// Finds out whether an operation happened: asks the processor of the effect, by the operation's derived id for instance.
///
/// ```
/// use async_trait::async_trait;
/// use hapax_core::{BoxError, Found, OperationId, Probe};
///
/// #[derive(Debug)]
/// struct Provider;
///
/// #[async_trait]
/// impl Probe for Provider {
///     async fn probe(&self, operation: OperationId) -> Result<Found, BoxError> {
///         match self.charge_by_transaction(&operation.to_string()).await? {
///             Some(charge) => Ok(Found::Done(charge.into())),
///             // Its books are written later: absent is not yet *not done*.
///             None => Ok(Found::Unknown),
///         }
///     }
/// }
/// # impl Provider {
/// #     async fn charge_by_transaction(&self, _: &str) -> Result<Option<String>, BoxError> { Ok(None) }
/// # }
/// ```
#[async_trait]
pub trait Probe: fmt::Debug + Send + Sync + 'static {
    /// What is known of the operation. Asked once at a time for each key of a process.
    ///
    /// `NotDone` makes it run again: say it only when the attempt before can no longer act, since a request that is still under way
    /// may arrive after the question.
    ///
    /// # Errors
    /// Any; counts as [`Found::Unknown`].
    ///
    /// # Cancel safety
    /// Dropped when it takes longer than the policy's lease.
    async fn probe(&self, operation: OperationId) -> Result<Found, BoxError>;
}

/// What a probe found.
///
/// ```
/// use hapax_core::Found;
/// use hapax_core::gate::Answer;
///
/// /// What the books of the provider say, which it closes every night.
/// fn found(charge: Option<String>, books_are_closed: bool) -> Found {
///     match charge {
///         Some(charge) => Found::Done(charge.encode()),
///         None if books_are_closed => Found::NotDone,
///         None => Found::Unknown,
///     }
/// }
/// assert_eq!(found(None, false), Found::Unknown);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It happened, and this is its answer, encoded as the gate's [`Answer`](crate::gate::Answer) encodes it.
    Done(Bytes),
    /// It did not happen.
    NotDone,
    /// Not known yet.
    Unknown,
}

/// What a copy of a call gets while the first still runs.
///
/// ```
/// use std::time::Duration;
/// use hapax_core::{OnBusy, Policy};
///
/// let mut policy = Policy::default();
/// // Clients that cannot come back get the answer on their first connection.
/// policy.on_busy = OnBusy::Wait(Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBusy {
    /// It is told to come back.
    #[default]
    Reject,
    /// It waits for the answer, at most this long, and is told to come back then.
    Wait(Duration),
}

/// What happens while the store cannot be asked.
///
/// ```
/// use hapax_core::{OnStoreDown, Policy, Repeatable};
///
/// let mut policy = Policy::default();
/// policy.on_store_down = OnStoreDown::Pass(Repeatable::declared("it only sends a reminder"));
/// ```
#[derive(Clone, Debug, Default)]
pub enum OnStoreDown {
    /// Calls are refused.
    #[default]
    Reject,
    /// The handler runs without a record, once per copy.
    Pass(Repeatable),
}

/// The word of whoever owns a route that its effect may safely be run again.
///
/// ```
/// use hapax_core::Repeatable;
///
/// let reminder = Repeatable::declared("a second reminder does no harm");
/// assert_eq!(reminder.reason(), "a second reminder does no harm");
/// ```
#[derive(Clone, Debug)]
pub struct Repeatable {
    reason: String,
}

impl Repeatable {
    /// Declares it, with the reason for those who read the configuration.
    pub fn declared(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }

    /// The declared reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl Settings {
    /// Looks for contradictions, as every gate does when it is built.
    ///
    /// # Errors
    /// `Invalid`, naming the setting and the remedy.
    pub fn validate(&self) -> Result<()> {
        if self.store_timeout.is_zero() {
            return Err(invalid(
                "store_timeout is zero; give it the time one call to the store may take, 1 s for instance",
            ));
        }
        if self.max_in_flight == 0 || self.max_in_flight_per_tenant == 0 {
            return Err(invalid("max_in_flight or max_in_flight_per_tenant is zero; nothing could ever run"));
        }
        Terms::try_from(&self.policy).map(drop)
    }
}

/// A policy in the units of records, validated.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) lease: Millis,
    pub(crate) retention: Seconds,
    pub(crate) unknown_retention: Seconds,
    pub(crate) released_retention: Seconds,
    pub(crate) max_execution: Duration,
    pub(crate) on_lapse: Lapse,
    pub(crate) probe: Option<Arc<dyn Probe>>,
    pub(crate) on_busy: OnBusy,
    /// Whether calls run without a record while the store is down.
    pub(crate) pass: bool,
    /// As it was given.
    pub(crate) policy: Policy,
}

impl TryFrom<&Policy> for Terms {
    type Error = Error;

    fn try_from(policy: &Policy) -> Result<Self> {
        if policy.lease < Duration::from_secs(1) {
            return Err(invalid("lease is shorter than 1 s; a grant could lapse between two renewals"));
        }
        if policy.lease >= policy.unknown_retention {
            return Err(invalid("unknown_retention is not longer than lease; a record must outlive its lease"));
        }
        if policy.retention < policy.lease {
            return Err(invalid(
                "retention is shorter than lease; a copy of the request that is still under way would run it again",
            ));
        }
        if policy.released_retention < policy.lease {
            return Err(invalid(
                "released_retention is shorter than lease; a record must outlive the requests that are still under way",
            ));
        }
        Ok(Self {
            lease: u32::try_from(policy.lease.as_millis())
                .map(Millis)
                .map_err(|_| invalid("lease is longer than 49 days"))?,
            retention: seconds(policy.retention, "retention is not between 1 s and 136 years")?,
            unknown_retention: seconds(policy.unknown_retention, "unknown_retention is not between 1 s and 136 years")?,
            released_retention: seconds(
                policy.released_retention,
                "released_retention is not between 1 s and 136 years",
            )?,
            max_execution: policy.max_execution,
            on_lapse: match policy.on_lapse {
                OnLapse::Hold | OnLapse::Resolve(_) => Lapse::Hold,
                OnLapse::Retry(_) => Lapse::Retry,
            },
            probe: match &policy.on_lapse {
                OnLapse::Resolve(probe) => Some(Arc::clone(probe)),
                OnLapse::Hold | OnLapse::Retry(_) => None,
            },
            on_busy: policy.on_busy,
            pass: matches!(policy.on_store_down, OnStoreDown::Pass(_)),
            policy: policy.clone(),
        })
    }
}

fn seconds(duration: Duration, message: &'static str) -> Result<Seconds> {
    match u32::try_from(duration.as_secs()) {
        Ok(seconds @ 1..) => Ok(Seconds(seconds)),
        Ok(0) | Err(_) => Err(invalid(message)),
    }
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
