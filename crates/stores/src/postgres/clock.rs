//! An estimate of the server's clock and of its largest token, so that a begin needs one statement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_core::machine::Observed;
use hapax_core::runtime::Runtime;
use hapax_core::{Timestamp, Token};

/// What the replies of the server told about its clock and its tokens. The statement of a begin checks the token that
/// is drawn from it: a wrong estimate costs another round trip, and nothing else.
#[derive(Debug)]
pub(super) struct ServerClock {
    runtime: Arc<dyn Runtime>,
    /// The server's clock when the boot-time clock of this host was zero, in microseconds. Zero until the first reply.
    origin: AtomicU64,
    highest_token: AtomicU64,
}

impl ServerClock {
    pub(super) fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, origin: AtomicU64::default(), highest_token: AtomicU64::default() }
    }

    /// An observation of no record, for the first token of a key.
    pub(super) fn observe_absent(&self) -> Observed {
        Observed {
            record: None,
            lease_left: Duration::ZERO,
            life_left: Duration::ZERO,
            now: Timestamp(self.origin.load(Ordering::Relaxed)).plus(self.runtime.boottime_now()),
            token_high_water: Token(self.highest_token.load(Ordering::Relaxed)),
        }
    }

    /// The instant at which a statement is sent, for [`ServerClock::learn`].
    pub(super) fn sending(&self) -> SendingTime {
        SendingTime(self.runtime.boottime_now())
    }

    /// Takes the clock and the tokens from the reply to a statement.
    ///
    /// The server read its clock between the sending and now. An estimate that agrees with that stays: after a slow
    /// statement, the clock of the reply is as old as the statement took.
    pub(super) fn learn(&self, sending: &SendingTime, seen: &Observed) {
        let origin_if_read_at = |boottime| seen.now.0.saturating_sub(Timestamp(0).plus(boottime).0);
        let (earliest, latest) = (origin_if_read_at(self.runtime.boottime_now()), origin_if_read_at(sending.0));
        let origin = self.origin.load(Ordering::Relaxed).clamp(earliest, latest.max(earliest));
        self.origin.store(origin, Ordering::Relaxed);
        let token = seen.record.as_ref().map_or(Token(0), |record| record.token);
        self.highest_token.fetch_max(token.max(seen.token_high_water).0, Ordering::Relaxed);
    }
}

/// When a statement was sent.
pub(super) struct SendingTime(Duration);
