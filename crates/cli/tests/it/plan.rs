//! `hapax plan` beside the file that a store writes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax::machine::{Begin, Claim, Complete, Lapse};
use hapax::runtime::Tokio;
use hapax::store::Inserted;
use hapax::stores::{Sqlite, SqliteSettings};
use hapax::{Identity, Key, Millis, Owner, Scope, Seconds, Store, Timestamp};
use rusqlite::Connection;

use crate::harness::hapax;

const RECORDS: u64 = 3_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_as_large_as_planned() {
    for answer in [100, 512, 1_500, 6_000] {
        let (planned, real) = (planned_bytes(answer), real_bytes(answer).await);
        let ratio = planned as f64 / real as f64;
        assert!((0.8..=1.4).contains(&ratio), "an answer of {answer} bytes: planned {planned}, really {real}");
    }
}

/// The bytes of a record that the command prints.
fn planned_bytes(answer: usize) -> u64 {
    let output = hapax().args(["plan", "--rate", "1", "--store", "sqlite", "--body", &answer.to_string()]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let row = text.lines().find(|line| line.starts_with("sqlite ")).unwrap_or_else(|| panic!("{text}"));
    row.split_whitespace().nth(1).unwrap().replace(',', "").parse().unwrap()
}

/// The bytes of the pages of a file, for each of its records.
async fn real_bytes(answer: usize) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("records.db");
    let store = Sqlite::with(&path, Arc::new(Tokio::current()), SqliteSettings::default()).unwrap();
    let (identity, scope) = (Identity::plain(), Scope::tenant("plan", "acme").unwrap());
    for number in 0..RECORDS {
        let call = identity.call(&scope, &Key::new(number.to_be_bytes()).unwrap());
        complete(&store, call, Bytes::from(vec![7; answer])).await;
    }
    let connection = Connection::open(&path).unwrap();
    let number = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0)).unwrap();
    (number("page_count") * number("page_size")) as u64 / RECORDS
}

async fn complete(store: &Sqlite, call: hapax::Call, answer: Bytes) {
    let begin = Begin {
        call,
        owner: Owner([7; 16]),
        lease: Millis(30_000),
        unknown_retention: Seconds(2_592_000),
        on_lapse: Lapse::Hold,
    };
    let Inserted::Granted(grant) = store.begin(&begin).await.unwrap() else { panic!("a new key has a record") };
    let complete = Complete {
        claim: Claim::from(&grant),
        fingerprint: grant.fingerprint,
        answer,
        retention: Seconds(86_400),
        ended: Timestamp(0),
        age: Duration::ZERO,
    };
    store.complete(&begin.call.record_key(), &complete).await.unwrap();
}

#[test]
fn impossible_plans_are_refused() {
    for flags in
        [&["--rate", "0"][..], &[], &["--rate", "1", "--store", "oracle"], &["--rate", "1", "--body", "9999999"]]
    {
        let output = hapax().arg("plan").args(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
    }
}

#[test]
fn large_bodies_get_the_advice_to_move_them() {
    let plan = |body: &str| {
        let output = hapax().args(["plan", "--rate", "1000", "--retention", "24h", "--body", body]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let (small, large) = (plan("512"), plan("16384"));
    assert!(small.starts_with("86,400,000 records: 1,000 new keys a second"), "{small}");
    assert!(["redis", "postgres", "sqlite"].iter().all(|store| small.contains(store)), "{small}");
    assert!(large.contains("--answers s3:") && !small.contains("--answers"), "{large}");
}
