//! Every fault at every call to the store.

use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_testkit::{Fault, When};

use crate::act::Act;
use crate::oracle::{Lapse, Word};
use crate::scenario::{Mishap, Scenario};
use crate::sweep::Sweep;
use crate::world::Terms;

pub(crate) const LEASE: Duration = Duration::from_secs(10);
pub(crate) const HOLD: Terms = Terms { lapse: Lapse::Hold, lease: LEASE, timeout: Duration::from_secs(1), wait: None };
pub(crate) const RETRY: Terms = Terms { lapse: Lapse::Retry, ..HOLD };
pub(crate) const RESOLVE: Terms = Terms { lapse: Lapse::Resolve, ..HOLD };
/// The shortest lease there is, as long as one call to the store may take.
const TIGHT: Terms = Terms { lease: Duration::from_secs(1), ..HOLD };
/// A call to the store may take longer than the lease.
const SLOW: Terms = Terms { timeout: Duration::from_secs(3), ..TIGHT };

pub(crate) const FRESH: Scenario = Scenario {
    name: "fresh",
    terms: HOLD,
    earlier: None,
    act: Act::APPLIES,
    twins: 0,
    rivals: 0,
    later: Duration::ZERO,
    journal: false,
};

const HANGS: Act = Act::APPLIES.says(Word::Nothing);

/// Each way in which one call can go wrong. A request dies in the network within one lease.
pub(crate) fn faults(Terms { lease, timeout, .. }: Terms) -> Vec<Fault> {
    let instant = Duration::from_millis(1);
    let mut faults = vec![
        Fault::FailBefore(ErrorKind::NotApplied),
        Fault::FailBefore(ErrorKind::Unknown),
        Fault::FailBefore(ErrorKind::Damaged),
        Fault::FailAfter(ErrorKind::Unknown),
        Fault::SwallowBefore,
        Fault::SwallowAfter,
        Fault::CarryOutLate(timeout.min(lease) - instant),
        Fault::AnswerLate(timeout / 2),
        Fault::AnswerLate(timeout - instant),
    ];
    let calls = (0..4).map(When::Calls);
    let times = [instant, lease / 2, lease - instant].map(When::Time);
    for when in calls.chain(times) {
        faults.extend([Fault::FailThenApply(when), Fault::SwallowThenApply(when), Fault::ApplyTwice(when)]);
    }
    faults
}

pub(crate) fn scenarios(terms: Terms) -> Vec<Scenario> {
    let lease = terms.lease;
    let base = Scenario { terms, ..FRESH };
    let applies = Act::APPLIES;
    let acts = [
        ("fresh", applies),
        ("final", applies.says(Word::Final)),
        ("not applied", applies.says(Word::NotApplied)),
        ("unknown after the effect", applies.says(Word::Unknown)),
        ("unknown without it", applies.says(Word::Unknown).in_vain()),
        ("panic before the effect", Act { panics_at: Some(1), ..applies }),
        ("panic after the effect", Act { panics_at: Some(3), ..applies }),
        ("three leases before the effect", applies.lasting(3 * lease, Duration::ZERO)),
        ("three leases before it, careless", applies.lasting(3 * lease, Duration::ZERO).careless()),
        ("three leases after it", applies.lasting(Duration::ZERO, 3 * lease)),
        ("three leases, not applied", applies.says(Word::NotApplied).lasting(3 * lease, Duration::ZERO)),
        ("three leases, unknown", applies.says(Word::Unknown).lasting(3 * lease, Duration::ZERO)),
    ];
    let mut scenarios: Vec<_> = acts.map(|(name, act)| Scenario { name, act, ..base }).into();
    let earlier = [
        ("after a lapse with an effect", HANGS, applies),
        ("after a lapse without one", HANGS.in_vain(), applies),
        ("not applied after a lapse", HANGS, applies.says(Word::NotApplied)),
        ("unknown after a lapse", HANGS, applies.says(Word::Unknown)),
    ];
    scenarios.extend(earlier.map(|(name, earlier, act)| Scenario { name, earlier: Some(earlier), act, ..base }));
    let later = lease + Duration::from_secs(1);
    let overtaken = [
        ("a rival after a lease, careless", applies.lasting(2 * lease, Duration::ZERO).careless()),
        ("a rival after a lease, after the effect", applies.lasting(Duration::ZERO, 2 * lease)),
        ("a rival after a lease, not applied", applies.says(Word::NotApplied).lasting(2 * lease, Duration::ZERO)),
    ];
    scenarios.extend(overtaken.map(|(name, act)| Scenario { name, act, rivals: 1, later, ..base }));
    let waiting = Terms { wait: Some(lease / 2), ..terms };
    for terms in [terms, waiting] {
        let takes_a_second = applies.lasting(Duration::from_secs(1), Duration::ZERO);
        scenarios.extend([
            Scenario { name: "twins", terms, twins: 2, ..base },
            Scenario { name: "twins not applied", terms, act: applies.says(Word::NotApplied), twins: 2, ..base },
            Scenario { name: "rivals", terms, rivals: 1, ..base },
            Scenario { name: "twins and rivals for a second", terms, act: takes_a_second, twins: 1, rivals: 2, ..base },
        ]);
    }
    scenarios
}

