//! What becomes of each piece of bytes.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::fault::{Counts, Direction, Fault, Moment, Rule};

/// The faults there are now, and what they did; for all connections.
#[derive(Debug, Default)]
pub(super) struct Rules(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By number, in the order in which they came.
    rules: BTreeMap<u64, Rule>,
    last_number: u64,
    counts: Counts,
}

impl Rules {
    pub(super) fn add(&self, rule: Rule) {
        let mut state = self.lock();
        state.last_number += 1;
        let number = state.last_number;
        state.rules.insert(number, rule);
    }

    pub(super) fn clear(&self) {
        self.lock().rules.clear();
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().counts
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.lock().counts);
    }

    /// Whether a new connection is rejected.
    pub(super) fn rejects(&self) -> bool {
        let mut state = self.lock();
        state.counts.connections += 1;
        let rejects = state.rules.values_mut().any(|rule| rule.fault == Fault::Reject && rule.hits());
        state.counts.rejected += u64::from(rejects);
        rejects
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What becomes of a piece: so many of its bytes go on, in portions, perhaps behind others, and then perhaps the connection ends.
#[derive(Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) ahead: Vec<u8>,
    pub(super) bytes: usize,
    pub(super) delay: Duration,
    pub(super) portions: Option<(usize, Duration)>,
    pub(super) end: Option<Ending>,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Both sides have closed it.
    Closed,
    /// Both sides are reset.
    Reset,
    /// The client is reset; the server still reads what was sent.
    ClientReset,
}

/// What a rule does to a piece.
enum Effect {
    Late(Duration),
    Stray(Vec<u8>),
    InPortions(usize, Duration),
    HalfOpen,
    Silence,
    /// After so many of its bytes.
    End(usize, Ending),
}

impl Effect {
    fn on(self, verdict: &mut Verdict, counts: &mut Counts) {
        let counted = match self {
            Self::Late(delay) => {
                verdict.delay += delay;
                &mut counts.held_up
            }
            Self::InPortions(bytes, every) => {
                verdict.portions = Some((bytes, every));
                &mut counts.held_up
            }
            Self::Stray(bytes) => {
                verdict.ahead.extend(bytes);
                &mut counts.strays
            }
            Self::HalfOpen => &mut counts.half_open,
            Self::Silence => &mut counts.cuts,
            Self::End(bytes, ending) => {
                (verdict.bytes, verdict.end) = (bytes, Some(ending));
                &mut counts.cuts
            }
        };
        *counted += 1;
    }
}

/// One direction of one connection.
pub(super) struct Course<'a> {
    rules: &'a Rules,
    direction: Direction,
    /// Of the connection: what the server sends next is lost.
    answer_is_lost: &'a AtomicBool,
    is_deaf: bool,
    /// Bytes that came so far.
    seen: u64,
    /// How many had come when a rule was first met, by the number of the rule; nothing once it let this connection go by.
    met: BTreeMap<u64, Option<u64>>,
    /// The last bytes before this piece.
    tail: Vec<u8>,
}

/// A request is looked for over pieces for this many bytes.
const TAIL: usize = 256;

impl<'a> Course<'a> {
    pub(super) fn new(rules: &'a Rules, direction: Direction, answer_is_lost: &'a AtomicBool) -> Self {
        let (met, tail) = (BTreeMap::new(), Vec::new());
        Self { rules, direction, answer_is_lost, is_deaf: false, seen: 0, met, tail }
    }

    /// Whether the end of what was sent is lost as well.
    pub(super) fn is_deaf(&self) -> bool {
        self.is_deaf
    }

