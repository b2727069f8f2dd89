//! The vocabulary of outcomes: gate, followers, metrics and HTTP problems derive theirs from [`Reason`].

use std::fmt;
use std::time::Duration;

use crate::error::ErrorKind;
use crate::record::Timestamp;

/// Why a call has no answer.
///
/// ```
/// use hapax::gate::Reason;
///
/// let names: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
/// assert!(names.contains(&"busy") && names.contains(&"overloaded"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Another attempt runs. Try again after this time, or when the lease of that attempt has expired.
    Busy {
        /// The remaining lease of that attempt.
        retry_after: Duration,
    },
    /// The key was used for another payload.
    Mismatch,
    /// The outcome of an earlier attempt is unknown; the handler was not run.
    Indeterminate {
        /// Since when, by the store's clock.
        since: Timestamp,
    },
    /// Closed after too many attempts.
    Dead,
    /// Too many attempts run in this process, or too many of this tenant. The store was not asked.
    Overloaded,
    /// The handler ran and returned *not applied*.
    NotApplied {
        /// Whether the handler ran without a record, because the store was down and the policy allows it.
        unrecorded: bool,
    },
    /// The handler ran, and the outcome is unknown.
    Unknown {
        /// Whether the handler ran without a record, because the store was down and the policy allows it. A copy may
        /// run again.
        unrecorded: bool,
    },
    /// The effect was applied, but the answer could not be recorded. Copies of the call get *outcome unknown*.
    Unrecorded,
    /// The store failed, or the record in it cannot be read.
    Store(ErrorKind),
}

impl Reason {
    /// Every reason, with a sample of what it carries.
    pub const ALL: [Self; 9] = [
        Self::Busy { retry_after: Duration::ZERO },
        Self::Mismatch,
        Self::Indeterminate { since: Timestamp(0) },
        Self::Dead,
        Self::Overloaded,
        Self::NotApplied { unrecorded: false },
        Self::Unknown { unrecorded: false },
        Self::Unrecorded,
        Self::Store(ErrorKind::NotApplied),
    ];

    /// The value of the metric label `outcome`.
    pub const fn as_str(self) -> &'static str {
        self.row().name
    }

    /// Whether the call is a copy that did not run a second time.
    pub const fn is_caught(self) -> bool {
        self.row().is_caught
    }

    /// Whether the handler ran without a record.
    pub const fn is_unrecorded(self) -> bool {
        matches!(self, Self::NotApplied { unrecorded: true } | Self::Unknown { unrecorded: true })
    }

    const fn row(self) -> ReasonRow {
        match self {
            Self::Busy { .. } => ReasonRow::caught("busy", "another attempt is running"),
            Self::Mismatch => ReasonRow::not_caught("mismatch", "the key was used for another payload"),
            Self::Indeterminate { .. } => {
                ReasonRow::caught("still_unknown", "the outcome of an earlier attempt is unknown")
            }
            Self::Dead => ReasonRow::caught("dead", "closed after too many attempts"),
            Self::Overloaded => ReasonRow::not_caught("overloaded", "too many attempts are running"),
            Self::NotApplied { .. } => ReasonRow::not_caught("not_applied", "not applied"),
            Self::Unknown { .. } => ReasonRow::not_caught("unknown", "the outcome is unknown"),
            Self::Unrecorded => ReasonRow::not_caught("unrecorded", "applied, but the answer could not be recorded"),
            Self::Store(_) => ReasonRow::not_caught("store_error", "the store cannot be used"),
        }
    }

    /// What the followers of the refused call get. None means that each of them begins for itself.
    pub(super) const fn for_followers(self) -> Option<Self> {
        match self {
            // Nothing was applied.
            Self::NotApplied { .. } | Self::Overloaded => None,
            // Only the leader's caller learns that the effect was applied: the record says *unknown*.
            Self::Unrecorded => Some(Self::Unknown { unrecorded: false }),
            Self::Busy { .. } | Self::Mismatch | Self::Indeterminate { .. } | Self::Dead => Some(self),
            Self::Unknown { .. } | Self::Store(_) => Some(self),
        }
    }
}

/// The fixed facts of a reason: its metric label, its message, and whether the call counts as a caught copy.
struct ReasonRow {
    name: &'static str,
    message: &'static str,
    is_caught: bool,
}

impl ReasonRow {
    const fn caught(name: &'static str, message: &'static str) -> Self {
        Self { name, message, is_caught: true }
    }

    const fn not_caught(name: &'static str, message: &'static str) -> Self {
        Self { name, message, is_caught: false }
    }
}

/// A sentence for people.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_all_reasons_are_the_published_metric_labels() {
        let names = Reason::ALL.map(Reason::as_str);
        let published = [
            "busy",
            "mismatch",
            "still_unknown",
            "dead",
            "overloaded",
            "not_applied",
            "unknown",
            "unrecorded",
            "store_error",
        ];
        assert_eq!(names, published);
    }

    #[test]
    fn followers_share_every_reason_except_those_under_which_nothing_was_applied() {
        for reason in Reason::ALL {
            let is_shared = reason.for_followers().is_some();
            let is_not_applied = matches!(reason, Reason::NotApplied { .. } | Reason::Overloaded);
            assert_eq!(is_shared, !is_not_applied, "{reason:?}");
        }
    }
}
