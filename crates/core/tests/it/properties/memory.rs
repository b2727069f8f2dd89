//! The memory store beside the interpreter.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::machine::Decision;
use hapax_core::runtime::Runtime;
use hapax_core::store::{Inspect, Memory, MemorySettings, Protocol, Swapped};
use hapax_core::{Result, Store};
use hapax_testkit::ManualClock;
use proptest::prelude::*;

use super::{Ask, DEAD, Pass, RELEASED, RK, Reply, Step, UNKNOWN, World, steps};

/// The store, its clock, and the interpreter, which is asked the same.
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
        let told = told(&self.store, ask).await.expect("the memory store answers");
        assert_eq!(told, self.world.carry_out(ask), "{ask:?}");
        self.same().await;
    }

    /// What is live is seen alike; what expired may be swept away on either side.
    async fn same(&self) {
        let (seen, expected) = (self.store.read(&RK).await.unwrap(), self.world.observe());
        assert_eq!((seen.now, seen.token_high_water), (expected.now, expected.token_high_water));
        assert_eq!(seen.live(), expected.live());
        if seen.live().is_some() {
            assert_eq!((seen.lease_left, seen.life_left), (expected.lease_left, expected.life_left));
        }
    }

    async fn pass(&mut self, pass: &Pass) {
        self.world.pass(pass);
        if matches!(pass, Pass::Sweep) {
            while self.store.sweep(10).await.unwrap() > 0 {}
        }
        self.clock.set(|_| self.world.now);
        self.same().await;
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Time(pass) => self.pass(pass).await,
            Step::Do(plan) => self.ask(&self.world.ask(plan)).await,
            Step::Interleaved(plan, meanwhile, passes) => {
                let ask = self.world.ask(plan);
                let seen = self.store.read(&RK).await.unwrap();
                let (expected, slot) = (self.world.observe(), self.world.slot.clone());
                let decision = ask.judge(&seen);
                self.ask(&self.world.ask(meanwhile)).await;
                for pass in passes {
                    self.pass(pass).await;
                }
                let Decision::Change(change, reply) = decision else {
                    return;
                };
                let swapped = self.store.swap(&RK, &seen, &change).await.unwrap();
                if self.world.is_still(&expected, slot.as_ref()) {
                    assert_eq!(swapped, Swapped::Yes, "nothing changed since {seen:?}");
                    self.world.apply(&change);
                    self.world.note(&reply);
                } else {
                    assert_eq!(swapped, Swapped::Changed, "it was {seen:?}");
                }
                self.same().await;
            }
        }
    }
}

async fn told(store: &Memory, ask: &Ask) -> Result<Reply> {
    let protocol = Protocol::over(store);
    Ok(match ask {
        Ask::Begin(ask) => Reply::Begun(protocol.begin(ask).await?),
        Ask::Renew(claim) => Reply::Renewed(protocol.renew(&RK, claim).await?),
        Ask::Complete(ask) => Reply::Completed(protocol.complete(&RK, ask).await?),
        Ask::Release(claim) => Reply::Settled(protocol.release(&RK, claim, RELEASED).await?),
        Ask::Cancel(owner) => Reply::Cancelled(protocol.cancel(&RK, *owner, RELEASED).await?),
        Ask::Abandon(claim) => Reply::Settled(protocol.abandon(&RK, claim).await?),
        Ask::Bury(claim) => Reply::Settled(protocol.bury(&RK, claim, DEAD).await?),
        Ask::Hold(expected) => Reply::Resolved(protocol.hold(&RK, *expected, UNKNOWN).await?),
        Ask::Resolve(expected, verdict) => Reply::Resolved(protocol.resolve(&RK, *expected, verdict).await?),
        Ask::Reopen(expected) => Reply::Resolved(protocol.reopen(&RK, *expected, RELEASED).await?),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn the_memory_store_is_the_machine(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut pair = Pair::new();
            for step in &steps {
                pair.step(step).await;
            }
        });
    }
}

/// Two looks at one record, between which its life ended: the second finds nothing, so there is nothing to write over.
#[tokio::test]
async fn a_swap_of_what_expired_since_it_was_seen_is_changed() {
    let mut pair = Pair::new();
    let begin = pair.world.ask(&super::Plan::Begin { owner: 1, payload: 1, retry: false });
    pair.ask(&begin).await;
    let seen = pair.store.read(&RK).await.unwrap();
    let claim = pair.world.claims.last().unwrap().0;
    let Decision::Change(change, _) = Ask::Release(claim).judge(&seen) else { panic!("it can be released") };
    pair.pass(&Pass::Expire).await;
    assert_eq!(pair.store.swap(&RK, &seen, &change).await.unwrap(), Swapped::Changed);
    assert_eq!(pair.store.read(&RK).await.unwrap().live(), None);
}

/// A record seen as expired lives again once the clock stepped back: what was seen as absent is no longer absent.
#[tokio::test]
async fn a_swap_of_what_was_expired_and_lives_again_is_changed() {
    let mut pair = Pair::new();
    let begin = pair.world.ask(&super::Plan::Begin { owner: 1, payload: 1, retry: false });
    pair.ask(&begin).await;
    pair.pass(&Pass::Expire).await;
    let seen = pair.store.read(&RK).await.unwrap();
    let other = pair.world.ask(&super::Plan::Begin { owner: 2, payload: 2, retry: false });
    let Decision::Change(change, _) = other.judge(&seen) else { panic!("it would be granted") };
    pair.clock.back(Duration::from_secs(1));
    let before = pair.store.read(&RK).await.unwrap();
    assert!(before.live().is_some());
    assert_eq!(pair.store.swap(&RK, &seen, &change).await.unwrap(), Swapped::Changed);
    assert_eq!(pair.store.read(&RK).await.unwrap(), before);
}
