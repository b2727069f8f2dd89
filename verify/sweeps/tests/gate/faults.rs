//! Each fault at each store call.

use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_sim::outcome::{EffectPolicy, HandlerOutcome};
use hapax_sweeps::Sweep;
use hapax_testkit::{CopyDelay, StoreFault};

use crate::handler::HandlerScript;
use crate::scenario::{FaultPlan, RunScenario, Scenario};
use crate::setup::GateSetup;

pub(crate) const LEASE: Duration = Duration::from_secs(10);
pub(crate) const HOLD: GateSetup = GateSetup {
    effect: EffectPolicy::Hold,
    lease: LEASE,
    timeout: Duration::from_secs(1),
    wait: None,
    unknown_retention: None,
};
pub(crate) const RETRY: GateSetup = GateSetup { effect: EffectPolicy::Repeatable, ..HOLD };
pub(crate) const RESOLVE: GateSetup = GateSetup { effect: EffectPolicy::Resolve, ..HOLD };
/// The shortest lease that the settings allow: as long as one store call may take.
const TIGHT: GateSetup = GateSetup { lease: Duration::from_secs(1), ..HOLD };
/// A store call may take longer than the lease.
const SLOW: GateSetup = GateSetup { timeout: Duration::from_secs(3), ..TIGHT };

pub(crate) const FRESH: Scenario = Scenario {
    name: "fresh",
    setup: HOLD,
    earlier: None,
    handler: HandlerScript::APPLIES,
    followers: 0,
    rivals: 0,
    rival_delay: Duration::ZERO,
    journal: false,
};

/// Each fault that can happen to one store call. A request is lost for good within one lease.
pub(crate) fn faults(GateSetup { lease, timeout, .. }: GateSetup) -> Vec<StoreFault> {
    let instant = Duration::from_millis(1);
    let mut faults = vec![
        StoreFault::FailBefore(ErrorKind::NotApplied),
        StoreFault::FailBefore(ErrorKind::Unknown),
        StoreFault::FailBefore(ErrorKind::Damaged),
        StoreFault::FailBefore(ErrorKind::Unusable),
        StoreFault::FailBefore(ErrorKind::Full),
        StoreFault::FailAfter(ErrorKind::Unknown),
        StoreFault::SwallowBefore,
        StoreFault::SwallowAfter,
        StoreFault::CarryOutLate(timeout.min(lease) - instant),
        StoreFault::AnswerLate(timeout / 2),
        StoreFault::AnswerLate(timeout - instant),
    ];
    let calls = (0..4).map(CopyDelay::Calls);
    let times = [instant, lease / 2, lease - instant].map(CopyDelay::Time);
    for when in calls.chain(times) {
        faults.extend([
            StoreFault::FailThenApply(when),
            StoreFault::SwallowThenApply(when),
            StoreFault::ApplyTwice(when),
        ]);
    }
    faults
}

pub(crate) fn scenarios(setup: GateSetup) -> Vec<Scenario> {
    let lease = setup.lease;
    let base = Scenario { setup, ..FRESH };
    let applies = HandlerScript::APPLIES;
    let handlers = [
        ("fresh", applies),
        ("final", applies.returns(HandlerOutcome::Final)),
        ("not applied", applies.returns(HandlerOutcome::NotApplied)),
        ("unknown after the effect", applies.returns(HandlerOutcome::Unknown)),
        ("unknown without an effect", applies.returns(HandlerOutcome::Unknown).without_effect()),
        ("panic before the effect", HandlerScript { panics_at: Some(1), ..applies }),
        ("panic after the effect", HandlerScript { panics_at: Some(3), ..applies }),
        ("three leases before the effect", applies.lasting(3 * lease, Duration::ZERO)),
        ("three leases before the effect, careless", applies.lasting(3 * lease, Duration::ZERO).careless()),
        ("three leases after the effect", applies.lasting(Duration::ZERO, 3 * lease)),
        ("three leases, not applied", applies.returns(HandlerOutcome::NotApplied).lasting(3 * lease, Duration::ZERO)),
        ("three leases, unknown", applies.returns(HandlerOutcome::Unknown).lasting(3 * lease, Duration::ZERO)),
    ];
    let mut scenarios: Vec<_> = handlers.map(|(name, handler)| Scenario { name, handler, ..base }).into();
    let earlier = [
        ("after a lapse with an effect", HandlerScript::HANGS, applies),
        ("after a lapse without an effect", HandlerScript::HANGS.without_effect(), applies),
        ("not applied after a lapse", HandlerScript::HANGS, applies.returns(HandlerOutcome::NotApplied)),
        ("unknown after a lapse", HandlerScript::HANGS, applies.returns(HandlerOutcome::Unknown)),
    ];
    let earlier = earlier.map(|(name, earlier, handler)| Scenario { name, earlier: Some(earlier), handler, ..base });
    scenarios.extend(earlier);
    let rival_delay = lease + Duration::from_secs(1);
    let overtaken = [
        ("a rival after a lease, careless", applies.lasting(2 * lease, Duration::ZERO).careless()),
        ("a rival after a lease, after the effect", applies.lasting(Duration::ZERO, 2 * lease)),
        (
            "a rival after a lease, not applied",
            applies.returns(HandlerOutcome::NotApplied).lasting(2 * lease, Duration::ZERO),
        ),
    ];
    scenarios.extend(overtaken.map(|(name, handler)| Scenario { name, handler, rivals: 1, rival_delay, ..base }));
    let waiting = GateSetup { wait: Some(lease / 2), ..setup };
    for setup in [setup, waiting] {
        let not_applied = applies.returns(HandlerOutcome::NotApplied);
        let one_second = applies.lasting(Duration::from_secs(1), Duration::ZERO);
        scenarios.extend([
            Scenario { name: "followers", setup, followers: 2, ..base },
            Scenario { name: "followers, not applied", setup, handler: not_applied, followers: 2, ..base },
            Scenario { name: "rivals", setup, rivals: 1, ..base },
            Scenario { name: "followers and rivals", setup, handler: one_second, followers: 1, rivals: 2, ..base },
        ]);
    }
    scenarios
}

