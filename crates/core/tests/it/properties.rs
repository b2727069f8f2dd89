//! The machine under random sequences of everything that three attempts, an operator and a clock can do to one record; and
//! the memory store beside it, reply by reply.

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

/// Short lives and long steps, so that everything runs out now and then.
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

/// One operation, before it is known what it meets: attempts and tokens are picked among those there have been.
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

/// What time does.
#[derive(Clone, Debug)]
enum Pass {
    Forward(u32),
    Back(u32),
    Lapse,
    Expire,
    Sweep,
}

#[derive(Clone, Debug)]
enum Step {
    Do(Plan),
    /// Between its look at the record and its swap, another operation is carried out and time passes.
    Interleaved(Plan, Plan, Vec<Pass>),
    Time(Pass),
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

fn pass() -> impl Strategy<Value = Pass> {
    prop_oneof![
        3 => (1..15_000u32).prop_map(Pass::Forward),
        1 => (15_000..70_000u32).prop_map(Pass::Forward),
        1 => (1..70_000u32).prop_map(Pass::Back),
        3 => Just(Pass::Lapse),
        1 => Just(Pass::Expire),
        1 => Just(Pass::Sweep),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => plan().prop_map(Step::Do),
        2 => (plan(), plan(), prop::collection::vec(pass(), 0..3)).prop_map(|(one, other, passes)| Step::Interleaved(one, other, passes)),
        2 => pass().prop_map(Step::Time),
    ];
    prop::collection::vec(step, 1..40)
}

/// One operation as it is asked.
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
enum Reply {
    Begun(Begun),
    Renewed(Renewed),
    Completed(Completed),
    Settled(Settled),
    Cancelled(Cancelled),
    Resolved(Resolved),
}

impl Ask {
    fn judge(&self, seen: &Observed) -> Decision<Reply> {
        fn wrap<R>(decision: Decision<R>, reply: fn(R) -> Reply) -> Decision<Reply> {
            match decision {
                Decision::Reply(told) => Decision::Reply(reply(told)),
                Decision::Change(change, told) => Decision::Change(change, reply(told)),
            }
        }
        match self {
            Self::Begin(ask) => wrap(machine::begin(seen, ask), Reply::Begun),
            Self::Renew(claim) => wrap(machine::renew(seen, claim), Reply::Renewed),
            Self::Complete(ask) => wrap(machine::complete(seen, ask), Reply::Completed),
            Self::Release(claim) => wrap(machine::release(seen, claim, RELEASED), Reply::Settled),
            Self::Cancel(owner) => wrap(machine::cancel(seen, *owner, RELEASED), Reply::Cancelled),
            Self::Abandon(claim) => wrap(machine::abandon(seen, claim), Reply::Settled),
            Self::Bury(claim) => wrap(machine::bury(seen, claim, DEAD), Reply::Settled),
            Self::Hold(expected) => wrap(machine::hold(seen, *expected, UNKNOWN), Reply::Resolved),
            Self::Resolve(expected, verdict) => wrap(machine::resolve(seen, *expected, verdict), Reply::Resolved),
            Self::Reopen(expected) => wrap(machine::reopen(seen, *expected, RELEASED), Reply::Resolved),
        }
    }
}

/// A record and when it was armed, as the interpreter keeps it.
#[derive(Clone, Debug, PartialEq)]
struct Slot {
    record: Record,
    since: Timestamp,
    expires: Timestamp,
}

/// The least store that there can be, with its clock, and all that was ever granted.
#[derive(Debug)]
struct World {
    slot: Option<Slot>,
    now: Timestamp,
    token_high_water: Token,
    claims: Vec<(Claim, Fingerprint)>,
    tokens: Vec<Token>,
}

impl World {
    fn starting_at(now: Timestamp) -> Self {
        // A claim and a token that never were, so that there is something to pick from.
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
                Ask::Complete(Complete { claim, fingerprint, answer: answer(*n), retention: RETENTION, age })
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

    /// One of the last few, and mostly the last: those are the ones that matter.
    fn pick<T: Copy>(&self, all: &[T], pick: &Index) -> T {
        const WEIGHTS: [usize; 8] = [0, 0, 0, 0, 1, 1, 2, 3];
        let back = WEIGHTS[pick.index(WEIGHTS.len())];
        all[all.len().saturating_sub(1 + back)]
    }

    fn observe(&self) -> Observed {
        let slot = self.slot.as_ref();
        let left = |end: Timestamp| end.since(self.now);
        let lease_left = slot.map_or(Duration::ZERO, |slot| match &slot.record.state {
            State::Open(Phase::InProgress, holding) => left(slot.since.plus(holding.lease.into())),
            State::Completed(_) | State::Open(Phase::Released | Phase::Indeterminate | Phase::Dead, _) => {
                Duration::ZERO
            }
        });
        Observed {
            record: slot.map(|slot| slot.record.clone()),
            lease_left,
            life_left: slot.map_or(Duration::ZERO, |slot| left(slot.expires)),
            now: self.now,
            token_high_water: self.token_high_water,
        }
    }

    /// The slot, unless its life ended.
    fn live(&self) -> Option<&Slot> {
        self.slot.as_ref().filter(|slot| slot.expires > self.now)
    }

    fn apply(&mut self, change: &Change) {
        let (record, since) = (change.record.clone(), self.now);
        self.token_high_water = self.token_high_water.max(record.token);
        if self.tokens.last() != Some(&record.token) {
            self.tokens.push(record.token);
        }
        self.slot = Some(Slot { record, since, expires: since.plus(change.lifetime.into()) });
    }

    fn note(&mut self, reply: &Reply) {
        if let Reply::Begun(Begun::Granted(grant)) = reply {
            self.claims.push((Claim::from(grant), grant.fingerprint));
        }
    }

    /// The operation in one step.
    fn carry_out(&mut self, ask: &Ask) -> Reply {
        let reply = match ask.judge(&self.observe()) {
            Decision::Reply(reply) => reply,
            Decision::Change(change, reply) => {
                self.apply(&change);
                reply
            }
        };
        self.note(&reply);
        reply
    }

    /// Whether a swap writes over what was seen so: if it lived it must be the same and live, else there must still be nothing.
    fn is_still(&self, seen: &Observed, slot: Option<&Slot>) -> bool {
        if seen.live().is_some() {
            self.live() == slot
        } else {
            self.live().is_none() && (self.slot.is_none() || self.slot.as_ref() == slot)
        }
    }

    fn pass(&mut self, pass: &Pass) {
        let ms = |ms: &u32| u64::from(*ms) * 1_000;
        let seen = self.observe();
        match pass {
            Pass::Forward(by) => self.now.0 += ms(by),
            Pass::Back(by) => self.now.0 -= ms(by),
            Pass::Lapse => self.now = self.now.plus(seen.lease_left),
            Pass::Expire => self.now = self.now.plus(seen.life_left),
            Pass::Sweep => self.slot = self.live().cloned(),
        }
    }
}

/// Looks at every operation before and after it is carried out.
#[derive(Debug, Default)]
struct Judge {
    largest_grant: Token,
    ranks: HashMap<Token, u8>,
}

/// How far a record has come under its token.
fn rank(state: &State) -> u8 {
    match state {
        State::Open(Phase::InProgress, holding) if !holding.abandoned() => 0,
        State::Open(Phase::InProgress, _) => 1,
        State::Open(Phase::Indeterminate, _) => 2,
        State::Open(Phase::Released | Phase::Dead, _) => 3,
        State::Completed(_) => 4,
    }
}

impl Judge {
    fn carry_out(&mut self, world: &mut World, ask: &Ask) -> Reply {
        let before = world.live().cloned();
        let reply = world.carry_out(ask);
        let after = world.live().cloned();
        self.tokens_grow(&reply);
        self.nothing_returns(before.as_ref(), after.as_ref());
        answers_stand(before.as_ref(), after.as_ref());
        mismatch_comes_first(ask, before.as_ref(), after.as_ref(), &reply);
        strangers_change_nothing(ask, before.as_ref(), after.as_ref());
        self.repeated_it_is_the_same(world, ask, &reply);
        reply
    }

