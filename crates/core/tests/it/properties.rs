//! The machine under random sequences of the operations of three attempts and an operator, and of steps of the clock;
//! and the memory store under the same sequences, compared reply by reply.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::machine::{
    self, Begin, Begun, Cancelled, Change, Claim, Complete, Completed, Decision, Lapse, Observed, Renewed, Resolved,
    Settled, Verdict,
};
use hapax_core::{Call, Fingerprint, Millis, Owner, Phase, Record, RecordKey, Rule, Seconds, State, Timestamp, Token};
use proptest::prelude::*;
use proptest::sample::Index;

mod memory;

const RK: RecordKey = RecordKey::from_bytes([5; 16]);

/// Short lifetimes and long time steps, so that leases and lives often end.
const LEASE: Millis = Millis(10_000);
const UNKNOWN: Seconds = Seconds(60);
const RETENTION: Seconds = Seconds(40);
const RELEASED: Seconds = Seconds(20);
const DEAD: Seconds = Seconds(50);

fn owner(n: u8) -> Owner {
    Owner([n; 16])
}

fn payload(n: u8) -> Fingerprint {
    Fingerprint::from_parts(Rule(1), [n; 12])
}

/// One operation; attempts and tokens are indices into those that occurred so far.
#[derive(Clone, Debug)]
enum Plan {
    Begin { owner: u8, payload: u8, retry: bool },
    Renew(Index),
    Complete { by: Index, answer: u8, old: bool },
    Release(Index),
    Cancel(u8),
    Abandon(Index),
    Bury(Index),
    Hold(Index),
    Resolve { expected: Index, done: Option<u8> },
    Reopen(Index),
}

/// A step of the clock, or a sweep.
#[derive(Clone, Debug)]
enum TimeStep {
    Forward(u32),
    Back(u32),
    Lapse,
    Expire,
    Sweep,
}

#[derive(Clone, Debug)]
enum Step {
    Do(Plan),
    /// An operation between whose read and swap another operation is carried out and time passes.
    Interleaved(Plan, Plan, Vec<TimeStep>),
    Time(TimeStep),
}

fn plan() -> impl Strategy<Value = Plan> {
    let owners = 1..=3u8;
    prop_oneof![
        5 => (owners.clone(), prop_oneof![9 => Just(1), 1 => Just(2u8)], any::<bool>())
            .prop_map(|(owner, payload, retry)| Plan::Begin { owner, payload, retry }),
        2 => any::<Index>().prop_map(Plan::Renew),
        2 => (any::<Index>(), 1..=2u8, prop::bool::weighted(0.2))
            .prop_map(|(by, answer, old)| Plan::Complete { by, answer, old }),
        2 => any::<Index>().prop_map(Plan::Release),
        1 => owners.prop_map(Plan::Cancel),
        2 => any::<Index>().prop_map(Plan::Abandon),
        1 => any::<Index>().prop_map(Plan::Bury),
        2 => any::<Index>().prop_map(Plan::Hold),
        2 => (any::<Index>(), prop::option::of(1..=2u8)).prop_map(|(expected, done)| Plan::Resolve { expected, done }),
        1 => any::<Index>().prop_map(Plan::Reopen),
    ]
}

fn time_step() -> impl Strategy<Value = TimeStep> {
    prop_oneof![
        3 => (1..15_000u32).prop_map(TimeStep::Forward),
        1 => (15_000..70_000u32).prop_map(TimeStep::Forward),
        1 => (1..70_000u32).prop_map(TimeStep::Back),
        3 => Just(TimeStep::Lapse),
        1 => Just(TimeStep::Expire),
        1 => Just(TimeStep::Sweep),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => plan().prop_map(Step::Do),
        2 => (plan(), plan(), prop::collection::vec(time_step(), 0..3))
            .prop_map(|(one, other, time_steps)| Step::Interleaved(one, other, time_steps)),
        2 => time_step().prop_map(Step::Time),
    ];
    prop::collection::vec(step, 1..40)
}

