//! How many attempts may run at once: in all, for one tenant, and for one origin.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;

use metrics::Gauge;
use parking_lot::Mutex;

use crate::settings::Settings;
use crate::telemetry;

/// The permits of a gate.
pub(super) struct Permits {
    max: usize,
    max_per_tenant: usize,
    max_per_origin: usize,
    taken: Mutex<TakenPermits>,
    in_flight: Gauge,
}

#[derive(Default)]
struct TakenPermits {
    all: usize,
    by_tenant: HashMap<u64, usize>,
    by_origin: HashMap<u64, usize>,
}

impl Permits {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            max: settings.max_in_flight,
            max_per_tenant: settings.max_in_flight_per_tenant,
            max_per_origin: settings.max_in_flight_per_origin.max(1),
            taken: Mutex::default(),
            in_flight: telemetry::in_flight(),
        }
    }

    /// Takes a permit, which is returned when it is dropped. None if all are taken, or all of this tenant or origin.
    pub(super) fn take(self: &Arc<Self>, tenant: u64, origin: Option<u64>) -> Option<Permit> {
        let mut taken = self.taken.lock();
        let count = |counts: &HashMap<u64, usize>, of: &u64| counts.get(of).copied().unwrap_or_default();
        let of_origin = origin.map_or(0, |origin| count(&taken.by_origin, &origin));
        let is_full = taken.all >= self.max
            || count(&taken.by_tenant, &tenant) >= self.max_per_tenant
            || of_origin >= self.max_per_origin;
        if is_full {
            return None;
        }
        *taken.by_tenant.entry(tenant).or_default() += 1;
        if let Some(origin) = origin {
            *taken.by_origin.entry(origin).or_default() += 1;
        }
        taken.all += 1;
        self.in_flight.increment(1);
        Some(Permit { permits: Arc::clone(self), tenant, origin })
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permits({} of {})", self.taken.lock().all, self.max)
    }
}

/// The right to run one attempt.
#[derive(Debug)]
pub(super) struct Permit {
    permits: Arc<Permits>,
    tenant: u64,
    origin: Option<u64>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.permits.taken.lock();
        taken.all -= 1;
        self.permits.in_flight.decrement(1);
        give_back(&mut taken.by_tenant, self.tenant);
        if let Some(origin) = self.origin {
            give_back(&mut taken.by_origin, origin);
        }
    }
}

fn give_back(counts: &mut HashMap<u64, usize>, of: u64) {
    if let Entry::Occupied(mut count) = counts.entry(of) {
        *count.get_mut() -= 1;
        // Removed at zero: otherwise the map would keep an entry for every tenant and origin there ever was.
        if *count.get() == 0 {
            count.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(max: usize, max_per_tenant: usize, max_per_origin: usize) -> Arc<Permits> {
        let settings = Settings {
            max_in_flight: max,
            max_in_flight_per_tenant: max_per_tenant,
            max_in_flight_per_origin: max_per_origin,
            ..Settings::default()
        };
        Arc::new(Permits::new(&settings))
    }

    #[test]
    fn permits_are_limited_for_each_tenant_and_in_all() {
        let permits = permits(3, 2, usize::MAX);
        let first_tenant = [permits.take(1, None), permits.take(1, None), permits.take(1, None)];
        assert_eq!(first_tenant.iter().flatten().count(), 2);
        let second_tenant = [permits.take(2, None), permits.take(2, None)];
        assert_eq!(second_tenant.iter().flatten().count(), 1);
        drop(first_tenant);
        assert!(permits.take(2, None).is_some() && permits.take(3, None).is_some());
        drop(second_tenant);
        let taken = permits.taken.lock();
        assert_eq!((taken.all, taken.by_tenant.len()), (0, 0), "all permits are returned and no tenant is left");
    }

    #[test]
    fn permits_are_limited_for_each_origin_whatever_its_tenants() {
        for (max_per_origin, expected) in [(2, 2), (0, 1)] {
            let permits = permits(9, 9, max_per_origin);
            let taken: Vec<_> = (0..4).filter_map(|tenant| permits.take(tenant, Some(7))).collect();
            assert_eq!(taken.len(), expected);
            assert!(permits.take(1, Some(8)).is_some() && permits.take(1, None).is_some());
            drop(taken);
            assert!(permits.taken.lock().by_origin.is_empty());
        }
    }
}
