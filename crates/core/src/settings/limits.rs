//! The limits of settings, each stated once. A configuration only adds where each value was given.

use std::fmt;
use std::time::Duration;

use super::{Policy, Settings};
use crate::error::{Error, ErrorKind};

/// A setting that has a limit: a field of [`Settings`] or [`Policy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SettingName {
    /// [`Settings::store_timeout`]
    StoreTimeout,
    /// [`Settings::max_in_flight`]
    MaxInFlight,
    /// [`Settings::max_in_flight_per_tenant`]
    MaxInFlightPerTenant,
    /// [`Policy::lease`]
    Lease,
    /// [`Policy::retention`]
    Retention,
    /// [`Policy::final_retention`]
    FinalRetention,
    /// [`Policy::unknown_retention`]
    UnknownRetention,
    /// [`Policy::released_retention`]
    ReleasedRetention,
    /// [`Policy::max_execution`]
    MaxExecution,
    /// [`Policy::record_patience`]
    RecordPatience,
}

impl SettingName {
    /// The name of the field.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StoreTimeout => "store_timeout",
            Self::MaxInFlight => "max_in_flight",
            Self::MaxInFlightPerTenant => "max_in_flight_per_tenant",
            Self::Lease => "lease",
            Self::Retention => "retention",
            Self::FinalRetention => "final_retention",
            Self::UnknownRetention => "unknown_retention",
            Self::ReleasedRetention => "released_retention",
            Self::MaxExecution => "max_execution",
            Self::RecordPatience => "record_patience",
        }
    }
}

impl fmt::Display for SettingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A limit that a setting breaks, and the reason for the limit.
///
/// ```
/// use std::time::Duration;
/// use hapax::Settings;
/// use hapax::settings::{InvalidSetting, SettingName};
///
/// let mut settings = Settings::default();
/// settings.policy.retention = Duration::from_secs(10);
/// let error = settings.validate().unwrap_err();
/// assert!(matches!(
///     error,
///     InvalidSetting::Contradiction { shorter: SettingName::Lease, longer: SettingName::Retention, .. }
/// ));
/// assert!(error.to_string().starts_with("lease must not be longer than retention: "));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidSetting {
    /// The setting is zero.
    #[non_exhaustive]
    Zero {
        /// The setting.
        setting: SettingName,
        /// Why it must not be zero.
        why: &'static str,
    },
    /// The setting is shorter than its lower limit.
    #[non_exhaustive]
    TooShort {
        /// The setting.
        setting: SettingName,
        /// The lower limit.
        least: Duration,
        /// Why there is a limit.
        why: &'static str,
    },
    /// The setting is longer than its upper limit.
    #[non_exhaustive]
    TooLong {
        /// The setting.
        setting: SettingName,
        /// The upper limit.
        most: Duration,
        /// Why there is a limit.
        why: &'static str,
    },
    /// One setting must not be longer than another one, less a margin.
    #[non_exhaustive]
    Contradiction {
        /// The setting that is too long, or
        shorter: SettingName,
        /// the setting that is too short.
        longer: SettingName,
        /// How much shorter the shorter one must be, at least.
        margin: Duration,
        /// Why they must not contradict each other.
        why: &'static str,
    },
}

impl InvalidSetting {
    /// The setting that breaks the limit; for a contradiction, the one that is too long.
    pub fn setting(&self) -> SettingName {
        match *self {
            Self::Zero { setting, .. } | Self::TooShort { setting, .. } | Self::TooLong { setting, .. } => setting,
            Self::Contradiction { shorter, .. } => shorter,
        }
    }

    /// The limit and its reason, to follow the name of the setting: `must be at least 1s: …`.
    pub fn limit(&self) -> String {
        match *self {
            Self::Zero { why, .. } => format!("must not be zero: {why}"),
            Self::TooShort { least, why, .. } => format!("must be at least {least:?}: {why}"),
            Self::TooLong { most, why, .. } => format!("must be at most {} days: {why}", most.as_secs() / DAY),
            Self::Contradiction { longer, margin: Duration::ZERO, why, .. } => {
                format!("must not be longer than {longer}: {why}")
            }
            Self::Contradiction { longer, margin, why, .. } => {
                format!("must be at least {margin:?} shorter than {longer}: {why}")
            }
        }
    }
}