/// One operation with its arguments.
#[derive(Clone, Debug)]
enum Ask {
    Begin(Begin),
    Renew(Claim),
    Complete(Complete),
    Release(Claim),
    Cancel(Owner),
    Abandon(Claim),
    Bury(Claim),
    Hold(Token),
    Resolve(Token, Verdict),
    Reopen(Token),
}

#[derive(Clone, Debug, PartialEq)]
enum MachineReply {
    Begun(Begun),
    Renewed(Renewed),
    Completed(Completed),
    Settled(Settled),
    Cancelled(Cancelled),
    Resolved(Resolved),
}

impl Ask {
    fn decide(&self, seen: &Observed) -> Decision<MachineReply> {
        fn wrap<R>(decision: Decision<R>, reply: fn(R) -> MachineReply) -> Decision<MachineReply> {
            decision.map(reply)
        }
        match self {
            Self::Begin(ask) => wrap(machine::begin(seen, ask), MachineReply::Begun),
            Self::Renew(claim) => wrap(machine::renew(seen, claim), MachineReply::Renewed),
            Self::Complete(ask) => wrap(machine::complete(seen, ask), MachineReply::Completed),
            Self::Release(claim) => wrap(machine::release(seen, claim, RELEASED), MachineReply::Settled),
            Self::Cancel(owner) => wrap(machine::cancel(seen, *owner, RELEASED), MachineReply::Cancelled),
            Self::Abandon(claim) => wrap(machine::abandon(seen, claim), MachineReply::Settled),
            Self::Bury(claim) => wrap(machine::bury(seen, claim, DEAD), MachineReply::Settled),
            Self::Hold(expected) => wrap(machine::hold(seen, *expected, UNKNOWN), MachineReply::Resolved),
            Self::Resolve(expected, verdict) => {
                wrap(machine::resolve(seen, *expected, verdict), MachineReply::Resolved)
            }
            Self::Reopen(expected) => wrap(machine::reopen(seen, *expected, RELEASED), MachineReply::Resolved),
        }
    }
}

/// The record of the reference store, and when it was armed and expires.
#[derive(Clone, Debug, PartialEq)]
struct StoredSlot {
    record: Record,
    armed_at: Timestamp,
    expires_at: Timestamp,
}

/// A reference store for one record with its clock, and every grant and token so far.
#[derive(Debug)]
struct World {
    slot: Option<StoredSlot>,
    now: Timestamp,
    token_high_water: Token,
    claims: Vec<(Claim, Fingerprint)>,
    tokens: Vec<Token>,
}

impl World {
    fn starting_at(now: Timestamp) -> Self {
        // A claim and a token that were never granted, so that the lists are not empty.
        let claim = Claim { owner: owner(9), token: Token(3) };
        Self { slot: None, now, token_high_water: Token(0), claims: vec![(claim, payload(1))], tokens: vec![Token(3)] }
    }

