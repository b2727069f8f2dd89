//! What is remembered of keys, calls and processes.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::gate::Attempt;
use hapax_core::journal::MemoryJournal;
use hapax_core::machine::Grant;
use hapax_core::{Call, Fingerprint, Owner, Phase, RecordKey, Timestamp, Token};

use crate::outcome::{CallerOutcome, EffectPolicy, HandlerOutcome};

/// One start of a process, up to its crash.
pub(super) struct Life {
    pub(super) process: usize,
    pub(super) journal: Option<Arc<MemoryJournal>>,
    pub(super) crashed: bool,
    /// When all of its tasks were dropped.
    pub(super) cut_off: Option<Duration>,
    /// Until when it, or its heartbeat's thread, stands still.
    pub(super) stalled_until: Duration,
    /// When a call of its last met a fault, or it stood still.
    pub(super) troubled: Option<Duration>,
}

impl Life {
    pub(super) fn new(process: usize, journal: Option<Arc<MemoryJournal>>) -> Self {
        Self { process, journal, crashed: false, cut_off: None, stalled_until: Duration::ZERO, troubled: None }
    }
}

/// What is known of one key.
pub(super) struct KeyHistory {
    pub(super) rk: RecordKey,
    pub(super) effect: EffectPolicy,
    /// Whether somebody finds out what attempts did.
    pub(super) is_found_out: bool,
    /// That of each payload.
    pub(super) fingerprints: [Fingerprint; 2],
    /// Every call so far.
    pub(super) calls: Vec<usize>,
    /// What was decided behind the handlers, in this order.
    pub(super) decisions: Vec<Decision>,
    /// How many of them were effects, since the store last forgot.
    pub(super) effects: usize,
    /// The largest token that a record had, since the store last forgot.
    pub(super) largest_token: Token,
    /// Every grant that the store made.
    pub(super) grants: Vec<Granted>,
    /// When the store last granted it.
    pub(super) granted_at: Option<Duration>,
    /// Whether a record is completed that the store has not forgotten.
    pub(super) completed: bool,
    /// Every answer that was ever recorded.
    pub(super) recorded: Vec<String>,
    /// Whether a record was ever made for each payload.
    pub(super) payloads: [bool; 2],
    /// The answers that callers were told, since the store last forgot; whether as pending.
    pub(super) told: Vec<(String, bool)>,
    /// Until when, on the store's clock, a record stands there, and which state it has.
    pub(super) stands: Option<(Timestamp, Option<Phase>)>,
    /// Why the outcome may be unknown in the end, whatever its attempts know.
    pub(super) reasons: Vec<&'static str>,
    /// How often the store forgot a live record, or one expired.
    pub(super) forgotten: usize,
}

/// A grant that the store made.
pub(super) struct Granted {
    pub(super) owner: Owner,
    pub(super) token: Token,
    /// When it did.
    pub(super) at: Duration,
    /// Whether by a request that nobody waited for any more.
    pub(super) late: bool,
    /// Whether it forgot the record since.
    pub(super) forgotten: bool,
}

/// What the service behind a handler decided.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    pub(super) call: usize,
    pub(super) answer: String,
}

impl KeyHistory {
    pub(super) fn new(effect: EffectPolicy, has_an_operator: bool, calls: &[Call; 2]) -> Self {
        Self {
            rk: calls[0].record_key(),
            is_found_out: effect == EffectPolicy::Resolve || effect == EffectPolicy::Hold && has_an_operator,
            effect,
            fingerprints: [calls[0].newest_fingerprint(), calls[1].newest_fingerprint()],
            calls: Vec::new(),
            decisions: Vec::new(),
            effects: 0,
            largest_token: Token(0),
            grants: Vec::new(),
            granted_at: None,
            completed: false,
            recorded: Vec::new(),
            payloads: [false; 2],
            told: Vec::new(),
            stands: None,
            reasons: Vec::new(),
            forgotten: 0,
        }
    }

    pub(super) fn was_forgotten(&self) -> bool {
        self.forgotten > 0
    }

    pub(super) fn excuse(&mut self, reason: &'static str) {
        if !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }

    /// What the store knew of a grant when it made it.
    pub(super) fn granted(&self, owner: Owner, token: Token) -> Option<&Granted> {
        self.grants.iter().find(|grant| (grant.owner, grant.token) == (owner, token))
    }

    pub(super) fn has_forgotten(&self, grant: &Grant) -> bool {
        self.granted(grant.owner, grant.token).is_some_and(|granted| granted.forgotten)
    }

    /// Whether an answer may have been found out for another payload than the one it was given for.
    pub(super) fn mixes_payloads(&self) -> bool {
        self.was_forgotten() && self.is_found_out
    }

    pub(super) fn payload_of(&self, fingerprint: Fingerprint) -> Option<usize> {
        self.fingerprints.iter().position(|known| *known == fingerprint)
    }
}

/// What is known of one call.
pub(super) struct CallHistory {
    pub(super) key: usize,
    pub(super) payload: usize,
    pub(super) life: usize,
    pub(super) started: Duration,
    /// Whether an answer was recorded when it started, and how often the store had forgotten by then.
    pub(super) found: (bool, usize),
    pub(super) attempt: Option<AttemptHistory>,
    pub(super) told: Option<CallerOutcome>,
}

/// What is known of one attempt.
pub(super) struct AttemptHistory {
    pub(super) attempt: Attempt,
    /// When the store granted it, or else its handler started.
    pub(super) since: Duration,
    /// When its handler started: later, if the reply to the first begin was lost.
    pub(super) started: Duration,
    pub(super) decided: bool,
    /// What it said, or that it broke off.
    pub(super) ended: Option<Ended>,
    pub(super) ended_at: Duration,
    /// Whether the store forgot the record meanwhile, or later.
    pub(super) forgotten: bool,
    /// Whether a renewal was refused.
    pub(super) lost: bool,
    /// A panic is on its way.
    pub(super) panics: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Said(HandlerOutcome, String),
    BrokeOff,
}

impl AttemptHistory {
    pub(super) fn grant(&self) -> Option<&Grant> {
        self.attempt.grant()
    }

    pub(super) fn said(&self) -> Option<HandlerOutcome> {
        match &self.ended {
            Some(Ended::Said(word, _)) => Some(*word),
            Some(Ended::BrokeOff) | None => None,
        }
    }

    /// The answer that it gave.
    pub(super) fn answer(&self) -> Option<&str> {
        match &self.ended {
            Some(Ended::Said(HandlerOutcome::Applied | HandlerOutcome::Final, answer)) => Some(answer),
            Some(Ended::Said(HandlerOutcome::NotApplied | HandlerOutcome::Unknown, _) | Ended::BrokeOff) | None => None,
        }
    }

    /// Whether it ended and is known to have done nothing.
    pub(super) fn was_in_vain(&self) -> bool {
        self.said() == Some(HandlerOutcome::NotApplied)
    }

    /// Whether it ended and only itself could know what it did.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(self.ended, Some(Ended::BrokeOff | Ended::Said(HandlerOutcome::Unknown, _)))
    }
}