/// One fault at each call, and outages from each call on.
fn one_fault_at_every_call(name: &'static str, terms: Terms) {
    let mut sweep = Sweep::new(name);
    for scenario in scenarios(terms) {
        for call in 0..sweep.points(&scenario, |covered| covered.calls) {
            let one = faults(terms).into_iter().map(|fault| (1, fault));
            for (calls, fault) in one.chain(outages()) {
                let mishap = Mishap::of((call..call + calls).map(|call| (call, fault)));
                sweep.run(&scenario, &mishap);
                sweep.run(&scenario, &Mishap { patient: true, ..mishap });
            }
        }
    }
    sweep.ends(200, 20_000);
}

/// So many calls in a row go wrong in the same way.
fn outages() -> Vec<(usize, Fault)> {
    let mut outages = Vec::new();
    for calls in [2, 6, 20] {
        outages.extend([
            (calls, Fault::FailBefore(ErrorKind::NotApplied)),
            (calls, Fault::FailBefore(ErrorKind::Unknown)),
            (calls, Fault::FailAfter(ErrorKind::Unknown)),
            (calls, Fault::SwallowBefore),
            (calls, Fault::SwallowAfter),
            (calls, Fault::ApplyTwice(When::Calls(0))),
            (calls, Fault::FailThenApply(When::Calls(1))),
        ]);
    }
    outages
}

#[test]
fn a_fault_at_every_store_call_under_hold() {
    one_fault_at_every_call("a fault at every store call, Hold", HOLD);
}

#[test]
fn a_fault_at_every_store_call_under_retry() {
    one_fault_at_every_call("a fault at every store call, Retry", RETRY);
}

#[test]
fn a_fault_at_every_store_call_under_resolve() {
    one_fault_at_every_call("a fault at every store call, Resolve", RESOLVE);
}

#[test]
fn a_fault_at_every_store_call_under_the_shortest_lease() {
    one_fault_at_every_call("a fault at every store call, the shortest lease", TIGHT);
}

#[test]
fn a_fault_at_every_store_call_under_the_shortest_lease_and_retry() {
    one_fault_at_every_call(
        "a fault at every store call, the shortest lease, Retry",
        Terms { lapse: Lapse::Retry, ..TIGHT },
    );
}

#[test]
fn a_fault_at_every_store_call_of_a_store_that_is_slower_than_the_lease() {
    one_fault_at_every_call("a fault at every store call, a store slower than the lease", SLOW);
}

/// Whether the handler of a scenario goes on for longer than a lease.
fn lasts(scenario: &Scenario) -> bool {
    scenario.act.before + scenario.act.after > scenario.terms.lease
}

/// The store is down from the call on, until it is back just before the lease ends, or just after it, or much later.
#[test]
fn an_outage_of_any_length_from_every_store_call_on() {
    let mut sweep = Sweep::new("an outage of any length from every store call on");
    for scenario in [HOLD, RETRY, RESOLVE, TIGHT].into_iter().flat_map(scenarios).filter(lasts) {
        for call in 0..sweep.points(&scenario, |covered| covered.calls) {
            for calls in 1..=20 {
                for fault in [Fault::FailBefore(ErrorKind::NotApplied), Fault::SwallowAfter] {
                    sweep.run(&scenario, &Mishap::of((call..call + calls).map(|call| (call, fault))));
                }
            }
        }
    }
    sweep.ends(300, 10_000);
}

/// The last call before an outage is answered late, or is late itself, or is carried out twice.
#[test]
fn a_fault_at_every_store_call_and_an_outage_from_there_on() {
    let mut sweep = Sweep::new("a fault at every store call and an outage from there on");
    for scenario in [HOLD, RETRY, RESOLVE, SLOW].into_iter().flat_map(scenarios).filter(lasts) {
        for call in 0..sweep.points(&scenario, |covered| covered.calls) {
            for fault in faults(scenario.terms) {
                for calls in [10, 60] {
                    let down = |call| (call, Fault::FailBefore(ErrorKind::NotApplied));
                    let outage = (call + 1..=call + calls).map(down);
                    sweep.run(&scenario, &Mishap::of(outage.chain([(call, fault)])));
                }
            }
        }
    }
    sweep.ends(300, 20_000);
}

#[test]
fn two_faults_at_every_pair_of_store_calls() {
    let mut sweep = Sweep::new("two faults at every pair of store calls, fresh");
    for terms in [HOLD, RETRY, RESOLVE] {
        let scenario = Scenario { terms, ..FRESH };
        for first in 0..sweep.points(&scenario, |covered| covered.calls) {
            for fault in faults(terms) {
                let fault = (first, fault);
                let calls = sweep.run(&scenario, &Mishap::of([fault])).map_or(0, |covered| covered.calls);
                for second in first + 1..calls {
                    for other in faults(terms) {
                        sweep.run(&scenario, &Mishap::of([fault, (second, other)]));
                    }
                }
            }
        }
    }
    sweep.ends(18, 30_000);
}