    fn ask(&self, plan: &Plan) -> Ask {
        let claim = |pick: &Index| self.pick(&self.claims, pick).0;
        let token = |pick: &Index| self.pick(&self.tokens, pick);
        let answer = |n: u8| Bytes::from(vec![n; usize::from(n)]);
        match plan {
            Plan::Begin { owner: by, payload: of, retry } => Ask::Begin(Begin {
                call: Call::new(RK).fingerprint(payload(*of)),
                owner: owner(*by),
                lease: LEASE,
                unknown_retention: UNKNOWN,
                on_lapse: if *retry { Lapse::Retry } else { Lapse::Hold },
            }),
            Plan::Renew(by) => Ask::Renew(claim(by)),
            Plan::Complete { by, answer: n, old } => {
                let (claim, fingerprint) = self.pick(&self.claims, by);
                let age = if *old { Duration::from(RETENTION) } else { Duration::ZERO };
                Ask::Complete(Complete {
                    claim,
                    fingerprint,
                    answer: answer(*n),
                    retention: RETENTION,
                    ended: Timestamp(0),
                    age,
                })
            }
            Plan::Release(by) => Ask::Release(claim(by)),
            Plan::Cancel(by) => Ask::Cancel(owner(*by)),
            Plan::Abandon(by) => Ask::Abandon(claim(by)),
            Plan::Bury(by) => Ask::Bury(claim(by)),
            Plan::Hold(expected) => Ask::Hold(token(expected)),
            Plan::Resolve { expected, done: Some(n) } => {
                Ask::Resolve(token(expected), Verdict::Done { answer: answer(*n), retention: RETENTION })
            }
            Plan::Resolve { expected, done: None } => {
                Ask::Resolve(token(expected), Verdict::NotDone { lifetime: RELEASED })
            }
            Plan::Reopen(expected) => Ask::Reopen(token(expected)),
        }
    }

    /// One of the latest four, most often the latest: older ones rarely matter.
    fn pick<T: Copy>(&self, all: &[T], pick: &Index) -> T {
        const WEIGHTS: [usize; 8] = [0, 0, 0, 0, 1, 1, 2, 3];
        let back = WEIGHTS[pick.index(WEIGHTS.len())];
        all[all.len().saturating_sub(1 + back)]
    }

    fn observe(&self) -> Observed {
        let slot = self.slot.as_ref();
        let left = |end: Timestamp| end.since(self.now);
        let lease_left = slot.map_or(Duration::ZERO, |slot| match &slot.record.state {
            State::Open(Phase::InProgress, holding) => left(slot.armed_at.plus(holding.lease.into())),
            State::Completed(_) | State::Open(Phase::Released | Phase::Indeterminate | Phase::Dead, _) => {
                Duration::ZERO
            }
        });
        Observed {
            record: slot.map(|slot| slot.record.clone()),
            lease_left,
            life_left: slot.map_or(Duration::ZERO, |slot| left(slot.expires_at)),
            now: self.now,
            token_high_water: self.token_high_water,
        }
    }

    /// The slot, unless it is expired.
    fn live(&self) -> Option<&StoredSlot> {
        self.slot.as_ref().filter(|slot| slot.expires_at > self.now)
    }

    fn apply(&mut self, change: &Change) {
        let (record, armed_at) = (change.record.clone(), self.now);
        self.token_high_water = self.token_high_water.max(record.token);
        if self.tokens.last() != Some(&record.token) {
            self.tokens.push(record.token);
        }
        self.slot = Some(StoredSlot { record, armed_at, expires_at: armed_at.plus(change.lifetime.into()) });
    }

    fn record_claim(&mut self, reply: &MachineReply) {
        if let MachineReply::Begun(Begun::Granted(grant)) = reply {
            self.claims.push((Claim::from(grant), grant.fingerprint));
        }
    }

    /// Decides and applies an operation in one step.
    fn carry_out(&mut self, ask: &Ask) -> MachineReply {
        let reply = match ask.decide(&self.observe()) {
            Decision::Reply(reply) => reply,
            Decision::Change(change, reply) => {
                self.apply(&change);
                reply
            }
        };
        self.record_claim(&reply);
        reply
    }

    /// Whether a swap that was decided on `seen` still writes: a live record must be unchanged and live, an absent one
    /// must still be absent. An expired record is the same one although it was written again and has expired again.
    fn is_unchanged(&self, seen: &Observed, slot: Option<&StoredSlot>) -> bool {
        if seen.live().is_some() {
            return self.live() == slot;
        }
        let is_same = |now: &StoredSlot| slot.is_some_and(|slot| slot.record == now.record);
        self.live().is_none() && self.slot.as_ref().is_none_or(is_same)
    }

