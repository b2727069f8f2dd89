//! How long rows are kept.

use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_core::ledger::Retention;

use super::*;

#[test]
fn rows_are_kept_for_90_days_unless_the_terms_say_otherwise() {
    assert_eq!(terms().kept_for().to_string(), "90 d");
    for (retention, text) in [
        (Retention::For(Duration::from_hours(36)), "129600 s"),
        (Retention::For(Duration::from_hours(48)), "2 d"),
        (Retention::For(Duration::ZERO), "0 s"),
        (Retention::Forever, "forever"),
    ] {
        let terms = terms().retention(retention, Duration::ZERO).unwrap();
        assert_eq!(terms.kept_for().to_string(), text);
    }
}

#[test]
fn rows_that_would_not_outlive_the_last_copy_are_refused() {
    let second = Duration::from_secs(1);
    let refused = terms().retention(Retention::For(Terms::HORIZON - second), Terms::HORIZON).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(terms().retention(Retention::For(Terms::HORIZON), Terms::HORIZON).is_ok());
    assert!(terms().retention(Retention::Forever, Duration::MAX).is_ok());
}
