//! Settings of a gate: plain data with units, and their limits.

mod limits;
mod setters;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{BoxError, Error};
use crate::key::OperationId;
use crate::ledger;
use crate::machine::Lapse;
use crate::record::{Millis, Seconds};

pub use limits::{InvalidSetting, SettingName};

/// Settings of a gate.
///
/// ```
/// use std::time::Duration;
/// use hapax::{Policy, Settings};
///
/// let policy = Policy::default().retention(Duration::from_secs(7 * 24 * 3600));
/// let settings = Settings::default().max_in_flight(100).policy(policy);
/// settings.validate()?;
///
/// let short = Policy::default().lease(Duration::from_millis(1));
/// assert!(settings.policy(short).validate().is_err());
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Timeout of one call to the store; after it the outcome of the call counts as unknown. Default: 1 s.
    ///
    /// A timeout that is longer than the lease is safe, but a lease then expires before its renewal times out.
    pub store_timeout: Duration,
    /// The number of attempts that may run at once; further calls are refused as overloaded. Default: 4,096.
    pub max_in_flight: usize,
    /// The number of attempts of one tenant that may run at once. Default: 1,024.
    pub max_in_flight_per_tenant: usize,
    /// The number of attempts of one origin that may run at once; at least one may. Default: no limit. See
    /// [`Call::origin`](crate::Call::origin).
    pub max_in_flight_per_origin: usize,
    /// The number of followers: calls that wait for an attempt of the same key in this process. Default: 10,000.
    pub max_followers: usize,
    /// The number of followers of one key. Default: 1,000.
    pub max_followers_per_key: usize,
    /// The policy of every call that has no policy of its own.
    pub policy: Policy,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            store_timeout: Duration::from_secs(1),
            max_in_flight: 4096,
            max_in_flight_per_tenant: 1024,
            max_in_flight_per_origin: usize::MAX,
            max_followers: 10_000,
            max_followers_per_key: 1000,
            policy: Policy::default(),
        }
    }
}

/// How long leases and records live, and what happens when a lease expires, a key is busy or the store is down.
///
/// ```
/// use std::time::Duration;
/// use hapax::{OnBusy, OnLapse, Policy, Repeatable};
///
/// let policy = Policy::default()
///     .on_busy(OnBusy::Wait(Duration::from_secs(5)))
///     .on_lapse(OnLapse::Retry(Repeatable::declared("the provider deduplicates by the operation id")));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Policy {
    /// How long a grant is valid without renewal; it is renewed every third of it. Default: 30 s. At least 1 s.
    pub lease: Duration,
    /// How long an answer is replayed, counted from its completion. Default: 24 h. At least the lease.
    pub retention: Duration,
    /// How long a final answer is replayed, one after which the effect never happens. Default: as long as any other
    /// answer. At least the lease.
    pub final_retention: Option<Duration>,
    /// How long a record lives whose outcome is unknown. Default: 30 days. At least 1 s longer than the lease.
    pub unknown_retention: Duration,
    /// How long a released record keeps its fingerprint and token. Default: 10 min. At least the lease.
    pub released_retention: Duration,
    /// How long a handler may run; then it is cancelled and its lease is no longer renewed. Default: 15 min.
    pub max_execution: Duration,
    /// How long a caller waits while the store does not confirm its answer. After that the journal keeps the answer,
    /// and the gate goes on in the background. Without a journal the caller waits for a lease. Default: 2 s; a longer
    /// time than the lease counts as the lease.
    pub record_patience: Duration,
    /// What happens after a lease has expired. Default: hold.
    pub on_lapse: OnLapse,
    /// What a retry gets while the first attempt still runs. Default: reject.
    pub on_busy: OnBusy,
    /// What happens to calls while the store is down. Default: reject.
    pub on_store_down: OnStoreDown,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(24 * 3600),
            final_retention: None,
            unknown_retention: Duration::from_secs(30 * 24 * 3600),
            released_retention: Duration::from_secs(600),
            max_execution: Duration::from_secs(15 * 60),
            record_patience: Duration::from_secs(2),
            on_lapse: OnLapse::Hold,
            on_busy: OnBusy::Reject,
            on_store_down: OnStoreDown::Reject,
        }
    }
}

/// What happens after a lease has expired and the outcome of its attempt is unknown.
///
/// ```
/// use hapax::{OnLapse, Policy, Repeatable};
///
/// // The handler upserts one row, so a second run changes nothing.
/// let repeatable = Repeatable::declared("the row is written under the operation's id");
/// let policy = Policy::default().on_lapse(OnLapse::Retry(repeatable));
/// ```
#[derive(Clone, Debug, Default)]
pub enum OnLapse {
    /// Every call gets *outcome unknown* until an operator or a late completion resolves the record.
    #[default]
    Hold,
    /// The next call runs the handler again.
    Retry(Repeatable),
    /// The next call asks the probe for the outcome: it replays the answer, runs the handler, or gets *outcome
    /// unknown*.
    Resolve(Arc<dyn Probe>),
}