    fn tokens_grow(&mut self, reply: &Reply) {
        if let Reply::Begun(Begun::Granted(grant)) = reply {
            assert!(grant.token > self.largest_grant, "{grant:?} after {:?}", self.largest_grant);
            self.largest_grant = grant.token;
        }
    }

    /// Under one token a record only goes on. An answer that was forgotten may be recorded anew: no swap writes over an answer.
    fn nothing_returns(&mut self, before: Option<&Slot>, after: Option<&Slot>) {
        let Some(record) = after.map(|slot| &slot.record) else {
            return;
        };
        if before.is_some_and(|before| before.record == *record) {
            return;
        }
        let rank = rank(&record.state);
        let answered = rank == 4;
        if let Some(ranked) = self.ranks.insert(record.token, rank) {
            assert!(rank > ranked || answered, "back to {record:?} from {before:?}");
        }
        if let Some(before) = before.filter(|before| before.record.token != record.token) {
            let wins = matches!(record.state, State::Completed(_));
            assert!(record.token > before.record.token || wins, "{record:?} after {before:?}");
        }
    }

    /// The same operation by the same attempt at once gives the same reply, or the one that says that it was done already,
    /// and changes nothing but the arming.
    fn repeated_it_is_the_same(&mut self, world: &mut World, ask: &Ask, reply: &Reply) {
        let before = world.live().map(|slot| slot.record.clone());
        let (claims, tokens) = (world.claims.len(), world.tokens.len());
        let expected = match reply {
            Reply::Begun(Begun::Granted(grant)) => Reply::Begun(Begun::Mine(*grant)),
            Reply::Completed(Completed::Done | Completed::Recreated) => Reply::Completed(Completed::Already),
            Reply::Begun(_)
            | Reply::Renewed(_)
            | Reply::Completed(_)
            | Reply::Settled(_)
            | Reply::Cancelled(_)
            | Reply::Resolved(_) => reply.clone(),
        };
        assert_eq!(world.carry_out(ask), expected, "{ask:?} repeated");
        assert_eq!(world.live().map(|slot| slot.record.clone()), before, "{ask:?} repeated");
        assert_eq!((world.claims.len(), world.tokens.len()), (claims, tokens));
    }
}

fn answers_stand(before: Option<&Slot>, after: Option<&Slot>) {
    if let Some(before) = before.filter(|slot| matches!(slot.record.state, State::Completed(_))) {
        assert_eq!(after, Some(before), "a recorded answer stands as long as it lives");
    }
}

fn mismatch_comes_first(ask: &Ask, before: Option<&Slot>, after: Option<&Slot>, reply: &Reply) {
    let (Ask::Begin(ask), Some(slot)) = (ask, before) else {
        return;
    };
    let differs = !ask.call.accepts(slot.record.fingerprint);
    assert_eq!(*reply == Reply::Begun(Begun::Mismatch), differs, "{ask:?} of {slot:?}");
    if differs {
        assert_eq!(after, before);
    }
}

/// Apart from a begin and a known effect, who does not hold the record changes nothing.
fn strangers_change_nothing(ask: &Ask, before: Option<&Slot>, after: Option<&Slot>) {
    let holder = before.and_then(|slot| slot.record.state.holding()).map(|holding| holding.owner);
    let token = before.map(|slot| slot.record.token);
    let holds = |claim: &Claim| (Some(claim.owner), Some(claim.token)) == (holder, token);
    let may = match ask {
        Ask::Begin(_) | Ask::Complete(_) => true,
        Ask::Renew(claim) | Ask::Release(claim) | Ask::Abandon(claim) | Ask::Bury(claim) => holds(claim),
        Ask::Cancel(owner) => Some(*owner) == holder,
        Ask::Hold(expected) | Ask::Resolve(expected, _) | Ask::Reopen(expected) => Some(*expected) == token,
    };
    if !may {
        assert_eq!(after, before, "{ask:?}");
    }
}

const START: Timestamp = Timestamp(1_000_000_000_000_000);

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// See [`Judge`] for what holds after each step.
    #[test]
    fn the_machine_keeps_its_promises(steps in steps()) {
        let (mut world, mut judge) = (World::starting_at(START), Judge::default());
        for step in &steps {
            match step {
                Step::Time(pass) => world.pass(pass),
                Step::Do(plan) => {
                    let ask = world.ask(plan);
                    judge.carry_out(&mut world, &ask);
                }
                Step::Interleaved(plan, meanwhile, passes) => {
                    let ask = world.ask(plan);
                    let (seen, slot) = (world.observe(), world.slot.clone());
                    let decision = ask.judge(&seen);
                    let meanwhile = world.ask(meanwhile);
                    judge.carry_out(&mut world, &meanwhile);
                    for pass in passes {
 world.pass(pass);
                    }
                    // What is absent is granted by a store's begin, in one step and never by a swap.
                    let by_swap = seen.live().is_some() || !matches!(ask, Ask::Begin(_));
                    match decision {
                        Decision::Change(change, reply) if by_swap && world.is_still(&seen, slot.as_ref()) => {
                            let before = world.live().cloned();
                            world.apply(&change);
                            world.note(&reply);
                            let after = world.live().cloned();
                            judge.tokens_grow(&reply);
                            judge.nothing_returns(before.as_ref(), after.as_ref());
                            answers_stand(before.as_ref(), after.as_ref());
                            strangers_change_nothing(&ask, before.as_ref(), after.as_ref());
                        }
                        Decision::Change(..) => drop(judge.carry_out(&mut world, &ask)),
                        Decision::Reply(_) => {}
                    }
                }
            }
        }
    }
}
