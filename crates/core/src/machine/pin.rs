//! Ties a namespace to the secret of its identity.

use std::time::Duration;

use super::observed::Observed;
use super::reply::Begun;
use crate::key::Call;

/// Whether a process may use a namespace with its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// The namespace belongs to this identity. Start.
    Yes,
    /// Another process is writing the pin; its lease ends after this. Try again.
    Busy(Duration),
    /// The namespace belongs to another secret. Refuse to start: every retry would look like a new operation.
    OtherSecret,
    /// The pin is indeterminate or dead, so the secrets cannot be compared. Refuse to start.
    Unreadable,
}

/// Decides from the reply to the begin of the pin. Rows P1 to P5.
///
/// [`Protocol::pin`](crate::store::Protocol::pin) sends that begin and, when it is granted, completes it.
pub fn pin_of_keyed(begun: &Begun) -> Pinned {
    match begun {
        Begun::Granted(_) | Begun::Mine(_) => Pinned::Yes,           // P1
        Begun::Replay(_) => Pinned::Yes,                             // P2
        Begun::Busy(lease_left) => Pinned::Busy(*lease_left),        // P3
        Begun::Mismatch => Pinned::OtherSecret,                      // P4
        Begun::Indeterminate(_) | Begun::Dead => Pinned::Unreadable, // P5
    }
}

/// Decides for an identity without a secret, which writes no pin. Rows P6 and P7.
pub fn pin_of_plain(seen: &Observed, pin: &Call) -> Pinned {
    match seen.live() {
        Some(record) if !pin.accepts(record.fingerprint) => Pinned::OtherSecret, // P7
        Some(_) | None => Pinned::Yes,                                           // P6
    }
}
