//! How the gates of a world are configured.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::settings::Probe;
use hapax_core::{OnBusy, OnLapse, Repeatable, Settings};
use hapax_sim::outcome::EffectPolicy;

#[derive(Clone, Copy, Debug)]
pub(crate) struct GateSetup {
    pub(crate) effect: EffectPolicy,
    pub(crate) lease: Duration,
    /// How long a store call may take.
    pub(crate) timeout: Duration,
    /// How long a follower waits.
    pub(crate) wait: Option<Duration>,
    /// How long a record lives while its outcome is unknown, if not as long as by default.
    pub(crate) unknown_retention: Option<Duration>,
}

impl GateSetup {
    pub(crate) fn settings(self, probe: Arc<dyn Probe>) -> Settings {
        let mut settings = Settings::default();
        settings.store_timeout = self.timeout;
        settings.policy.lease = self.lease;
        settings.policy.unknown_retention = self.unknown_retention.unwrap_or(settings.policy.unknown_retention);
        settings.policy.on_lapse = match self.effect {
            EffectPolicy::Hold => OnLapse::Hold,
            EffectPolicy::Resolve => OnLapse::Resolve(probe),
            EffectPolicy::Repeatable | EffectPolicy::Ledger { .. } => {
                OnLapse::Retry(Repeatable::declared("the effect only counts"))
            }
        };
        settings.policy.on_busy = self.wait.map_or(OnBusy::Reject, OnBusy::Wait);
        settings
    }
}
