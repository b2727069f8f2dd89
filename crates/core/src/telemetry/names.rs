//! Names of metrics, with their labels.

/// Calls that have ended, by label `outcome`.
pub const CALLS: &str = "hapax_calls_total";
/// Copies that had no second effect, by label `layer`: `gate`, `ledger`, or `relay` for events that the broker of a
/// relay recognized.
pub const CAUGHT: &str = "hapax_caught_total";
/// Claimed entries of a ledger that were dropped without being finished. Their transactions cannot commit.
pub const UNFINISHED: &str = "hapax_ledger_unfinished_total";
/// Bytes of the tables of open claims of the ledgers in a PostgreSQL database, when it was last checked.
pub const LEDGER_CLAIMS_BYTES: &str = "hapax_ledger_claims_bytes";
/// Seconds from the first begin of an attempt to its decision.
pub const BEGIN_SECONDS: &str = "hapax_begin_seconds";
/// Seconds that a handler ran.
pub const HANDLER_SECONDS: &str = "hapax_handler_seconds";
/// Seconds from the end of a handler until its grant was settled.
pub const COMPLETE_SECONDS: &str = "hapax_complete_seconds";
/// Attempts in flight.
pub const IN_FLIGHT: &str = "hapax_in_flight";
/// Followers: copies that wait for an attempt in flight.
pub const FOLLOWERS: &str = "hapax_followers";
/// Takeovers: grants after a lapse.
pub const TAKEOVERS: &str = "hapax_takeovers_total";
/// Grants lost while their handler ran.
pub const GRANTS_LOST: &str = "hapax_grants_lost_total";
/// Attempts that had an effect although the record belongs to another attempt.
pub const DIVERGENT: &str = "hapax_divergent_total";
/// Records that the store lost while their attempt ran, and checks that found a store without its records.
pub const AMNESIA: &str = "hapax_amnesia_total";
/// Answers recorded after the store had lost their record.
pub const RECREATED: &str = "hapax_recreated_total";
/// Handlers that ran without a record because the store was down.
pub const UNPROTECTED: &str = "hapax_unprotected_total";
/// Messages that the broker has and no worker has acknowledged, by label `source`.
pub const WORKER_LAG: &str = "hapax_worker_lag";
/// Age in seconds of the oldest message that a worker holds, since it got to the broker, by label `source`. 0 if
/// the worker holds none.
pub const WORKER_OLDEST_SECONDS: &str = "hapax_worker_oldest_seconds";
/// Messages that are being processed, by label `source`.
pub const WORKER_IN_FLIGHT: &str = "hapax_worker_in_flight";
/// How long the batch that has run longest has been running, in seconds, by label `source`. 0 if none runs.
pub const WORKER_RUNNING_SECONDS: &str = "hapax_worker_longest_running_seconds";
/// Attempts to process a message, by label `verdict`.
pub const WORKER_ATTEMPTS: &str = "hapax_worker_attempts_total";
/// Dead letters that were written, by labels `source` and `reason`. A repeated letter counts again.
pub const WORKER_DEAD: &str = "hapax_worker_dead_total";
/// Dead letters that their sink took only in a shorter form, by label `form`: `headers` for a letter without the
/// headers of its message, `stub` for one without its payload, too.
pub const WORKER_DEAD_SHORTENED: &str = "hapax_worker_dead_shortened_total";
/// Gauge, per `source`: ordering keys whose messages wait for the end of a dead letter.
pub const WORKER_PARKED: &str = "hapax_worker_parked";
/// Events that a relay tried to publish, by labels `sink` and `result`: `yes`, `not-published`, `unknown` or
/// `refused`.
pub const RELAY_EVENTS: &str = "hapax_relay_events_total";
/// The same for a sink with endpoints, by labels `endpoint` and `result`.
pub const RELAY_ENDPOINT_EVENTS: &str = "hapax_relay_endpoint_events_total";
/// Events that were published later than their broker recognizes a repetition, by label `sink`. If one of them was
/// published before, only its consumer can notice.
pub const RELAY_BEYOND_WINDOW: &str = "hapax_relay_beyond_window_total";
/// Buckets that this relay has.
pub const RELAY_BUCKETS: &str = "hapax_relay_buckets";
/// Rows of the outbox that are not published, up to 100,000.
pub const OUTBOX_OPEN: &str = "hapax_outbox_open";
/// Age in seconds of the oldest row that is not published and whose key is not parked. 0 without one.
pub const OUTBOX_OLDEST_SECONDS: &str = "hapax_outbox_oldest_seconds";
/// Keys that wait for an operator because the sink refused an event.
pub const OUTBOX_PARKED_KEYS: &str = "hapax_outbox_parked_keys";
/// Answers in the journal that are not in the store yet.
pub const SPILL_DEPTH: &str = "hapax_spill_depth";
/// Age in seconds of the oldest answer in the journal, by the end of its handler. 0 if the journal is empty.
pub const SPILL_OLDEST_SECONDS: &str = "hapax_spill_oldest_seconds";
/// Answers in journal files of other stores, which are left alone.
pub const JOURNAL_FOREIGN: &str = "hapax_journal_foreign";
/// Damaged records that were found by a call, a completion, a release or an abandonment, or by the renewals of an
/// attempt. An attempt that finds the same damage by a renewal and by its completion counts once.
pub const DAMAGED: &str = "hapax_damaged_total";
/// Answers that neither the store nor the journal took.
pub const UNRECORDED: &str = "hapax_unrecorded_total";
/// Seconds by which the last check of the heartbeat was late.
pub const HEARTBEAT_LATE_SECONDS: &str = "hapax_heartbeat_late_seconds";
/// 1 while begins are refused because the store does not answer.
pub const BREAKER_OPEN: &str = "hapax_breaker_open";