/// Finds out whether an operation happened, for instance by asking the payment provider for the operation id.
///
/// ```
/// use async_trait::async_trait;
/// use hapax::{BoxError, Found, OperationId, Probe};
///
/// #[derive(Debug)]
/// struct Provider;
///
/// #[async_trait]
/// impl Probe for Provider {
///     async fn probe(&self, operation: OperationId) -> Result<Found, BoxError> {
///         match self.charge_by_transaction(&operation.to_string()).await? {
///             Some(charge) => Ok(Found::Done(charge.into())),
///             // The provider lists a charge late, so an absent one may still have happened.
///             None => Ok(Found::Unknown),
///         }
///     }
/// }
/// # impl Provider {
/// #     async fn charge_by_transaction(&self, _: &str) -> Result<Option<String>, BoxError> { Ok(None) }
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no probe",
    label = "does not implement `Probe`",
    note = "implement `hapax::Probe`, which asks the processor of the effect whether it happened"
)]
#[async_trait]
pub trait Probe: fmt::Debug + Send + Sync + 'static {
    /// Returns what is known about the operation. At most one probe runs at a time for each key of a process.
    ///
    /// `NotDone` makes the handler run again. Return it only if the earlier attempt can no longer act: a request of it
    /// that is still in flight may arrive after the probe.
    ///
    /// # Errors
    /// Any error counts as [`Found::Unknown`].
    ///
    /// # Cancel safety
    /// The future is dropped if it takes longer than the lease of the policy.
    async fn probe(&self, operation: OperationId) -> Result<Found, BoxError>;
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The operation happened. The answer is encoded as [`Answer`](crate::gate::Answer) encodes it.
    Done(Bytes),
    /// The operation did not happen.
    NotDone,
    /// The outcome is not known yet.
    Unknown,
}

/// What a retry of a call gets while the first attempt still runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBusy {
    /// The retry fails with *in progress* and is to be sent again later.
    #[default]
    Reject,
    /// The retry waits for the answer at most this long, then fails with *in progress*.
    Wait(Duration),
}

/// What happens to calls while the store is down.
#[derive(Clone, Debug, Default)]
pub enum OnStoreDown {
    /// Calls are refused.
    #[default]
    Reject,
    /// The handler runs without a record, once for every copy of a call.
    Pass(Repeatable),
}

/// The declaration of a route's owner that its handler may safely run more than once.
#[derive(Clone, Debug)]
pub struct Repeatable {
    reason: String,
}

impl Repeatable {
    /// Declares that the handler may run more than once, and why.
    pub fn declared(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }

    /// Declares that the handler may run more than once because it runs in a transaction of this ledger: a second run
    /// finds the ledger's row, and has no effect.
    ///
    /// ```
    /// use hapax::{OnLapse, OnStoreDown, Policy, Repeatable, ledger};
    ///
    /// # let ledger = ledger::Terms::new("transfers")?;
    /// let policy = Policy::default()
    ///     .on_lapse(OnLapse::Retry(Repeatable::behind(&ledger)))
    ///     .on_store_down(OnStoreDown::Pass(Repeatable::behind(&ledger)));
    /// # assert!(Repeatable::behind(&ledger).reason().contains("transfers"));
    /// # let _ = policy;
    /// # Ok::<(), hapax::Error>(())
    /// ```
    pub fn behind(ledger: &impl AsRef<ledger::Terms>) -> Self {
        let namespace = ledger.as_ref().namespace();
        Self::declared(format!("the handler runs in a transaction of the ledger `{namespace}`"))
    }

    /// The declared reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl Settings {
    /// Checks every limit, as [`Gate::builder`](crate::Gate::builder) does for the gate that it builds.
    ///
    /// # Errors
    /// The first limit that is broken. It converts into an [`Error`] of kind `Invalid`.
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        limits::check_settings(self)
    }
}

impl Policy {
    /// Checks every limit, as [`Gate::with`](crate::Gate::with) does.
    ///
    /// # Errors
    /// The first limit that is broken. It converts into an [`Error`] of kind `Invalid`.
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        limits::check_policy(self)
    }
}

/// A validated policy in the units of records.
#[derive(Clone, Debug)]
pub(crate) struct PolicyTerms {
    pub(crate) lease: Millis,
    pub(crate) retention: Seconds,
    pub(crate) final_retention: Seconds,
    pub(crate) unknown_retention: Seconds,
    pub(crate) released_retention: Seconds,
    pub(crate) max_execution: Duration,
    /// At most the lease.
    pub(crate) record_patience: Duration,
    pub(crate) on_lapse: Lapse,
    pub(crate) probe: Option<Arc<dyn Probe>>,
    pub(crate) on_busy: OnBusy,
    /// Whether calls run without a record while the store is down.
    pub(crate) pass: bool,
    /// The policy as the caller gave it.
    pub(crate) policy: Policy,
}

impl TryFrom<&Policy> for PolicyTerms {
    type Error = Error;

    fn try_from(policy: &Policy) -> Result<Self, Error> {
        policy.validate()?;
        // The limits keep all of these far below 32 bits, so nothing is cut off.
        let millis = |duration: Duration| Millis(u32::try_from(duration.as_millis()).unwrap_or(u32::MAX));
        let seconds = |duration: Duration| Seconds(u32::try_from(duration.as_secs()).unwrap_or(u32::MAX));
        Ok(Self {
            lease: millis(policy.lease),
            retention: seconds(policy.retention),
            final_retention: seconds(policy.final_retention.unwrap_or(policy.retention)),
            unknown_retention: seconds(policy.unknown_retention),
            released_retention: seconds(policy.released_retention),
            max_execution: policy.max_execution,
            record_patience: policy.record_patience.min(policy.lease),
            on_lapse: match policy.on_lapse {
                // A probe resolves a record that is indeterminate, so the begin holds it first.
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