    pub(super) fn judge(&mut self, piece: &[u8]) -> Verdict {
        let mut state = self.rules.lock();
        let State { rules, counts, .. } = &mut *state;
        let mut verdict =
            Verdict { ahead: Vec::new(), bytes: piece.len(), delay: Duration::ZERO, portions: None, end: None };
        if self.direction == Direction::ToClient && self.answer_is_lost.load(Ordering::Relaxed) {
            Effect::End(0, Ending::Reset).on(&mut verdict, counts);
        }
        for (number, rule) in rules {
            if verdict.end.is_none() && !self.is_deaf {
                let effect = self.effect(*number, rule, piece);
                self.is_deaf = matches!(effect, Some(Effect::HalfOpen | Effect::Silence));
                if let Some(effect) = effect {
                    effect.on(&mut verdict, counts);
                }
            }
        }
        drop(state);
        if self.is_deaf {
            verdict.bytes = 0;
        }
        self.seen += piece.len() as u64;
        self.remember(piece);
        verdict
    }

    /// What a rule does to this piece, if it hits.
    fn effect(&mut self, number: u64, rule: &mut Rule, piece: &[u8]) -> Option<Effect> {
        match &rule.fault {
            Fault::Reject => None,
            &Fault::Latency { delay, jitter } => rule.hits().then(|| Effect::Late(around(delay, jitter))),
            &Fault::Drip { bytes, every } => rule.hits().then_some(Effect::InPortions(bytes.max(1), every)),
            Fault::Stray(bytes) => {
                let bytes = bytes.clone();
                (self.direction == Direction::ToClient && rule.hits()).then_some(Effect::Stray(bytes))
            }
            &Fault::HalfOpen(direction) => {
                let applies = direction == self.direction && self.left(number, 0).is_some();
                (applies && self.is_hit(number, rule)).then_some(Effect::HalfOpen)
            }
            &Fault::ResetAfter { direction, bytes } => {
                let left = self.left(number, bytes).filter(|_| direction == self.direction)?;
                let left = usize::try_from(left).unwrap_or(usize::MAX);
                (piece.len() > left && self.is_hit(number, rule)).then_some(Effect::End(left, Ending::Reset))
            }
            Fault::Cut { at, matching } => {
                let (at, applies) = (*at, self.direction == Direction::ToServer && self.has(piece, matching));
                (applies && rule.hits()).then(|| self.cut(at, piece)).flatten()
            }
        }
    }

    fn cut(&self, at: Moment, piece: &[u8]) -> Option<Effect> {
        match at {
            Moment::Silently => Some(Effect::Silence),
            Moment::Unsent => Some(Effect::End(0, Ending::Reset)),
            Moment::Sent => Some(Effect::End(piece.len(), Ending::ClientReset)),
            Moment::Answered => {
                // It has its effect when the answer is there.
                self.answer_is_lost.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// How many of so many bytes are left since a rule about connections was met; nothing once it has let this one go by.
    fn left(&mut self, number: u64, bytes: u64) -> Option<u64> {
        let met = *self.met.entry(number).or_insert(Some(self.seen));
        met.map(|met| bytes.saturating_sub(self.seen - met))
    }

    fn is_hit(&mut self, number: u64, rule: &mut Rule) -> bool {
        let hits = rule.hits();
        if !hits {
            self.met.insert(number, None);
        }
        hits
    }

    /// Whether these bytes end in this piece.
    fn has(&self, piece: &[u8], matching: &[u8]) -> bool {
        if matching.is_empty() {
            return true;
        }
        let before = &self.tail[self.tail.len() - self.tail.len().min(matching.len() - 1)..];
        [before, piece].concat().windows(matching.len()).any(|window| window == matching)
    }

    fn remember(&mut self, piece: &[u8]) {
        self.tail.extend_from_slice(piece);
        let too_many = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..too_many);
    }
}

/// Somewhere between `length - jitter` and `length + jitter`.
fn around(length: Duration, jitter: Duration) -> Duration {
    let span = u64::try_from(2 * jitter.as_nanos()).unwrap_or(u64::MAX);
    let random = RandomState::new().hash_one(span) % span.saturating_add(1).max(1);
    (length + Duration::from_nanos(random)).saturating_sub(jitter)
}
