//! The memory store compared with the reference store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::machine::{Complete, Decision};
use hapax_core::runtime::Runtime;
use hapax_core::store::{Inspect, Memory, MemorySettings, Protocol, Swapped};
use hapax_core::{Result, Store, Timestamp};
use hapax_testkit::ManualClock;
use proptest::prelude::*;

use super::{Ask, DEAD, MachineReply, RELEASED, RETENTION, RK, Step, TimeStep, UNKNOWN, World, steps};

/// The memory store, its clock, and the reference store; both get the same operations.
struct Pair {
    store: Memory,
    clock: Arc<ManualClock>,
    world: World,
}

impl Pair {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        let world = World::starting_at(clock.wall_now());
        Self { store: Memory::with(Arc::clone(&clock) as _, MemorySettings::default()), clock, world }
    }

    async fn ask(&mut self, ask: &Ask) {
        let reply = carry_out(&self.store, ask).await.expect("the memory store answers");
        assert_eq!(reply, self.world.carry_out(ask), "{ask:?}");
        self.assert_same().await;
    }

    /// Live records are equal. An expired record may be swept on one side only.
    async fn assert_same(&self) {
        let (seen, expected) = (self.store.read(&RK).await.unwrap(), self.world.observe());
        assert_eq!((seen.now, seen.token_high_water), (expected.now, expected.token_high_water));
        assert_eq!(seen.live(), expected.live());
        if seen.live().is_some() {
            assert_eq!((seen.lease_left, seen.life_left), (expected.lease_left, expected.life_left));
        }
    }

    async fn advance(&mut self, time_step: &TimeStep) {
        self.world.advance(time_step);
        if matches!(time_step, TimeStep::Sweep) {
            while self.store.sweep(10).await.unwrap() > 0 {}
        }
        self.clock.set(|_| self.world.now);
        self.assert_same().await;
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Time(time_step) => self.advance(time_step).await,
            Step::Do(plan) => self.ask(&self.world.ask(plan)).await,
            Step::Interleaved(plan, meanwhile, time_steps) => {
                let ask = self.world.ask(plan);
                let seen = self.store.read(&RK).await.unwrap();
                let (expected, slot) = (self.world.observe(), self.world.slot.clone());
                let decision = ask.decide(&seen);
                self.ask(&self.world.ask(meanwhile)).await;
                for time_step in time_steps {
                    self.advance(time_step).await;
                }
                let Decision::Change(change, reply) = decision else {
                    return;
                };
                let swapped = self.store.swap(&RK, &seen, &change).await.unwrap();
                if self.world.is_unchanged(&expected, slot.as_ref()) {
                    assert_eq!(swapped, Swapped::Yes, "nothing changed since {seen:?}");
                    self.world.apply(&change);
                    self.world.record_claim(&reply);
                } else {
                    assert_eq!(swapped, Swapped::Changed, "it was {seen:?}");
                }
                self.assert_same().await;
            }
        }
    }
}

async fn carry_out(store: &Memory, ask: &Ask) -> Result<MachineReply> {
    let protocol = Protocol::over(store);
    Ok(match ask {
        Ask::Begin(ask) => MachineReply::Begun(protocol.begin(ask).await?),
        Ask::Renew(claim) => MachineReply::Renewed(protocol.renew(&RK, claim).await?),
        Ask::Complete(ask) => MachineReply::Completed(protocol.complete(&RK, ask).await?),
        Ask::Release(claim) => MachineReply::Settled(protocol.release(&RK, claim, RELEASED).await?),
        Ask::Cancel(owner) => MachineReply::Cancelled(protocol.cancel(&RK, *owner, RELEASED).await?),
        Ask::Abandon(claim) => MachineReply::Settled(protocol.abandon(&RK, claim).await?),
        Ask::Bury(claim) => MachineReply::Settled(protocol.bury(&RK, claim, DEAD).await?),
        Ask::Hold(expected) => MachineReply::Resolved(protocol.hold(&RK, *expected, UNKNOWN).await?),
        Ask::Resolve(expected, verdict) => MachineReply::Resolved(protocol.resolve(&RK, *expected, verdict).await?),
        Ask::Reopen(expected) => MachineReply::Resolved(protocol.reopen(&RK, *expected, RELEASED).await?),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn the_memory_store_replies_like_the_machine(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut pair = Pair::new();
            for step in &steps {
                pair.step(step).await;
            }
        });
    }
}

/// The record expires between read and swap. The swap then finds no record, so it must not write.
#[tokio::test]
async fn a_swap_of_a_record_that_expired_after_the_read_is_changed() {
    let mut pair = Pair::new();
    let begin = pair.world.ask(&super::Plan::Begin { owner: 1, payload: 1, retry: false });
    pair.ask(&begin).await;
    let seen = pair.store.read(&RK).await.unwrap();
    let claim = pair.world.claims.last().unwrap().0;
    let Decision::Change(change, _) = Ask::Release(claim).decide(&seen) else { panic!("it can be released") };
    pair.advance(&TimeStep::Expire).await;
    assert_eq!(pair.store.swap(&RK, &seen, &change).await.unwrap(), Swapped::Changed);
    assert_eq!(pair.store.read(&RK).await.unwrap().live(), None);
}

/// A record read as expired is live again after the clock stepped back, so it is no longer absent.
#[tokio::test]
async fn a_swap_of_an_expired_record_that_is_live_again_is_changed() {
    let mut pair = Pair::new();
    let begin = pair.world.ask(&super::Plan::Begin { owner: 1, payload: 1, retry: false });
    pair.ask(&begin).await;
    pair.advance(&TimeStep::Expire).await;
    let seen = pair.store.read(&RK).await.unwrap();
    let other = pair.world.ask(&super::Plan::Begin { owner: 2, payload: 2, retry: false });
    let Decision::Change(change, _) = other.decide(&seen) else { panic!("it would be granted") };
    pair.clock.back(Duration::from_secs(1));
    let before = pair.store.read(&RK).await.unwrap();
    assert!(before.live().is_some());
    assert_eq!(pair.store.swap(&RK, &seen, &change).await.unwrap(), Swapped::Changed);
    assert_eq!(pair.store.read(&RK).await.unwrap(), before);
}

/// The same answer was written again after the read, and expired again. Nothing of it counts any more.
#[tokio::test]
async fn a_swap_of_an_expired_record_that_was_written_and_expired_again_goes_through() {
    let mut pair = Pair::new();
    let (claim, fingerprint) = pair.world.claims[0];
    let answer = Bytes::from_static(b"the answer");
    let complete =
        Complete { claim, fingerprint, answer, retention: RETENTION, ended: Timestamp(0), age: Duration::ZERO };
    let recorded = Ask::Complete(complete);
    pair.ask(&recorded).await;
    pair.advance(&TimeStep::Expire).await;
    let (seen, slot) = (pair.store.read(&RK).await.unwrap(), pair.world.slot.clone());
    let Decision::Change(change, _) = recorded.decide(&seen) else { panic!("the record is absent") };
    pair.ask(&recorded).await;
    pair.advance(&TimeStep::Expire).await;
    assert_eq!(pair.store.swap(&RK, &seen, &change).await.unwrap(), Swapped::Yes);
    assert!(pair.world.is_unchanged(&seen, slot.as_ref()), "the reference store agrees");
}
