//! The table of the known bugs: what each one does, with the published pattern that has it after the colon, and its
//! name in `HAPAX_CHAOS`.

macro_rules! mutants {
    ($($(#[$text:meta])* $mutant:ident = $name:literal,)*) => {
        /// A known bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[$text])* $mutant,)*
        }

        impl Mutant {
            /// Every known bug.
            pub const ALL: &[Self] = &[$(Self::$mutant),*];

            /// The name in `HAPAX_CHAOS`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$mutant => $name,)*
                }
            }
        }
    };
}

// One name a line: `cargo xtask mutants` reads this list.
mutants! {
    /// An unknown error releases the key: patterns that delete their lock on any exception.
    ReleaseOnUnknown = "release_on_unknown",
    /// The answer is sent before it is recorded: completion on the response's finish event.
    AnswerBeforeRecord = "answer_before_record",
    /// A completion overwrites any record: a plain SET.
    CompleteUnfenced = "complete_unfenced",
    /// A completion after the lease is refused although no attempt took over.
    CompleteNeedsLease = "complete_needs_lease",
    /// A completion is discarded when the store forgot the record.
    CompleteNeedsRecord = "complete_needs_record",
    /// A release deletes any record: a plain DEL.
    ReleaseUnfenced = "release_unfenced",
    /// A renewal extends the lease of whichever attempt holds the key: a plain EXPIRE.
    RenewUnfenced = "renew_unfenced",
    /// A late renewal revives an abandoned grant.
    RenewRevivesAbandoned = "renew_revives_abandoned",
    /// The record lives only as long as its lease: a key whose TTL is the lock timeout.
    LeaseIsLife = "lease_is_life",
    /// An attempt does not recognize its own begin whose reply was lost: a lock without an owner.
    MineIsBusy = "mine_is_busy",
    /// An attempt that abandoned its grant gets the same grant again.
    MineWhenAbandoned = "mine_when_abandoned",
    /// The same key with another payload gets the first payload's answer.
    PayloadIgnored = "payload_ignored",
    /// The payload is compared only while the first attempt runs.
    MismatchAfterReplay = "mismatch_after_replay",
    /// Two tenants share a key: the key is the client's header alone.
    TenantIgnored = "tenant_ignored",
    /// A takeover gets no higher token: a UUID used as fencing token.
    TokenStandsStill = "token_stands_still",
    /// After the lease an operation with an unknown outcome runs again: a lock that expires.
    TakeoverUnderHold = "takeover_under_hold",
    /// A takeover that applied nothing releases the key, though the earlier attempt may have.
    TakeoverReleased = "takeover_released",
    /// After the clock stepped back, the key stays locked for the whole step.
    ClockBackSticks = "clock_back_sticks",
    /// A change overwrites a renewal that came between read and write.
    SwapIgnoresRenewal = "swap_ignores_renewal",
    /// A client that disconnects cancels the running handler.
    HandlerDiesWithCaller = "handler_dies_with_caller",
    /// A handler that takes longer than its lease loses the lease.
    NoHeartbeat = "no_heartbeat",
    /// A dropped handler releases the key: a guard that releases on drop.
    DropReleases = "drop_releases",
    /// An attempt that lost its grant returns its own answer.
    LostGivesOwnAnswer = "lost_gives_own_answer",
    /// A begin that arrives after its caller gave up blocks the key.
    NoCancel = "no_cancel",
    /// A copy that arrives while the first attempt runs is run too.
    TwinRunsToo = "twin_runs_too",
    /// A known effect is discarded because the record was released or is dead.
    KnownEffectRefused = "known_effect_refused",
    /// The token of a takeover is the caller's clock, one hour slow.
    TakeoverTokenByCaller = "takeover_token_by_caller",
    /// A record past its life still counts: items that a sweeper has not deleted yet.
    ExpiredIsLive = "expired_is_live",
    /// Another answer under the same token counts as the recorded one.
    AnotherAnswerAlready = "another_answer_already",
    /// A known effect is discarded because another owner has the same token.
    SameTokenRefused = "same_token_refused",
    /// The check of a record does not cover its answer, so an altered answer is replayed.
    AnswerUnchecked = "answer_unchecked",
    /// A late renewal shortens the life of an answer: EXPIRE on a stored result.
    RenewShortensAnswer = "renew_shortens_answer",
    /// A hold overwrites what was written since the read: an UPDATE by the key alone.
    HoldDoesNotCompare = "hold_does_not_compare",
    /// Only first begins raise the high-water mark, so a takeover's token is minted again.
    MarkByBeginAlone = "mark_by_begin_alone",
    /// A verdict on one attempt is written to a later attempt's record.
    ResolveAnyToken = "resolve_any_token",
    /// A dead record is reopened under the token that its last attempt still has.
    ReopenKeepsToken = "reopen_keeps_token",
    /// A begin that arrives after its cancellation blocks the key.
    CancelOnce = "cancel_once",
    /// A first begin that arrives after its attempt's release blocks the key.
    ReleaseWithoutCancel = "release_without_cancel",
    /// A begin without a reply is repeated under a new owner, which its first begin blocks.
    RetryWithNewOwner = "retry_with_new_owner",
    /// A grant is given back while its last renewal is still in flight.
    AbandonRacesRenewal = "abandon_races_renewal",
    /// The heartbeat stops with the handler, before the answer is recorded.
    HeartbeatStopsEarly = "heartbeat_stops_early",
    /// A follower gets the leader's answer before it is recorded.
    TwinToldEarly = "twin_told_early",
    /// An answer from the journal is recorded although it is past its retention.
    SpillIgnoresExpiry = "spill_ignores_expiry",
    /// A store error counts as a new key: an error that is dropped.
    ErrorIsAbsent = "error_is_absent",
    /// A panic releases the key.
    PanicIsNotApplied = "panic_is_not_applied",
    /// An open breaker refuses completions too.
    BreakerBlocksCompletion = "breaker_blocks_completion",
    /// A lease is counted from the reply to the renewal instead of from its sending.
    DeadlineByReply = "deadline_by_reply",
    /// A handler that hangs keeps its lease for ever.
    NeverTooLong = "never_too_long",
    /// A handler gets no signal that its grant was lost.
    LostGoesUnheard = "lost_goes_unheard",
    /// A handler is cancelled when the store forgets its record, though no other attempt runs.
    ForgottenIsLost = "forgotten_is_lost",
    /// A spilled answer is discarded when the store refuses it: a rotated password loses the answer.
    SpillGivesUp = "spill_gives_up",
    /// The answers of another store are adopted: one folder for the journals of two stores.
    JournalOfAnyStore = "journal_of_any_store",
    /// A spilled answer is tried for ever, also when its record must have expired.
    SpillNeverExpires = "spill_never_expires",
    /// A damaged record counts as a store that is down, so the handler runs without a record.
    DamagedIsDown = "damaged_is_down",
    /// A grant is not given back if the store is full or its password has changed.
    GiveBackGivesUp = "give_back_gives_up",
    /// A grant is given back for ever, also when its record must have expired.
    GiveBackNeverEnds = "give_back_never_ends",
    /// A drain ends while a grant is still being given back.
    DrainForgetsGiveBacks = "drain_forgets_give_backs",
    /// A route that runs without a record while the store is down refuses calls if it is full.
    PassIgnoresFull = "pass_ignores_full",
    /// Once a probe is due, an open breaker admits every begin until one of them succeeds.
    EveryBeginIsAProbe = "every_begin_is_a_probe",
    /// A begin that fails while the breaker is open closes it.
    FailedProbeClosesBreaker = "failed_probe_closes_breaker",
    /// A probe is asked before the token of its verdict is read: check, then look again.
    ProbeBeforeToken = "probe_before_token",
    /// The writes of a handler with a final answer stay: no savepoint around the handler.
    SavepointMissing = "savepoint_missing",
    /// An error of the finish is ignored: COMMIT of an aborted transaction returns no error.
    SwallowedAbort = "swallowed_abort",
    /// A COMMIT without a reply counts as committed.
    CommitTrusted = "commit_trusted",
    /// A row of the ledger is replayed to another payload.
    LedgerPayloadIgnored = "ledger_payload_ignored",
    /// What a handler wrote stays when its transaction is rolled back: a connection of its own.
    HandlerOutside = "handler_outside",
    /// A handler runs before the claim: a ledger row that is inserted at the end.
    ClaimLast = "claim_last",
    /// Each violation of a constraint counts as a twin's claim.
    AnyViolationIsOurs = "any_violation_is_ours",
    /// In SQLite, a full disk counts as a failure of the handler, so good messages are dead.
    FullDiskIsFailure = "full_disk_is_failure",
    /// An operation that cannot be inserted counts as applied, without a look at its row.
    ViolationIsSuccess = "violation_is_success",
    /// Two ledgers that handle one operation share its row.
    LedgerNamespaceIgnored = "ledger_namespace_ignored",
    /// An event that cannot be written does not undo the effect: an outbox outside the transaction.
    EventOutside = "event_outside",
    /// The failure of a batch is counted for its first operation.
    InnocentCounted = "innocent_counted",
    /// A row that was found before the claim answers a call with any payload.
    CopyPayloadIgnored = "copy_payload_ignored",
    /// Two ledgers that handle one operation emit events under the same ids.
    EventWithoutNamespace = "event_without_namespace",
    /// In PostgreSQL, what a handler wrote stays when its transaction is rolled back.
    PostgresHandlerOutside = "postgres_handler_outside",
    /// In PostgreSQL, each unique violation of a handler counts as a twin's claim.
    PostgresAnyViolationIsOurs = "postgres_any_violation_is_ours",
    /// In PostgreSQL, a server that takes no writes counts as the handler's failure.
    PostgresReadOnlyIsAFailure = "postgres_read_only_is_a_failure",
    /// In PostgreSQL, a finish counts as done although its claim is gone.
    PostgresFinishUnchecked = "postgres_finish_unchecked",
    /// In PostgreSQL, the row of a claim refers to nothing, so that it can be committed.
    PostgresClaimCommits = "postgres_claim_commits",
    /// In PostgreSQL, a finish deletes the row of a claim that stands for other operations.
    PostgresGuardWithoutHash = "postgres_guard_without_hash",
    /// In PostgreSQL, a claim searches before it has the lock of its operation.
    PostgresLockAfterSearch = "postgres_lock_after_search",
    /// In PostgreSQL, a claim searches in the snapshot in which it takes its locks.
    PostgresSearchWithLock = "postgres_search_with_lock",
    /// In PostgreSQL, events are written in a statement before the finish.
    PostgresEventsFirst = "postgres_events_first",
    /// A copy is acknowledged while the first one still runs: 409 counts as processed.
    AcknowledgeBusy = "acknowledge_busy",
    /// The highest finished offset is committed, though earlier messages still run.
    CommitBeyondWatermark = "commit_beyond_watermark",
    /// Offsets of a lane are committed after another worker got it.
    CommitOnLoss = "commit_on_loss",
    /// A message is acknowledged before it is processed: enable.auto.offset.store.
    OffsetStoredEarly = "offset_stored_early",
    /// A message is acknowledged before its dead letter is written.
    DeadLetterAckedFirst = "dead_letter_acked_first",
    /// Failed attempts are counted in the process, so a poison message never ends.
    AttemptsForgotten = "attempts_forgotten",
    /// Two consumer groups that get one message share its key.
    WorkerNamespaceIgnored = "worker_namespace_ignored",
    /// Two partitions share the keys of their offsets: the key is the topic and the offset.
    PartitionIgnored = "partition_ignored",
    /// A failed acknowledgement is forgotten because another partition has one waiting.
    PositionDropped = "position_dropped",
    /// A lag that the broker does not tell is shown as 0: a default value.
    UnknownLagIsZero = "unknown_lag_is_zero",
    /// The lease of a delivery is not extended while its handler runs.
    ExtensionStopsEarly = "extension_stops_early",
    /// A redrive runs a message of unknown outcome again once its record has expired.
    RedriveWithoutRecordRuns = "redrive_without_record_runs",
    /// The word that a message had no effect holds for every further attempt.
    WordIsNotUsedUp = "word_is_not_used_up",
    /// A letter that was dropped while its worker was paused runs all the same.
    LetterRunsAfterItsLease = "letter_runs_after_its_lease",
    /// A redriven letter is taken by a second worker while its message still runs.
    LetterIsNotExtended = "letter_is_not_extended",
    /// Dead letters that cannot be read count as none, so that parked keys go on.
    UnreadLettersAreNone = "unread_letters_are_none",
    /// A result is settled for a lane that was lost and came back: lanes without generation.
    SettleOldGeneration = "settle_old_generation",
    /// A later message of an ordering key runs while an earlier one waits for its retry.
    OvertakingWithinKey = "overtaking_within_key",
    /// The panic of a batch is counted for each of its messages.
    SharedPanicsCounted = "shared_panics_counted",
    /// A message whose handler panicked is acknowledged.
    PanicDropsMessage = "panic_drops_message",
    /// Rows of a slow transaction behind the relay's cursor are lost: WHERE id > last.
    CursorIsTheTruth = "cursor_is_the_truth",
    /// A transaction draws a row id before it counts as running, so the floor passes its row.
    IdBeforeXid = "id_before_xid",
    /// An event is published inside its transaction, which may roll back.
    ReadUncommittedRows = "read_uncommitted_rows",
    /// A row is marked before the broker has its event.
    MarkBeforePublish = "mark_before_publish",
    /// A late mark publishes a row that an operator dropped or whose key is parked.
    MarkAnyState = "mark_any_state",
    /// The events behind one that the broker never takes are published without it.
    RefusedRowIsSkipped = "refused_row_is_skipped",
    /// Two events of a key are published at once: FOR UPDATE SKIP LOCKED on rows.
    ClaimPerRow = "claim_per_row",
    /// The queue in SQLite forgets events after half of the window.
    QueueForgetsEarly = "queue_forgets_early",
    /// A relay keeps a bucket whose claim is gone, beside the relay that claims it next.
    GoneClaimIsHeld = "gone_claim_is_held",
    /// What is written to an SQLite file that was moved is confirmed.
    MovedFileUnnoticed = "moved_file_unnoticed",
    /// Each publication has an id of its own.
    MintedEventIds = "minted_event_ids",
    /// A broker drops what is published again because it remembers what it has lost.
    RepublishedUnderOneId = "republished_under_one_id",
    /// A mark counts although the broker may have lost its event since: a republication misses it.
    LateMarkCounts = "late_mark_counts",
    /// A relay that stops gives back a bucket whose event may still arrive, behind later ones.
    BucketLeftEarly = "bucket_left_early",
    /// An event is published again at once although its sink asked for a pause: a plain back-off.
    SinkPauseIgnored = "sink_pause_ignored",
    /// Published rows are removed while the broker may still lose them.
    RetentionBelowWindow = "retention_below_window",
    /// Rows for a dead endpoint fill the room of a relay, and keep all other rows waiting.
    DeadTopicIsRead = "dead_topic_is_read",
    /// An answer that the store does not accept is returned and kept nowhere.
    SpillForgets = "spill_forgets",
}
