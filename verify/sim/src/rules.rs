//! The rules that the oracles of the simulation and of the sweeps share, as the sentences that a violation prints.

/// A record may be absent or released only while no effect of its key happened.
pub const FREE_AFTER_EFFECT: &str = "a key is free although its effect happened";
/// Under Hold and Resolve the effect of a key happens at most once.
pub const TWO_EFFECTS: &str = "the effect happened twice, and the policy is not Retry";
/// A handler starts at most once for each call, and before its caller receives an outcome.
pub const STARTED_AFTER_REFUSAL: &str = "a handler started after its caller had received an outcome, or started twice";
/// A refusal tells the caller that its handler did not start.
pub const REFUSED_AFTER_START: &str = "a caller was refused although its handler had started";
/// A handler whose grant the store lost is cancelled by the time its last known lease is over.
pub const NOT_CANCELLED: &str = "a handler was not cancelled although the store no longer holds its grant";
/// A handler that checks for cancellation before its effect has it only while the store holds its grant.
pub const EFFECT_WITHOUT_GRANT: &str = "an effect was not stopped although the store no longer holds its grant";
/// Without faults, the heartbeat keeps the lease of a running handler valid.
pub const LEASE_EXPIRED_EARLY: &str = "a lease expired while its handler ran and nothing was wrong";
/// Each grant of a key has a larger token than the grants before it.
pub const TOKEN_DID_NOT_GROW: &str = "the token of a grant does not grow";
/// All callers of one key receive the same answer.
pub const DIFFERENT_ANSWERS: &str = "two callers received different answers";
/// An answer comes from a handler that ran for the same key and payload.
pub const FOREIGN_ANSWER: &str = "a caller received an answer that no handler gave for its key and payload";
/// `Fresh`: the own handler's answer. `Canonical`: another one, recorded. `Replayed`: no own handler ran.
pub const WRONG_PROVENANCE: &str = "an answer is marked as fresh and is not, or the other way round";
/// What the handler reported reaches its caller: a known outcome never becomes unknown on the way.
pub const LESS_THAN_HANDLER_KNEW: &str = "a caller received less than its handler had reported";
/// Each call returns.
pub const NO_OUTCOME_AT_ALL: &str = "a caller never received an outcome";
/// A caller is refused because of the store only if the store just failed a call of the same process.
pub const REFUSED_WITHOUT_OUTAGE: &str = "a caller was refused because of the store, and the store answered";
/// Only Hold leaves an outcome unknown for good: Retry runs again, and Resolve finds it out.
pub const UNKNOWN_WITHOUT_HOLD: &str = "the final outcome is unknown, and the policy is not Hold";
/// An outcome stays unknown only if a fault, or the handler itself, left it unknown.
pub const UNKNOWN_WITHOUT_REASON: &str = "the final outcome is unknown for no reason";
/// An outcome that a caller received stays known.
pub const UNKNOWN_AFTER_ANSWER: &str = "a caller received an answer, and later the outcome is unknown";
/// After all faults have ended, a call returns the outcome that the record of its key holds.
pub const FINAL_OUTCOME_MISFIT: &str = "the final outcome fits no state of the record";
/// After all faults have ended, each process returns the same outcome of a key.
pub const PROCESSES_DISAGREE: &str = "two processes report different final outcomes";
/// After all faults have ended, a bounded number of retries brings a final outcome.
pub const NOT_SETTLED: &str = "the final outcome is not known after many tries";
/// After all faults have ended, draining a gate ends within a bounded time.
pub const TASK_NEVER_ENDS: &str = "a task never ends";
/// No task runs on after its gate is dropped.
pub const TASK_OUTLIVES_GATE: &str = "a task outlives its gate";