/// One fault at each store call, and one outage from each store call on.
fn fail_every_call(name: &'static str, setup: GateSetup) {
    let mut sweep = Sweep::new(name);
    for scenario in scenarios(setup) {
        for call in 0..sweep.points(&scenario, |coverage| coverage.calls) {
            let one = faults(setup).into_iter().map(|fault| (1, fault));
            for (calls, fault) in one.chain(outages()) {
                let plan = FaultPlan::of((call..call + calls).map(|call| (call, fault)));
                sweep.run(&scenario, &plan);
                sweep.run(&scenario, &FaultPlan { retries_late: true, ..plan });
            }
        }
    }
    sweep.finish(200, 20_000);
}

/// So many store calls in a row meet the same fault.
fn outages() -> Vec<(usize, StoreFault)> {
    let mut outages = Vec::new();
    for calls in [2, 6, 20] {
        outages.extend([
            (calls, StoreFault::FailBefore(ErrorKind::NotApplied)),
            (calls, StoreFault::FailBefore(ErrorKind::Unknown)),
            (calls, StoreFault::FailBefore(ErrorKind::Damaged)),
            (calls, StoreFault::FailBefore(ErrorKind::Unusable)),
            (calls, StoreFault::FailBefore(ErrorKind::Full)),
            (calls, StoreFault::FailAfter(ErrorKind::Unknown)),
            (calls, StoreFault::SwallowBefore),
            (calls, StoreFault::SwallowAfter),
            (calls, StoreFault::ApplyTwice(CopyDelay::Calls(0))),
            (calls, StoreFault::FailThenApply(CopyDelay::Calls(1))),
        ]);
    }
    outages
}

#[test]
fn a_fault_at_every_store_call_under_hold() {
    fail_every_call("a fault at every store call, Hold", HOLD);
}

#[test]
fn a_fault_at_every_store_call_under_retry() {
    fail_every_call("a fault at every store call, Retry", RETRY);
}

#[test]
fn a_fault_at_every_store_call_under_resolve() {
    fail_every_call("a fault at every store call, Resolve", RESOLVE);
}

#[test]
fn a_fault_at_every_store_call_under_the_shortest_lease() {
    fail_every_call("a fault at every store call, the shortest lease", TIGHT);
}

#[test]
fn a_fault_at_every_store_call_under_the_shortest_lease_and_retry() {
    fail_every_call(
        "a fault at every store call, the shortest lease, Retry",
        GateSetup { effect: EffectPolicy::Repeatable, ..TIGHT },
    );
}

#[test]
fn a_fault_at_every_store_call_with_a_timeout_longer_than_the_lease() {
    fail_every_call("a fault at every store call, a timeout longer than the lease", SLOW);
}

/// Whether the handler of a scenario takes longer than a lease.
fn outlasts_lease(scenario: &Scenario) -> bool {
    scenario.handler.before + scenario.handler.after > scenario.setup.lease
}

/// The outages end just before the lease ends, just after it, or much later.
#[test]
fn outages_of_up_to_20_calls_start_at_every_store_call() {
    let mut sweep = Sweep::new("an outage of any length starts at every store call");
    for scenario in [HOLD, RETRY, RESOLVE, TIGHT].into_iter().flat_map(scenarios).filter(outlasts_lease) {
        for call in 0..sweep.points(&scenario, |coverage| coverage.calls) {
            for calls in 1..=20 {
                for fault in [StoreFault::FailBefore(ErrorKind::NotApplied), StoreFault::SwallowAfter] {
                    sweep.run(&scenario, &FaultPlan::of((call..call + calls).map(|call| (call, fault))));
                }
            }
        }
    }
    sweep.finish(300, 10_000);
}

/// The last store call before the outage is answered late, arrives late, or is carried out twice.
#[test]
fn a_fault_at_every_store_call_and_an_outage_after_it() {
    let mut sweep = Sweep::new("a fault at every store call and an outage after it");
    for scenario in [HOLD, RETRY, RESOLVE, SLOW].into_iter().flat_map(scenarios).filter(outlasts_lease) {
        for call in 0..sweep.points(&scenario, |coverage| coverage.calls) {
            for fault in faults(scenario.setup) {
                for calls in [10, 60] {
                    let down = |call| (call, StoreFault::FailBefore(ErrorKind::NotApplied));
                    let outage = (call + 1..=call + calls).map(down);
                    sweep.run(&scenario, &FaultPlan::of(outage.chain([(call, fault)])));
                }
            }
        }
    }
    sweep.finish(300, 20_000);
}

#[test]
fn two_faults_at_every_pair_of_store_calls() {
    let mut sweep = Sweep::new("two faults at every pair of store calls, fresh");
    for setup in [HOLD, RETRY, RESOLVE] {
        let scenario = Scenario { setup, ..FRESH };
        for first in 0..sweep.points(&scenario, |coverage| coverage.calls) {
            for fault in faults(setup) {
                let fault = (first, fault);
                let calls = sweep.run(&scenario, &FaultPlan::of([fault])).map_or(0, |coverage| coverage.calls);
                for second in first + 1..calls {
                    for other in faults(setup) {
                        sweep.run(&scenario, &FaultPlan::of([fault, (second, other)]));
                    }
                }
            }
        }
    }
    sweep.finish(18, 30_000);
}
