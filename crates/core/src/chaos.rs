//! Published bugs, built in on request, to prove that the harnesses can see them.
//!
//! With the feature `chaos`, `HAPAX_CHAOS=<name>` turns one of them on for the whole process. Without the feature none of this is
//! compiled in. `cargo xtask mutants` runs the harnesses against each.

/// Each bug by its name, with what it does and where it was found: a pattern in circulation, or a rule of the engine left out.
///
/// ```
/// for (name, what_it_does) in hapax_core::chaos::MUTANTS {
///     println!("HAPAX_CHAOS={name}: {what_it_does}");
/// }
/// ```
#[cfg(feature = "chaos")]
#[rustfmt::skip] // One a line: the list is read by `cargo xtask mutants`, too.
pub const MUTANTS: &[(&str, &str)] = &[
    ("release_on_unknown", "an unknown error gives the key back: every pattern that deletes its lock on any exception"),
    ("answer_before_record", "the answer is given before it is recorded: completion on the response's finish event"),
    ("complete_unfenced", "a completion overwrites whatever stands there: a plain SET"),
    ("complete_needs_lease", "a completion is refused once its lease lapsed, though nobody took over: the result is thrown away"),
    ("complete_needs_record", "a completion is thrown away when the store forgot the record"),
    ("release_unfenced", "a release deletes whatever stands there: a plain DEL"),
    ("renew_unfenced", "a renewal extends whoever holds the key now: a plain EXPIRE"),
    ("renew_revives_abandoned", "a late renewal brings an abandoned grant back to life"),
    ("lease_is_life", "the record lives as long as its lease: a key whose TTL is the lock timeout"),
    ("mine_is_busy", "an attempt takes its own lost begin for somebody else's: a lock without an owner"),
    ("mine_when_abandoned", "an attempt that gave up is granted again as its own"),
    ("payload_ignored", "the same key with another payload gets the first one's answer"),
    ("mismatch_after_replay", "the payload is compared only while the first runs"),
    ("tenant_ignored", "two tenants share a key: the key is the client's header alone"),
    ("token_stands_still", "a takeover gets no higher token: a UUID taken for a fencing token"),
    ("takeover_under_hold", "a lapsed record is run again although its outcome is unknown: a lock that just expires"),
    ("takeover_released", "a takeover that applied nothing frees the key, though the attempt before it may have applied it"),
    ("clock_back_sticks", "a clock that stepped back leaves the key locked for the whole step"),
    ("swap_ignores_renewal", "a change is written over a renewal that came in between"),
    ("handler_dies_with_caller", "a client that hangs up cancels the handler in the middle"),
    ("no_heartbeat", "a handler that is slower than its lease loses it"),
    ("drop_releases", "a dropped handler gives the key back: a guard that frees on drop"),
    ("lost_gives_own_answer", "an attempt that lost its grant gives its own answer all the same"),
    ("no_cancel", "a begin that arrives after its caller gave up holds the key for nobody"),
    ("twin_runs_too", "a copy that comes while the first runs is let through"),
    ("known_effect_refused", "a known effect is thrown away because the record is released or dead by now"),
    ("takeover_token_by_caller", "a takeover's token is its caller's clock, an hour slow: a lease judged by client time"),
    ("expired_is_live", "a record past its life still counts: items that a sweeper has not deleted yet"),
    ("renew_shortens_answer", "a late renewal cuts the life of the recorded answer: EXPIRE on a stored result"),
    ("hold_does_not_compare", "a hold is written over whatever stands there by then: an UPDATE by the key alone"),
    ("mark_by_begin_alone", "only first begins raise the mark: a token handed out by a takeover comes back after the record's life"),
    ("resolve_any_token", "a verdict on one attempt is written on a later one's record"),
    ("reopen_keeps_token", "a dead record is opened under the token that its last attempt still has"),
    ("cancel_once", "a begin that arrives after its cancellation holds the key for nobody"),
    ("release_without_cancel", "a first begin that arrives after its own attempt's release holds the key for nobody"),
    ("retry_with_new_owner", "a begin that was not answered is repeated as somebody else's: its own first one keeps it out"),
    ("abandon_races_renewal", "a grant is given back while its last renewal is still under way"),
    ("heartbeat_stops_early", "the heartbeat ends with the handler, before the answer is recorded"),
    ("twin_told_early", "a copy is given the leader's answer before it is recorded"),
    ("spill_ignores_expiry", "an answer from the journal comes back although it is past its retention"),
    ("error_is_absent", "a store that cannot be asked counts as a key that is new: an error dropped on the way"),
    ("panic_is_not_applied", "a panic gives the key back"),
    ("breaker_blocks_completion", "an open breaker refuses completions, too"),
    ("deadline_by_reply", "a lease is counted from the reply to the renewal instead of from its sending"),
    ("never_too_long", "a handler that hangs keeps its lease for ever"),
    ("lost_goes_unheard", "a handler is not told that its grant was lost"),
    ("spill_forgets", "an answer that the store does not take is given, and kept nowhere"),
];

/// Whether this bug is turned on.
///
/// # Panics
/// If `HAPAX_CHAOS` names no bug of the list: a harness must not pass because of a slip of the pen.
#[cfg(feature = "chaos")]
pub(crate) fn on(name: &str) -> bool {
    static CHOSEN: std::sync::LazyLock<Option<String>> = std::sync::LazyLock::new(|| {
        let chosen = std::env::var("HAPAX_CHAOS").ok()?;
        assert!(MUTANTS.iter().any(|(name, _)| *name == chosen), "HAPAX_CHAOS={chosen} names no bug of the list");
        Some(chosen)
    });
    debug_assert!(MUTANTS.iter().any(|(listed, _)| *listed == name), "{name} is not in the list");
    CHOSEN.as_deref() == Some(name)
}

/// Never, without the feature `chaos`.
#[cfg(not(feature = "chaos"))]
pub(crate) const fn on(_name: &str) -> bool {
    false
}

#[cfg(feature = "chaos")]
mod machine;
#[cfg(feature = "chaos")]
pub(crate) use machine::{begin, complete, granted, release, renew, reopen, resolve};
