//! The rules that the oracles of the simulation and of the sweeps share, as the sentences that a violation prints.

#![expect(missing_docs, reason = "each constant is its own sentence")]

pub const FREE_AFTER_EFFECT: &str = "a key is free although its effect happened";
pub const TWO_EFFECTS: &str = "the effect happened twice, and the policy is not Retry";
pub const STARTED_AFTER_REFUSAL: &str = "a handler started after its caller had received an outcome, or started twice";
pub const REFUSED_AFTER_START: &str = "a caller was refused although its handler had started";
pub const NOT_CANCELLED: &str = "a handler was not cancelled although the store no longer holds its grant";
pub const EFFECT_WITHOUT_GRANT: &str = "an effect was not stopped although the store no longer holds its grant";
pub const LEASE_EXPIRED_EARLY: &str = "a lease expired while its handler ran and nothing was wrong";
pub const TOKEN_DID_NOT_GROW: &str = "the token of a grant does not grow";
pub const DIFFERENT_ANSWERS: &str = "two callers received different answers";
pub const FOREIGN_ANSWER: &str = "a caller received an answer that no handler gave for its key and payload";
pub const WRONG_PROVENANCE: &str = "an answer is marked as fresh and is not, or the other way round";
pub const LESS_THAN_HANDLER_KNEW: &str = "a caller received less than its handler had reported";
pub const NO_OUTCOME_AT_ALL: &str = "a caller never received an outcome";
pub const UNKNOWN_WITHOUT_HOLD: &str = "the final outcome is unknown, and the policy is not Hold";
pub const UNKNOWN_WITHOUT_REASON: &str = "the final outcome is unknown for no reason";
pub const UNKNOWN_AFTER_ANSWER: &str = "a caller received an answer, and later the outcome is unknown";
pub const FINAL_OUTCOME_MISFIT: &str = "the final outcome fits no state of the record";
pub const PROCESSES_DISAGREE: &str = "two processes report different final outcomes";
pub const NOT_SETTLED: &str = "the final outcome is not known after many tries";
pub const TASK_NEVER_ENDS: &str = "a task never ends";
pub const TASK_OUTLIVES_GATE: &str = "a task outlives its gate";
