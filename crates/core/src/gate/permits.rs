//! How many attempts may run at once: in all, and for one tenant.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::Gauge;

use crate::telemetry;

/// The permits of a gate.
pub(super) struct Permits {
    most: usize,
    most_per_tenant: usize,
    given: Mutex<Given>,
    in_flight: Gauge,
}

#[derive(Default)]
struct Given {
    all: usize,
    by_tenant: HashMap<u64, usize>,
}

impl Permits {
    pub(super) fn new(most: usize, most_per_tenant: usize) -> Self {
        Self { most, most_per_tenant, given: Mutex::default(), in_flight: telemetry::in_flight() }
    }

    /// A permit, given back when it is dropped; none when all are out.
    pub(super) fn take(self: &Arc<Self>, tenant: u64) -> Option<Permit> {
        let mut given = self.lock();
        if given.all >= self.most {
            return None;
        }
        let of_tenant = given.by_tenant.entry(tenant).or_default();
        if *of_tenant >= self.most_per_tenant {
            return None;
        }
        *of_tenant += 1;
        given.all += 1;
        self.in_flight.increment(1);
        Some(Permit { permits: Arc::clone(self), tenant })
    }

    fn lock(&self) -> MutexGuard<'_, Given> {
        // Nothing between the changes of one permit can panic.
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permits({} of {})", self.lock().all, self.most)
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
        let mut given = self.permits.lock();
        given.all -= 1;
        self.permits.in_flight.decrement(1);
        if let Entry::Occupied(mut of_tenant) = given.by_tenant.entry(self.tenant) {
            *of_tenant.get_mut() -= 1;
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
    fn no_tenant_takes_more_than_its_share_and_all_together_no_more_than_there_are() {
        let permits = Arc::new(Permits::new(3, 2));
        let one = [permits.take(1), permits.take(1), permits.take(1)];
        assert_eq!(one.iter().flatten().count(), 2);
        let two = [permits.take(2), permits.take(2)];
        assert_eq!(two.iter().flatten().count(), 1);
        drop(one);
        assert!(permits.take(2).is_some() && permits.take(3).is_some());
        drop(two);
        let given = permits.lock();
        assert_eq!((given.all, given.by_tenant.len()), (0, 0), "nothing is left behind");
    }
}
