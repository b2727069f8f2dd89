//! How many attempts may run at once: in all, and for one tenant.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;

use metrics::Gauge;
use parking_lot::Mutex;

use crate::telemetry;

/// The permits of a gate.
pub(super) struct Permits {
    max: usize,
    max_per_tenant: usize,
    taken: Mutex<TakenPermits>,
    in_flight: Gauge,
}

#[derive(Default)]
struct TakenPermits {
    all: usize,
    by_tenant: HashMap<u64, usize>,
}

impl Permits {
    pub(super) fn new(max: usize, max_per_tenant: usize) -> Self {
        Self { max, max_per_tenant, taken: Mutex::default(), in_flight: telemetry::in_flight() }
    }

    /// Takes a permit, which is returned when it is dropped. None if all are taken, or all of this tenant.
    pub(super) fn take(self: &Arc<Self>, tenant: u64) -> Option<Permit> {
        let mut taken = self.taken.lock();
        if taken.all >= self.max {
            return None;
        }
        let of_tenant = taken.by_tenant.entry(tenant).or_default();
        if *of_tenant >= self.max_per_tenant {
            return None;
        }
        *of_tenant += 1;
        taken.all += 1;
        self.in_flight.increment(1);
        Some(Permit { permits: Arc::clone(self), tenant })
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
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.permits.taken.lock();
        taken.all -= 1;
        self.permits.in_flight.decrement(1);
        if let Entry::Occupied(mut of_tenant) = taken.by_tenant.entry(self.tenant) {
            *of_tenant.get_mut() -= 1;
            // Removed at zero: otherwise the map would keep an entry for every tenant there ever was.
            if *of_tenant.get() == 0 {
                of_tenant.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_limited_for_each_tenant_and_in_all() {
        let permits = Arc::new(Permits::new(3, 2));
        let first_tenant = [permits.take(1), permits.take(1), permits.take(1)];
        assert_eq!(first_tenant.iter().flatten().count(), 2);
        let second_tenant = [permits.take(2), permits.take(2)];
        assert_eq!(second_tenant.iter().flatten().count(), 1);
        drop(first_tenant);
        assert!(permits.take(2).is_some() && permits.take(3).is_some());
        drop(second_tenant);
        let taken = permits.taken.lock();
        assert_eq!((taken.all, taken.by_tenant.len()), (0, 0), "all permits are returned and no tenant is left");
    }
}
