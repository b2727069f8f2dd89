//! One method for each field, so that settings can be written as one expression.

use std::time::Duration;

use super::{OnBusy, OnLapse, OnStoreDown, Policy, Settings};

macro_rules! setters {
    ($of:ident { $($field:ident: $value:ty),+ $(,)? }) => {
        impl $of {
            $(
                #[doc = concat!("Sets the field `", stringify!($field), "`.")]
                #[must_use]
                pub fn $field(mut self, $field: $value) -> Self {
                    self.$field = $field;
                    self
                }
            )+
        }
    };
}

setters!(Settings {
    store_timeout: Duration,
    max_in_flight: usize,
    max_in_flight_per_tenant: usize,
    max_in_flight_per_origin: usize,
    max_followers: usize,
    max_followers_per_key: usize,
    policy: Policy,
});

setters!(Policy {
    lease: Duration,
    retention: Duration,
    unknown_retention: Duration,
    released_retention: Duration,
    final_retention: Option<Duration>,
    max_execution: Duration,
    record_patience: Duration,
    on_lapse: OnLapse,
    on_busy: OnBusy,
    on_store_down: OnStoreDown,
});