    fn advance(&mut self, time_step: &TimeStep) {
        let ms = |ms: &u32| u64::from(*ms) * 1_000;
        let seen = self.observe();
        match time_step {
            TimeStep::Forward(by) => self.now.0 += ms(by),
            TimeStep::Back(by) => self.now.0 -= ms(by),
            TimeStep::Lapse => self.now = self.now.plus(seen.lease_left),
            TimeStep::Expire => self.now = self.now.plus(seen.life_left),
            TimeStep::Sweep => self.slot = self.live().cloned(),
        }
    }
}

/// Checks the invariants of each operation, before and after it is carried out.
#[derive(Debug, Default)]
struct Invariants {
    largest_grant: Token,
    ranks: HashMap<Token, u8>,
}

/// The order in which a record passes through its states under one token.
fn rank(state: &State) -> u8 {
    match state {
        State::Open(Phase::InProgress, holding) if !holding.is_abandoned() => 0,
        State::Open(Phase::InProgress, _) => 1,
        State::Open(Phase::Indeterminate, _) => 2,
        State::Open(Phase::Released | Phase::Dead, _) => 3,
        State::Completed(_) => 4,
    }
}

impl Invariants {
    fn carry_out(&mut self, world: &mut World, ask: &Ask) -> MachineReply {
        let before = world.live().cloned();
        let reply = world.carry_out(ask);
        let after = world.live().cloned();
        self.assert_tokens_grow(&reply);
        self.assert_no_state_returns(before.as_ref(), after.as_ref());
        assert_answers_stay(before.as_ref(), after.as_ref());
        assert_mismatch_comes_first(ask, before.as_ref(), after.as_ref(), &reply);
        assert_other_attempts_change_nothing(ask, before.as_ref(), after.as_ref());
        self.assert_repetition_changes_nothing(world, ask, &reply);
        reply
    }

    fn assert_tokens_grow(&mut self, reply: &MachineReply) {
        if let MachineReply::Begun(Begun::Granted(grant)) = reply {
            assert!(grant.token > self.largest_grant, "{grant:?} after {:?}", self.largest_grant);
            self.largest_grant = grant.token;
        }
    }

    /// Under one token a record never returns to an earlier state. Only a completion may write a forgotten answer
    /// again.
    fn assert_no_state_returns(&mut self, before: Option<&StoredSlot>, after: Option<&StoredSlot>) {
        let Some(record) = after.map(|slot| &slot.record) else {
            return;
        };
        if before.is_some_and(|before| before.record == *record) {
            return;
        }
        let rank = rank(&record.state);
        let is_completed = rank == 4;
        if let Some(ranked) = self.ranks.insert(record.token, rank) {
            assert!(rank > ranked || is_completed, "back to {record:?} from {before:?}");
        }
        if let Some(before) = before.filter(|before| before.record.token != record.token) {
            let wins = matches!(record.state, State::Completed(_));
            assert!(record.token > before.record.token || wins, "{record:?} after {before:?}");
        }
    }

    /// An operation that is repeated at once returns the same reply, or the one for "already done", and does not change
    /// the record, except for starting its lease again.
    fn assert_repetition_changes_nothing(&mut self, world: &mut World, ask: &Ask, reply: &MachineReply) {
        let before = world.live().map(|slot| slot.record.clone());
        let (claims, tokens) = (world.claims.len(), world.tokens.len());
        let expected = match reply {
            MachineReply::Begun(Begun::Granted(grant)) => MachineReply::Begun(Begun::Mine(*grant)),
            MachineReply::Completed(Completed::Done | Completed::Recreated) => {
                MachineReply::Completed(Completed::Already)
            }
            MachineReply::Begun(_)
            | MachineReply::Renewed(_)
            | MachineReply::Completed(_)
            | MachineReply::Settled(_)
            | MachineReply::Cancelled(_)
            | MachineReply::Resolved(_) => reply.clone(),
        };
        assert_eq!(world.carry_out(ask), expected, "{ask:?} repeated");
        assert_eq!(world.live().map(|slot| slot.record.clone()), before, "{ask:?} repeated");
        assert_eq!((world.claims.len(), world.tokens.len()), (claims, tokens));
    }
}