impl fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.setting(), self.limit())
    }
}

impl std::error::Error for InvalidSetting {}

impl From<InvalidSetting> for Error {
    fn from(invalid: InvalidSetting) -> Self {
        Self::new(ErrorKind::Invalid, invalid.to_string())
    }
}

/// Checks the limits of the settings themselves, then those of their policy.
pub(super) fn check_settings(settings: &Settings) -> Result<(), InvalidSetting> {
    use SettingName::{MaxInFlight, MaxInFlightPerTenant, StoreTimeout};
    let zero = |setting, is_zero: bool, why| if is_zero { Err(InvalidSetting::Zero { setting, why }) } else { Ok(()) };
    zero(StoreTimeout, settings.store_timeout.is_zero(), "every call to the store would time out at once")?;
    zero(MaxInFlight, settings.max_in_flight == 0, "no handler could ever run")?;
    zero(MaxInFlightPerTenant, settings.max_in_flight_per_tenant == 0, "no handler could ever run")?;
    check_policy(&settings.policy)
}

/// Checks the limits of each setting of a policy, then the contradictions between them.
pub(super) fn check_policy(policy: &Policy) -> Result<(), InvalidSetting> {
    use SettingName::{
        FinalRetention, Lease, MaxExecution, RecordPatience, ReleasedRetention, Retention, UnknownRetention,
    };
    let Policy { lease, retention, unknown_retention, released_retention, max_execution, .. } = *policy;
    let final_retention = policy.final_retention.unwrap_or(retention);
    for (setting, duration, why) in [
        (MaxExecution, max_execution, "every handler would be cancelled at once"),
        (RecordPatience, policy.record_patience, "every answer would go to the journal"),
    ] {
        if duration.is_zero() {
            return Err(InvalidSetting::Zero { setting, why });
        }
    }
    if lease < SHORTEST_LEASE {
        let why = "a shorter lease could expire between two renewals";
        return Err(InvalidSetting::TooShort { setting: Lease, least: SHORTEST_LEASE, why });
    }
    for (setting, duration, most, why) in [
        (Lease, lease, LONGEST_LEASE, "a record stores its lease as a 32-bit number of milliseconds"),
        (Retention, retention, LONGEST_LIFE, EXPIRY_IS_32_BITS),
        (FinalRetention, final_retention, LONGEST_LIFE, EXPIRY_IS_32_BITS),
        (UnknownRetention, unknown_retention, LONGEST_LIFE, EXPIRY_IS_32_BITS),
        (ReleasedRetention, released_retention, LONGEST_LIFE, EXPIRY_IS_32_BITS),
    ] {
        if duration > most {
            return Err(InvalidSetting::TooLong { setting, most, why });
        }
    }
    // Lifetimes are stored in whole seconds, so a record outlives its lease for certain only with a second to spare.
    let spare = Duration::from_secs(1);
    for (longer, duration, margin, why) in [
        (Retention, retention, Duration::ZERO, "a retry that is still in flight would run the request again"),
        (
            FinalRetention,
            final_retention,
            Duration::ZERO,
            "a retry that is still in flight would run the request again",
        ),
        (UnknownRetention, unknown_retention, spare, "the record must outlive its lease"),
        (ReleasedRetention, released_retention, Duration::ZERO, "the record must outlive the retries in flight"),
    ] {
        if lease.saturating_add(margin) > duration {
            return Err(InvalidSetting::Contradiction { shorter: Lease, longer, margin, why });
        }
    }
    Ok(())
}

const DAY: u64 = 24 * 3600;
const SHORTEST_LEASE: Duration = Duration::from_secs(1);
/// 2^32 ms are 49.7 days.
const LONGEST_LEASE: Duration = Duration::from_secs(49 * DAY);
const LONGEST_LIFE: Duration = Duration::from_secs(10 * 366 * DAY);
const EXPIRY_IS_32_BITS: &str = "a record stores its expiry as a 32-bit number of seconds, which ends in 2106";
