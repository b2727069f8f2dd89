//! The histories of keys, calls, attempts and processes.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::gate::Attempt;
use hapax_core::journal::MemoryJournal;
use hapax_core::machine::Grant;
use hapax_core::{Call, Fingerprint, Owner, Phase, RecordKey, Timestamp, Token};

use super::availability::BeginHistory;
use crate::outcome::{CallerOutcome, EffectPolicy, HandlerOutcome};

/// One start of a process, up to its crash.
pub(super) struct ProcessLife {
    pub(super) process: usize,
    pub(super) journal: Option<Arc<MemoryJournal>>,
    pub(super) crashed: bool,
    /// When all of its tasks were dropped.
    pub(super) cut_off: Option<Duration>,
    /// Until when the process, or its heartbeat's thread, stands still.
    pub(super) stalled_until: Duration,
    /// When one of its store calls last met a fault, or when it last stood still.
    pub(super) troubled: Option<Duration>,
    /// When the store last failed one of its calls, other than by a damaged record, or until when it stands still.
    pub(super) failed: Option<Duration>,
    pub(super) has_stood_still: bool,
    pub(super) begins: BeginHistory,
}

impl ProcessLife {
    pub(super) fn new(process: usize, journal: Option<Arc<MemoryJournal>>) -> Self {
        Self {
            process,
            journal,
            crashed: false,
            cut_off: None,
            stalled_until: Duration::ZERO,
            troubled: None,
            failed: None,
            has_stood_still: false,
            begins: BeginHistory::default(),
        }
    }

    pub(super) fn fail_until(&mut self, until: Duration) {
        self.failed = self.failed.max(Some(until));
    }
}

/// The history of one key.
pub(super) struct KeyHistory {
    pub(super) rk: RecordKey,
    pub(super) effect: EffectPolicy,
    /// Whether a probe or an operator finds outcomes out.
    pub(super) is_found_out: bool,
    /// The fingerprint of each payload.
    pub(super) fingerprints: [Fingerprint; 2],
    /// Every call so far.
    pub(super) calls: Vec<usize>,
    /// The decisions of the service behind the handlers, in order.
    pub(super) decisions: Vec<ServiceDecision>,
    /// How many effects happened since the store last forgot.
    pub(super) effects: usize,
    /// The largest token that a record had, since the store last forgot.
    pub(super) largest_token: Token,
    /// Every grant of the store.
    pub(super) grants: Vec<GrantHistory>,
    /// When the store last granted it.
    pub(super) granted_at: Option<Duration>,
    /// Whether a record is completed that the store has not forgotten.
    pub(super) completed: bool,
    /// Every answer that was ever recorded.
    pub(super) recorded: Vec<String>,
    /// Whether a record was ever made for each payload.
    pub(super) payloads: [bool; 2],
    /// The answers that callers received since the store last forgot, and whether as pending.
    pub(super) received: Vec<(String, bool)>,
    /// Until when, on the store's clock, the record lives, and the phase of its state.
    pub(super) stands: Option<(Timestamp, Option<Phase>)>,
    /// Why the final outcome may be unknown, besides the outcomes of its attempts.
    pub(super) reasons: Vec<&'static str>,
    /// How often the store forgot its record.
    pub(super) forgotten: usize,
    /// Whether the store ever said that its record is damaged.
    pub(super) damaged: bool,
    /// The owners under which workers asked for a grant.
    pub(super) worked_by: Vec<Owner>,
}

/// A grant of the store.
pub(super) struct GrantHistory {
    pub(super) owner: Owner,
    pub(super) token: Token,
    /// When the store granted it.
    pub(super) at: Duration,
    /// Whether the request was late.
    pub(super) late: bool,
    /// Whether the store has forgotten the record since.
    pub(super) forgotten: bool,
}

/// A decision of the service behind a handler: an effect or a rejection.
#[derive(Clone, Debug)]
pub(super) struct ServiceDecision {
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
            received: Vec::new(),
            stands: None,
            reasons: Vec::new(),
            forgotten: 0,
            damaged: false,
            worked_by: Vec::new(),
        }
    }

    pub(super) fn has_forgotten_record(&self) -> bool {
        self.forgotten > 0
    }

    pub(super) fn excuse(&mut self, reason: &'static str) {
        if !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }

    /// The history of a grant.
    pub(super) fn granted(&self, owner: Owner, token: Token) -> Option<&GrantHistory> {
        self.grants.iter().find(|grant| (grant.owner, grant.token) == (owner, token))
    }

    pub(super) fn has_forgotten(&self, grant: &Grant) -> bool {
        self.granted(grant.owner, grant.token).is_some_and(|granted| granted.forgotten)
    }

    /// Whether an answer may be recorded for another payload than its own.
    pub(super) fn can_mix_payloads(&self) -> bool {
        self.has_forgotten_record() && self.is_found_out
    }

    pub(super) fn payload_of(&self, fingerprint: Fingerprint) -> Option<usize> {
        self.fingerprints.iter().position(|known| *known == fingerprint)
    }
}

/// The history of one call.
pub(super) struct CallHistory {
    pub(super) key: usize,
    pub(super) payload: usize,
    pub(super) life: usize,
    pub(super) started: Duration,
    /// Whether an answer was recorded when it started, and how often the store had forgotten by then.
    pub(super) found: (bool, usize),
    pub(super) attempt: Option<AttemptHistory>,
    pub(super) received: Option<CallerOutcome>,
}

/// The history of one attempt.
pub(super) struct AttemptHistory {
    pub(super) attempt: Attempt,
    /// When the store granted it; for an attempt without a record, when its handler started.
    pub(super) since: Duration,
    /// When its handler started. That is later than the grant if the reply to the first begin was lost.
    pub(super) started: Duration,
    pub(super) decided: bool,
    /// How its handler ended.
    pub(super) ended: Option<HandlerEnd>,
    pub(super) ended_at: Duration,
    /// Whether the store has forgotten its record.
    pub(super) forgotten: bool,
    /// Whether a renewal was refused.
    pub(super) lost: bool,
    /// Whether its handler is about to panic.
    pub(super) panics: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HandlerEnd {
    Reported(HandlerOutcome, String),
    BrokeOff,
}

impl AttemptHistory {
    pub(super) fn grant(&self) -> Option<&Grant> {
        self.attempt.grant()
    }

    pub(super) fn reported(&self) -> Option<HandlerOutcome> {
        match &self.ended {
            Some(HandlerEnd::Reported(word, _)) => Some(*word),
            Some(HandlerEnd::BrokeOff) | None => None,
        }
    }

    /// The answer that its handler gave.
    pub(super) fn answer(&self) -> Option<&str> {
        match &self.ended {
            Some(HandlerEnd::Reported(HandlerOutcome::Applied | HandlerOutcome::Final, answer)) => Some(answer),
            Some(
                HandlerEnd::Reported(HandlerOutcome::NotApplied | HandlerOutcome::Unknown, _) | HandlerEnd::BrokeOff,
            )
            | None => None,
        }
    }

    /// Whether it ended and is known to have applied nothing.
    pub(super) fn is_not_applied(&self) -> bool {
        self.reported() == Some(HandlerOutcome::NotApplied)
    }

    /// Whether it ended with an unknown outcome.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(self.ended, Some(HandlerEnd::BrokeOff | HandlerEnd::Reported(HandlerOutcome::Unknown, _)))
    }
}