fn assert_answers_stay(before: Option<&StoredSlot>, after: Option<&StoredSlot>) {
    if let Some(before) = before.filter(|slot| matches!(slot.record.state, State::Completed(_))) {
        assert_eq!(after, Some(before), "a recorded answer does not change during its life");
    }
}

fn assert_mismatch_comes_first(
    ask: &Ask,
    before: Option<&StoredSlot>,
    after: Option<&StoredSlot>,
    reply: &MachineReply,
) {
    let (Ask::Begin(ask), Some(slot)) = (ask, before) else {
        return;
    };
    let differs = !ask.call.accepts(slot.record.fingerprint);
    assert_eq!(*reply == MachineReply::Begun(Begun::Mismatch), differs, "{ask:?} of {slot:?}");
    if differs {
        assert_eq!(after, before);
    }
}

/// Except for a begin and a completion, an attempt that does not hold the record changes nothing.
fn assert_other_attempts_change_nothing(ask: &Ask, before: Option<&StoredSlot>, after: Option<&StoredSlot>) {
    let holder = before.and_then(|slot| slot.record.state.holding()).map(|holding| holding.owner);
    let token = before.map(|slot| slot.record.token);
    let holds = |claim: &Claim| (Some(claim.owner), Some(claim.token)) == (holder, token);
    let is_allowed = match ask {
        Ask::Begin(_) | Ask::Complete(_) => true,
        Ask::Renew(claim) | Ask::Release(claim) | Ask::Abandon(claim) | Ask::Bury(claim) => holds(claim),
        Ask::Cancel(owner) => Some(*owner) == holder,
        Ask::Hold(expected) | Ask::Resolve(expected, _) | Ask::Reopen(expected) => Some(*expected) == token,
    };
    if !is_allowed {
        assert_eq!(after, before, "{ask:?}");
    }
}

const START: Timestamp = Timestamp(1_000_000_000_000_000);

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// [`Invariants`] has the checks after each step.
    #[test]
    fn the_machine_keeps_its_invariants(steps in steps()) {
        let (mut world, mut invariants) = (World::starting_at(START), Invariants::default());
        for step in &steps {
            match step {
                Step::Time(time_step) => world.advance(time_step),
                Step::Do(plan) => {
                    let ask = world.ask(plan);
                    invariants.carry_out(&mut world, &ask);
                }
                Step::Interleaved(plan, meanwhile, time_steps) => {
                    let ask = world.ask(plan);
                    let (seen, slot) = (world.observe(), world.slot.clone());
                    let decision = ask.decide(&seen);
                    let meanwhile = world.ask(meanwhile);
                    invariants.carry_out(&mut world, &meanwhile);
                    for time_step in time_steps {
                        world.advance(time_step);
                    }
                    // A store grants an absent record in one step, never by a swap.
                    let by_swap = seen.live().is_some() || !matches!(ask, Ask::Begin(_));
                    match decision {
                        Decision::Change(change, reply) if by_swap && world.is_unchanged(&seen, slot.as_ref()) => {
                            let before = world.live().cloned();
                            world.apply(&change);
                            world.record_claim(&reply);
                            let after = world.live().cloned();
                            invariants.assert_tokens_grow(&reply);
                            invariants.assert_no_state_returns(before.as_ref(), after.as_ref());
                            assert_answers_stay(before.as_ref(), after.as_ref());
                            assert_other_attempts_change_nothing(&ask, before.as_ref(), after.as_ref());
                        }
                        Decision::Change(..) => drop(invariants.carry_out(&mut world, &ask)),
                        Decision::Reply(_) => {}
                    }
                }
            }
        }
    }
}
