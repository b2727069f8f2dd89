//! The cases for [`Store`](hapax_core::Store): one line each, with the number of the clause that the case tests. The
//! clauses are in [`contract`](hapax_core::store::contract).

mod assertions;
mod clock;
mod operation;
mod parallel;

mod begin;
mod complete;
mod errors;
mod inspect;
mod keys;
mod release;
mod renew;
mod resolve;
mod rules;
mod swap;
mod time;
mod tokens;

use crate::setup::{Capability, SuiteCase};

pub use errors::{GOLDEN_ANSWER, golden_call};

macro_rules! cases {
    ($($family:ident: $($clause:literal $name:ident $(needs $needs:ident)?),+;)+) => {
        vec![$($(SuiteCase {
            name: stringify!($name),
            clause: $clause,
            needs: cases!(@ $($needs)?),
            run: |setup| Box::pin($family::$name(setup)),
        }),+),+]
    };
    (@) => { None };
    (@ $needs:ident) => { Some(Capability::$needs) };
}

/// Every case, grouped by store operation and topic.
pub fn cases() -> Vec<SuiteCase> {
    cases! {
        begin:
            4 begin_grants_absent,
            5 begin_busy_live,
            11 begin_busy_reports_remaining_lease,
            2 begin_same_owner_is_mine,
            13 begin_mine_rearms_lease,
            10 begin_replays_completed_bytes_exact,
            5 begin_mismatch_when_live,
            5 begin_mismatch_when_completed,
            5 begin_mismatch_when_released,
            5 begin_mismatch_beats_busy,
            13 begin_lapsed_retry_takes_over,
            11 begin_lapsed_indeterminate_marks,
            14 begin_after_release_grants_higher_token,
            6 begin_expired_ignores_old_fp,
            4 begin_100_racers_one_grant,
            1 begin_takeover_100_racers_one_winner,
            1 begin_batch_equals_singles,
            4 begin_batch_duplicate_keys_in_batch,
            1 begin_batches_opposite_order_no_deadlock,
            6 begin_row_vanishes_mid_way,
            13 begin_own_abandoned_is_not_mine;
        tokens:
            14 token_grows_on_takeover,
            14 token_grows_across_release,
            14 token_grows_across_expiry,
            14 token_grows_when_record_is_gone_and_clock_steps_back needs HighWaterMark,
            14 token_grows_after_completion_under_older_one needs HighWaterMark,
            14 token_grows_when_clock_steps_back,
            15 token_grows_over_all_keys needs HighWaterMark,
            15 token_exact_above_2_pow_50,
            15 token_mark_is_raised_by_every_write needs HighWaterMark;
        renew:
            7 renew_extends,
            7 renew_wrong_token_lost,
            7 renew_wrong_owner_lost,
            7 renew_after_complete_lost_and_retention_untouched,
            7 renew_missing_gone,
            7 renew_after_takeover_lost,
            2 renew_idempotent,
            7 renew_after_abandon_lost,
            7 renew_keeps_a_long_lifetime;
        complete:
            8 complete_then_replay,
            2 complete_twice_same_already,
            8 complete_twice_other_lost_returns_canonical,
            8 complete_after_lapse_without_takeover_ok,
            8 complete_after_takeover_lost,
            8 complete_heals_indeterminate,
            8 complete_missing_recreates,
            8 complete_never_downgrades,
            8 complete_sets_result_retention,
            8 complete_without_retention,
            9 complete_when_store_full_succeeds needs RoomToComplete,
            10 complete_empty_body,
            10 complete_binary_body_with_nul,
            10 complete_1_mib_body,
            8 complete_beats_released,
            8 complete_beats_dead,
            8 complete_beats_another_owner_under_its_token,
            8 complete_beats_running,
            1 complete_batch_equals_singles;
        release:
            13 release_then_begin,
            12 release_wrong_token_noop,
            12 release_completed_noop,
            13 release_keeps_fingerprint,
            12 release_late_ghost_noop,
            13 abandon_is_not_release,
            13 release_of_takeover_is_abandon,
            13 cancel_heals_marked_unknown,
            2 abandon_after_hold_is_yes,
            13 bury_from_indeterminate,
            2 bury_repeated_is_yes;
        resolve:
            13 resolve_done_replays,
            13 resolve_not_done_grants,
            12 resolve_stale_token_refused,
            13 reopen_dead,
            12 resolve_other_answer_is_stale,
            2 resolve_repeated_is_yes,
            2 reopen_repeated_is_yes;
        swap:
            12 swap_notices_renewal,
            12 swap_notices_every_other_write,
            6 expired_is_absent_for_every_op;
        keys:
            19 keys_differ_by_case,
            19 keys_differ_by_trailing_space,
            19 keys_differ_by_unicode_form,
            19 keys_differ_by_tenant,
            19 keys_with_nul_and_emoji,
            19 key_255_bytes,
            19 namespace_isolation;
        rules:
            12 every_write_stores_the_rule,
            5 begin_mismatch_under_another_rule,
            8 complete_lost_under_another_rule;
        time:
            16 lapse_uses_store_clock_not_client,
            16 client_clock_plus_1h,
            16 client_clock_minus_1h,
            18 store_clock_back_unsticks_within_one_lease,
            16 store_clock_forward_fences_old_holder,
            6 retention_boundary_no_double_grant,
            17 retention_config_change_does_not_bend_age,
            2 cancel_by_owner_after_ambiguous_begin;
        errors:
            21 corrupt_record_is_error_not_absent needs StoredForm,
            21 corrupt_answer_is_error_not_replayed needs StoredForm,
            3 drop_future_leaks_nothing,
            10 golden_v1_readable needs StoredForm;
        inspect:
            23 scan_finds_every_record_of_every_status,
            23 scan_finds_records_that_change_meanwhile,
            23 scan_leaves_out_what_expired,
            23 scan_filters_by_status_and_idle_time,
            23 scan_names_a_damaged_record needs StoredForm,
            24 purge_removes_only_what_was_seen,
            24 purge_notices_renewal,
            24 purge_spares_running_and_unknown,
            25 purge_frees_the_key_and_keeps_tokens_growing,
            25 purge_raises_the_mark needs HighWaterMark;
    }
}
