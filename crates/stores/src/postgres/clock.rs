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

    /// Takes the clock and the tokens from a reply.
    pub(super) fn learn(&self, seen: &Observed) {
        let boottime = Timestamp(0).plus(self.runtime.boottime_now());
        self.origin.store(seen.now.0.saturating_sub(boottime.0), Ordering::Relaxed);
        let token = seen.record.as_ref().map_or(Token(0), |record| record.token);
        self.highest_token.fetch_max(token.max(seen.token_high_water).0, Ordering::Relaxed);
    }
}
