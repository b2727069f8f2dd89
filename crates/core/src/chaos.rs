//! Mutants: known bugs that can be switched on, to prove that the test harnesses detect them.
//!
//! With the feature `chaos`, `HAPAX_CHAOS=<name>` switches one mutant on for the whole process. Without the feature no
//! mutant is compiled. `cargo xtask mutants` runs the harnesses against each mutant.

/// The name of each mutant, what it does and, after the colon, the published pattern that has this bug.
#[cfg(feature = "chaos")]
#[rustfmt::skip] // One a line: `cargo xtask mutants` reads this list.
pub const MUTANTS: &[(&str, &str)] = &[
    ("release_on_unknown", "an unknown error releases the key: patterns that delete their lock on any exception"),
    ("answer_before_record", "the answer is sent before it is recorded: completion on the response's finish event"),
    ("complete_unfenced", "a completion overwrites any record: a plain SET"),
    ("complete_needs_lease", "a completion after the lease is refused although no attempt took over"),
    ("complete_needs_record", "a completion is discarded when the store forgot the record"),
    ("release_unfenced", "a release deletes any record: a plain DEL"),
    ("renew_unfenced", "a renewal extends the lease of whichever attempt holds the key: a plain EXPIRE"),
    ("renew_revives_abandoned", "a late renewal revives an abandoned grant"),
    ("lease_is_life", "the record lives only as long as its lease: a key whose TTL is the lock timeout"),
    ("mine_is_busy", "an attempt does not recognize its own begin whose reply was lost: a lock without an owner"),
    ("mine_when_abandoned", "an attempt that abandoned its grant gets the same grant again"),
    ("payload_ignored", "the same key with another payload gets the first payload's answer"),
    ("mismatch_after_replay", "the payload is compared only while the first attempt runs"),
    ("tenant_ignored", "two tenants share a key: the key is the client's header alone"),
    ("token_stands_still", "a takeover gets no higher token: a UUID used as fencing token"),
    ("takeover_under_hold", "after the lease an operation with an unknown outcome runs again: a lock that expires"),
    ("takeover_released", "a takeover that applied nothing releases the key, though the earlier attempt may have"),
    ("clock_back_sticks", "after the clock stepped back, the key stays locked for the whole step"),
    ("swap_ignores_renewal", "a change overwrites a renewal that came between read and write"),
    ("handler_dies_with_caller", "a client that disconnects cancels the running handler"),
    ("no_heartbeat", "a handler that takes longer than its lease loses the lease"),
    ("drop_releases", "a dropped handler releases the key: a guard that releases on drop"),
    ("lost_gives_own_answer", "an attempt that lost its grant returns its own answer"),
    ("no_cancel", "a begin that arrives after its caller gave up blocks the key"),
    ("twin_runs_too", "a copy that arrives while the first attempt runs is run too"),
    ("known_effect_refused", "a known effect is discarded because the record was released or is dead"),
    ("takeover_token_by_caller", "the token of a takeover is the caller's clock, one hour slow"),
    ("expired_is_live", "a record past its life still counts: items that a sweeper has not deleted yet"),
    ("another_answer_already", "another answer under the same token counts as the recorded one"),
    ("same_token_refused", "a known effect is discarded because another owner has the same token"),
    ("answer_unchecked", "the check of a record does not cover its answer, so an altered answer is replayed"),
    ("renew_shortens_answer", "a late renewal shortens the life of an answer: EXPIRE on a stored result"),
    ("hold_does_not_compare", "a hold overwrites what was written since the read: an UPDATE by the key alone"),
    ("mark_by_begin_alone", "only first begins raise the high-water mark, so a takeover's token is minted again"),
    ("resolve_any_token", "a verdict on one attempt is written to a later attempt's record"),
    ("reopen_keeps_token", "a dead record is reopened under the token that its last attempt still has"),
    ("cancel_once", "a begin that arrives after its cancellation blocks the key"),
    ("release_without_cancel", "a first begin that arrives after its attempt's release blocks the key"),
    ("retry_with_new_owner", "a begin without a reply is repeated under a new owner, which its first begin blocks"),
    ("abandon_races_renewal", "a grant is given back while its last renewal is still in flight"),
    ("heartbeat_stops_early", "the heartbeat stops with the handler, before the answer is recorded"),
    ("twin_told_early", "a follower gets the leader's answer before it is recorded"),
    ("spill_ignores_expiry", "an answer from the journal is recorded although it is past its retention"),
    ("error_is_absent", "a store error counts as a new key: an error that is dropped"),
    ("panic_is_not_applied", "a panic releases the key"),
    ("breaker_blocks_completion", "an open breaker refuses completions too"),
    ("deadline_by_reply", "a lease is counted from the reply to the renewal instead of from its sending"),
    ("never_too_long", "a handler that hangs keeps its lease for ever"),
    ("lost_goes_unheard", "a handler gets no signal that its grant was lost"),
    ("forgotten_is_lost", "a handler is cancelled when the store forgets its record, though no other attempt runs"),
    ("spill_gives_up", "a spilled answer is discarded when the store refuses it: a rotated password loses the answer"),
    ("journal_of_any_store", "the answers of another store are adopted: one folder for the journals of two stores"),
    ("spill_never_expires", "a spilled answer is tried for ever, also when its record must have expired"),
    ("damaged_is_down", "a damaged record counts as a store that is down, so the handler runs without a record"),
    ("give_back_gives_up", "a grant is not given back if the store is full or its password has changed"),
    ("give_back_never_ends", "a grant is given back for ever, also when its record must have expired"),
    ("drain_forgets_give_backs", "a drain ends while a grant is still being given back"),
    ("pass_ignores_full", "a route that runs without a record while the store is down refuses calls if it is full"),
    ("every_begin_is_a_probe", "once a probe is due, an open breaker admits every begin until one of them succeeds"),
    ("failed_probe_closes_breaker", "a begin that fails while the breaker is open closes it"),
    ("probe_before_token", "a probe is asked before the token of its verdict is read: check, then look again"),
    ("savepoint_missing", "the writes of a handler with a final answer stay: no savepoint around the handler"),
    ("swallowed_abort", "an error of the finish is ignored: COMMIT of an aborted transaction returns no error"),
    ("commit_trusted", "a COMMIT without a reply counts as committed"),
    ("ledger_payload_ignored", "a row of the ledger is replayed to another payload"),
    ("handler_outside", "what a handler wrote stays when its transaction is rolled back: a connection of its own"),
    ("claim_last", "a handler runs before the claim: a ledger row that is inserted at the end"),
    ("any_violation_is_ours", "each violation of a constraint counts as a twin's claim"),
    ("full_disk_is_failure", "in SQLite, a full disk counts as a failure of the handler, so good messages are dead"),
    ("violation_is_success", "an operation that cannot be inserted counts as applied, without a look at its row"),
    ("ledger_namespace_ignored", "two ledgers that handle one operation share its row"),
    ("event_outside", "an event that cannot be written does not undo the effect: an outbox outside the transaction"),
    ("innocent_counted", "the failure of a batch is counted for its first operation"),
    ("event_without_namespace", "two ledgers that handle one operation emit events under the same ids"),
    ("postgres_handler_outside", "in PostgreSQL, what a handler wrote stays when its transaction is rolled back"),
    ("postgres_any_violation_is_ours", "in PostgreSQL, each unique violation of a handler counts as a twin's claim"),
    ("postgres_read_only_is_a_failure", "in PostgreSQL, a server that takes no writes counts as the handler's failure"),
    ("postgres_finish_unchecked", "in PostgreSQL, a finish counts as done although its claim is gone"),
    ("acknowledge_busy", "a copy is acknowledged while the first one still runs: 409 counts as processed"),
    ("commit_beyond_watermark", "the highest finished offset is committed, though earlier messages still run"),
    ("commit_on_loss", "offsets of a lane are committed after another worker got it"),
    ("offset_stored_early", "a message is acknowledged before it is processed: enable.auto.offset.store"),
    ("dead_letter_acked_first", "a message is acknowledged before its dead letter is written"),
    ("attempts_forgotten", "failed attempts are counted in the process, so a poison message never ends"),
    ("worker_namespace_ignored", "two consumer groups that get one message share its key"),
    ("partition_ignored", "two partitions share the keys of their offsets: the key is the topic and the offset"),
    ("position_dropped", "a failed acknowledgement is forgotten because another partition has one waiting"),
    ("unknown_lag_is_zero", "a lag that the broker does not tell is shown as 0: a default value"),
    ("extension_stops_early", "the lease of a delivery is not extended while its handler runs"),
    ("redrive_without_record_runs", "a redrive runs a message of unknown outcome again once its record has expired"),
    ("word_is_not_used_up", "the word that a message had no effect holds for every further attempt"),
    ("letter_runs_after_its_lease", "a letter that was dropped while its worker was paused runs all the same"),
    ("letter_is_not_extended", "a redriven letter is taken by a second worker while its message still runs"),
    ("unread_letters_are_none", "dead letters that cannot be read count as none, so that parked keys go on"),
    ("settle_old_generation", "a result is settled for a lane that was lost and came back: lanes without generation"),
    ("overtaking_within_key", "a later message of an ordering key runs while an earlier one waits for its retry"),
    ("shared_panics_counted", "the panic of a batch is counted for each of its messages"),
    ("panic_drops_message", "a message whose handler panicked is acknowledged"),
    ("cursor_is_the_truth", "rows of a slow transaction behind the relay's cursor are lost: WHERE id > last"),
    ("id_before_xid", "a transaction draws a row id before it counts as running, so the floor passes its row"),
    ("read_uncommitted_rows", "an event is published inside its transaction, which may roll back"),
    ("mark_before_publish", "a row is marked before the broker has its event"),
    ("mark_any_state", "a late mark publishes a row that an operator dropped or whose key is parked"),
    ("refused_row_is_skipped", "the events behind one that the broker never takes are published without it"),
    ("claim_per_row", "two events of a key are published at once: FOR UPDATE SKIP LOCKED on rows"),
    ("queue_forgets_early", "the queue in SQLite forgets events after half of the window"),
    ("gone_claim_is_held", "a relay keeps a bucket whose claim is gone, beside the relay that claims it next"),
    ("moved_file_unnoticed", "what is written to an SQLite file that was moved is confirmed"),
    ("minted_event_ids", "each publication has an id of its own"),
    ("republished_under_one_id", "a broker drops what is published again because it remembers what it has lost"),
    ("late_mark_counts", "a mark counts although the broker may have lost its event since: a republication misses it"),
    ("bucket_left_early", "a relay that stops gives back a bucket whose event may still arrive, behind later ones"),
    ("sink_pause_ignored", "an event is published again at once although its sink asked for a pause: a plain back-off"),
    ("retention_below_window", "published rows are removed while the broker may still lose them"),
    ("spill_forgets", "an answer that the store does not accept is returned and kept nowhere"),
];

/// Whether this mutant is switched on.
///
/// # Panics
/// If `HAPAX_CHAOS` names no mutant of the list. A harness must not pass because of a typing error.
#[cfg(feature = "chaos")]
pub fn on(name: &str) -> bool {
    static CHOSEN: std::sync::LazyLock<Option<String>> = std::sync::LazyLock::new(|| {
        let chosen = std::env::var("HAPAX_CHAOS").ok()?;
        assert!(MUTANTS.iter().any(|(name, _)| *name == chosen), "HAPAX_CHAOS={chosen} names no mutant of the list");
        Some(chosen)
    });
    debug_assert!(MUTANTS.iter().any(|(listed, _)| *listed == name), "{name} is not in the list");
    CHOSEN.as_deref() == Some(name)
}

/// Always false without the feature `chaos`.
#[cfg(not(feature = "chaos"))]
pub(crate) const fn on(_name: &str) -> bool {
    false
}
