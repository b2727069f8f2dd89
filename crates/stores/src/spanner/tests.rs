//! Failures that the emulator does not have.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::ErrorKind::{Invalid, NotApplied, Unknown, Unusable};
use hapax_core::gate::{Failure, Provenance};
use hapax_core::ledger::{Call, Entry, Retention, Terms};
use hapax_core::runtime::Tokio;
use hapax_core::{Identity, Key, Result, Scope};
use hapax_net::google::GoogleCode::{self, Aborted, FailedPrecondition, NotFound, Unavailable};

use super::SpannerLedger;
use super::api::SpannerApi;
use super::ledger::SpannerTransaction;
use super::stand_in::StandInSpanner;
use super::transactions::TransactionEnd;
use super::values::SqlStatement;

/// Any statement: the server finds nothing.
const ANY: &str = include_str!("outbox/relay.sql");

const SESSION: (GoogleCode, &str) = (NotFound, "Session not found: sessions/0");

/// Runs a transaction whose commits, and then succeed, fail so. Returns its commits, too.
async fn committed(failures: &[(GoogleCode, &'static str)]) -> (Result<()>, Vec<String>) {
    let (server, url) = StandInSpanner::start().await;
    let api = SpannerApi::new(&url, Arc::new(Tokio::current())).unwrap();
    server.fail_commits(failures);
    let written = api.transact(&SqlStatement::new(ANY), |_| Ok(TransactionEnd::Write(Vec::new(), ()))).await;
    (written, server.take_calls("Commit"))
}

#[tokio::test]
async fn a_commit_without_an_answer_is_sent_again_under_its_transaction_and_is_unknown_in_the_end() {
    let (written, commits) = committed(&[(Unavailable, ""), (Unavailable, "")]).await;
    written.unwrap();
    assert!(commits.len() == 3 && commits.iter().all(|commit| *commit == commits[0]), "{commits:?}");
    let (written, commits) = committed(&[(Unavailable, ""); 4]).await;
    assert_eq!((written.unwrap_err().kind(), commits.len()), (Unknown, 3));
}

#[tokio::test]
async fn a_transaction_that_was_aborted_or_has_lost_its_session_runs_again_as_another_one() {
    for failures in [&[(Aborted, "")][..], &[SESSION], &[(Unavailable, ""), (Aborted, "")]] {
        let (written, commits) = committed(failures).await;
        written.unwrap();
        let [.., before, last] = &commits[..] else { panic!("{commits:?}") };
        assert_ne!(before, last, "{failures:?}");
    }
}

#[tokio::test]
async fn a_refusal_behind_a_commit_without_an_answer_is_unknown() {
    let (written, _) = committed(&[(FailedPrecondition, "no")]).await;
    assert_eq!(written.unwrap_err().kind(), Unusable);
    let (written, _) = committed(&[(Unavailable, ""), (FailedPrecondition, "no")]).await;
    assert_eq!(written.unwrap_err().kind(), Unknown);
}

#[tokio::test]
async fn a_read_that_fails_keeps_its_session() {
    let (server, url) = StandInSpanner::start().await;
    let api = SpannerApi::new(&url, Arc::new(Tokio::current())).unwrap();
    server.fail_statements(&[(Unavailable, ""), (Unavailable, "")]);
    for _ in 0..2 {
        assert_eq!(api.read(&SqlStatement::new(ANY)).await.unwrap_err().kind(), NotApplied);
    }
    api.read(&SqlStatement::new(ANY)).await.unwrap();
    assert_eq!(server.take_calls("CreateSession").len(), 1);
}

fn call() -> Call {
    Call::from(Identity::plain().call(&Scope::tenant("shop", "acme").unwrap(), &Key::new("order-7").unwrap()))
}

#[tokio::test]
async fn a_ledger_looks_for_its_row_after_commits_without_an_answer_and_runs_again_if_there_is_none() {
    let (server, url) = StandInSpanner::start().await;
    let ledger = SpannerLedger::connect(&url, Terms::new("shop").unwrap()).unwrap();
    server.fail_commits(&[(Unavailable, ""); 3]);
    let runs = Cell::new(0);
    let count = async |_: &SpannerTransaction, _: &mut Entry| {
        runs.set(runs.get() + 1);
        Ok::<_, Failure<String>>("done".to_owned())
    };
    let ran = ledger.run(call(), count).await.unwrap();
    assert_eq!((ran.provenance, runs.get(), server.take_calls("Commit").len()), (Provenance::Fresh, 2, 4));
}

#[tokio::test]
async fn a_transaction_whose_statement_has_failed_or_got_no_answer_does_not_commit() {
    for failure in [(Unavailable, ""), (FailedPrecondition, "no")] {
        let (server, url) = StandInSpanner::start().await;
        let ledger = SpannerLedger::connect(&url, Terms::new("shop").unwrap()).unwrap();
        let transaction = ledger.transaction().await.unwrap();
        transaction.execute(ANY).await.unwrap();
        server.fail_statements(&[failure]);
        transaction.execute(ANY).await.unwrap_err();
        assert_eq!(transaction.commit().await.unwrap_err().kind(), NotApplied);
        assert_eq!(server.take_calls("Commit"), Vec::<String>::new());
        assert_eq!(server.take_calls("Rollback").len(), 1);
    }
}

#[tokio::test]
async fn terms_that_keep_rows_longer_than_spanner_are_refused() {
    let (_server, url) = StandInSpanner::start().await;
    let days = |days: u64| Retention::For(Duration::from_hours(24 * days));
    for (retention, is_taken) in [(Retention::Forever, false), (days(91), false), (days(90), true), (days(30), true)] {
        let terms = Terms::new("shop").unwrap().retention(retention, Terms::HORIZON).unwrap();
        let connected = SpannerLedger::connect(&url, terms);
        assert_eq!(connected.map(drop).map_err(|error| error.kind()), if is_taken { Ok(()) } else { Err(Invalid) });
    }
}
