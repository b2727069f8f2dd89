//! Decides how each piece of bytes is forwarded.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::fault::{CutPoint, Direction, FaultCounts, FaultRule, NetworkFault};

/// The active faults and their counts, for all connections.
#[derive(Debug, Default)]
pub(super) struct FaultRules(Mutex<RulesState>);

#[derive(Debug, Default)]
struct RulesState {
    /// By number, in the order in which they were added.
    rules: BTreeMap<u64, FaultRule>,
    last_number: u64,
    counts: FaultCounts,
}

impl FaultRules {
    pub(super) fn add(&self, rule: FaultRule) {
        let mut state = self.0.lock();
        state.last_number += 1;
        let number = state.last_number;
        state.rules.insert(number, rule);
    }

    pub(super) fn clear(&self) {
        self.0.lock().rules.clear();
    }

    pub(super) fn counts(&self) -> FaultCounts {
        self.0.lock().counts
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut FaultCounts)) {
        count(&mut self.0.lock().counts);
    }

    /// Counts a new connection. Returns whether to reject it.
    pub(super) fn should_reject(&self) -> bool {
        let mut state = self.0.lock();
        state.counts.connections += 1;
        let rejects = state.rules.values_mut().any(|rule| rule.fault == NetworkFault::Reject && rule.takes_effect());
        state.counts.rejected += u64::from(rejects);
        rejects
    }
}

/// How one piece is forwarded.
#[derive(Debug, PartialEq)]
pub(super) struct PiecePlan {
    /// Extra bytes before the piece.
    pub(super) ahead: Vec<u8>,
    /// How many bytes of the piece are forwarded.
    pub(super) bytes: usize,
    pub(super) delay: Duration,
    /// The size of the portions, and the time before each.
    pub(super) portions: Option<(usize, Duration)>,
    /// How the connection ends after the piece, if it does.
    pub(super) end: Option<ConnectionEnd>,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// Both sides have closed it.
    Closed,
    /// Both sides are reset.
    Reset,
    /// The client is reset; the server still reads what was sent.
    ClientReset,
}

/// The effect of a rule on a piece.
enum RuleEffect {
    Late(Duration),
    Stray(Vec<u8>),
    InPortions(usize, Duration),
    /// The direction loses all bytes from now on.
    HalfOpen,
    /// The same as `HalfOpen`, but counts as a cut.
    Silence,
    /// The connection ends after this many bytes of the piece.
    End(usize, ConnectionEnd),
}

impl RuleEffect {
    /// Changes the plan, and counts the effect.
    fn apply(self, plan: &mut PiecePlan, counts: &mut FaultCounts) {
        let counted = match self {
            Self::Late(delay) => {
                plan.delay += delay;
                &mut counts.held_up
            }
            Self::InPortions(bytes, every) => {
                plan.portions = Some((bytes, every));
                &mut counts.held_up
            }
            Self::Stray(bytes) => {
                plan.ahead.extend(bytes);
                &mut counts.strays
            }
            Self::HalfOpen => &mut counts.half_open,
            Self::Silence => &mut counts.cuts,
            Self::End(bytes, ending) => {
                (plan.bytes, plan.end) = (bytes, Some(ending));
                &mut counts.cuts
            }
        };
        *counted += 1;
    }
}

/// The state of one direction of one connection.
pub(super) struct DirectionState<'a> {
    rules: &'a FaultRules,
    direction: Direction,
    /// Shared by both directions: the server's next reply is lost.
    is_reply_lost: &'a AtomicBool,
    drops_bytes: bool,
    /// Bytes received so far.
    seen: u64,
    /// For each rule, how many bytes this direction had received when it first met the rule; `None` if the rule skipped
    /// this connection.
    met: BTreeMap<u64, Option<u64>>,
    /// The last bytes before the current piece.
    tail: Vec<u8>,
}

/// How many earlier bytes are kept to find a match that began in an earlier piece.
const TAIL: usize = 256;

impl<'a> DirectionState<'a> {
    pub(super) fn new(rules: &'a FaultRules, direction: Direction, is_reply_lost: &'a AtomicBool) -> Self {
        let (met, tail) = (BTreeMap::new(), Vec::new());
        Self { rules, direction, is_reply_lost, drops_bytes: false, seen: 0, met, tail }
    }

    /// Whether this direction forwards nothing from now on: neither bytes nor the sender's close.
    pub(super) fn drops_bytes(&self) -> bool {
        self.drops_bytes
    }

    /// Decides how to forward a piece.
    pub(super) fn plan_piece(&mut self, piece: &[u8]) -> PiecePlan {
        let mut state = self.rules.0.lock();
        let RulesState { rules, counts, .. } = &mut *state;
        let mut plan =
            PiecePlan { ahead: Vec::new(), bytes: piece.len(), delay: Duration::ZERO, portions: None, end: None };
        if self.direction == Direction::ToClient && self.is_reply_lost.load(Ordering::Relaxed) {
            RuleEffect::End(0, ConnectionEnd::Reset).apply(&mut plan, counts);
        }
        for (number, rule) in rules.iter_mut() {
            if plan.end.is_none() && !self.drops_bytes {
                let effect = self.effect(*number, rule, piece);
                self.drops_bytes = matches!(effect, Some(RuleEffect::HalfOpen | RuleEffect::Silence));
                if let Some(effect) = effect {
                    effect.apply(&mut plan, counts);
                }
            }
        }
        // A run may inject thousands of faults, and each of them is compared with every piece.
        rules.retain(|_, rule| !rule.is_used_up());
        drop(state);
        if self.drops_bytes {
            plan.bytes = 0;
        }
        self.seen += piece.len() as u64;
        self.remember(piece);
        plan
    }

    /// The effect of a rule on this piece, if it has one.
    fn effect(&mut self, number: u64, rule: &mut FaultRule, piece: &[u8]) -> Option<RuleEffect> {
        match &rule.fault {
            NetworkFault::Reject => None,
            &NetworkFault::Latency { delay, jitter } => {
                rule.takes_effect().then(|| RuleEffect::Late(with_jitter(delay, jitter)))
            }
            &NetworkFault::Drip { bytes, every } => {
                rule.takes_effect().then_some(RuleEffect::InPortions(bytes.max(1), every))
            }
            NetworkFault::Stray(bytes) => {
                let bytes = bytes.clone();
                (self.direction == Direction::ToClient && rule.takes_effect()).then_some(RuleEffect::Stray(bytes))
            }
            &NetworkFault::HalfOpen(direction) => {
                let applies = direction == self.direction && self.left(number, 0).is_some();
                (applies && self.apply_to_connection(number, rule)).then_some(RuleEffect::HalfOpen)
            }
            &NetworkFault::ResetAfter { direction, bytes } => {
                let left = self.left(number, bytes).filter(|_| direction == self.direction)?;
                let left = usize::try_from(left).unwrap_or(usize::MAX);
                (piece.len() > left && self.apply_to_connection(number, rule))
                    .then_some(RuleEffect::End(left, ConnectionEnd::Reset))
            }
            NetworkFault::Cut { at, matching } => {
                let (at, applies) = (*at, self.direction == Direction::ToServer && self.contains(piece, matching));
                (applies && rule.takes_effect()).then(|| self.cut(at, piece)).flatten()
            }
        }
    }

    fn cut(&self, at: CutPoint, piece: &[u8]) -> Option<RuleEffect> {
        match at {
            CutPoint::Silently => Some(RuleEffect::Silence),
            CutPoint::Unsent => Some(RuleEffect::End(0, ConnectionEnd::Reset)),
            CutPoint::Sent => Some(RuleEffect::End(piece.len(), ConnectionEnd::ClientReset)),
            CutPoint::Answered => {
                // The cut takes effect when the reply arrives.
                self.is_reply_lost.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// How many of `bytes` may still pass, counted from the first piece after the rule was added; `None` if the rule
    /// skipped this connection.
    fn left(&mut self, number: u64, bytes: u64) -> Option<u64> {
        let met = *self.met.entry(number).or_insert(Some(self.seen));
        met.map(|met| bytes.saturating_sub(self.seen - met))
    }

    /// Counts this connection for the rule. Returns whether the rule takes effect on it, and remembers if not.
    fn apply_to_connection(&mut self, number: u64, rule: &mut FaultRule) -> bool {
        let applies = rule.takes_effect();
        if !applies {
            self.met.insert(number, None);
        }
        applies
    }

    /// Whether an occurrence of these bytes ends in this piece.
    fn contains(&self, piece: &[u8], matching: &[u8]) -> bool {
        if matching.is_empty() {
            return true;
        }
        // The match must end in this piece, so at most all but its last byte can lie before.
        let before = &self.tail[self.tail.len() - self.tail.len().min(matching.len() - 1)..];
        [before, piece].concat().windows(matching.len()).any(|window| window == matching)
    }

    fn remember(&mut self, piece: &[u8]) {
        self.tail.extend_from_slice(piece);
        let too_many = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..too_many);
    }
}

/// A random duration between `length - jitter` and `length + jitter`.
fn with_jitter(length: Duration, jitter: Duration) -> Duration {
    let span = u64::try_from(2 * jitter.as_nanos()).unwrap_or(u64::MAX);
    let random = RandomState::new().hash_one(span) % span.saturating_add(1).max(1);
    (length + Duration::from_nanos(random)).saturating_sub(jitter)
}
