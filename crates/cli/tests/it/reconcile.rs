//! `hapax reconcile` on SQLite, its probe and its errors.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime};

use hapax::ledger::{Event, Terms};
use hapax::machine::{Begin, Begun, Claim, Lapse, Renewed};
use hapax::outbox::Outbox;
use hapax::relay::bucket_records;
use hapax::store::Protocol;
use hapax::stores::{Sqlite, SqliteLedger, SqliteOutbox};
use hapax::{Call, Identity, Key, Millis, Owner, Scope, Store, ledger};
use rusqlite::Connection;

use crate::harness::{hapax, until};
use crate::reconciliation::{
    DAY, EVENT_KEYS, Found, LONG, SHORT, System, WORKER, asks_the_processor, call, completion, finds_and_repairs,
    found, heals_what_a_dead_gateway_left, names, payload, start_processor, start_processor_that, subject,
};
use crate::tls::{Pki, start_tls_proxy};

/// A system in two files: the gateway's, and the one of the service and its relay.
fn system(directory: &Path) -> System {
    let (gateway, bank) = (directory.join("gateway.db"), directory.join("bank.db"));
    let mut connection = Connection::open(&bank).unwrap();
    SqliteLedger::migrate(&mut connection).unwrap();
    SqliteOutbox::migrate(&mut connection).unwrap();
    connection.busy_timeout(Duration::from_secs(30)).unwrap();
    connection.execute_batch("create table effect (text text)").unwrap();
    for key in EVENT_KEYS {
        let event = Event::new("withdrawals", "5").ordered_by(key);
        SqliteOutbox::emit(&connection, "bank", None, event).unwrap();
    }
    let (ledger, connection) = (SqliteLedger::new(Terms::new("bank").unwrap()), Arc::new(Mutex::new(connection)));
    let damaged = gateway.clone();
    System {
        store_url: format!("sqlite://{}", gateway.display()),
        records: Arc::new(Sqlite::open(&gateway).unwrap()) as Arc<dyn Store>,
        database_url: format!("sqlite://{}", bank.display()),
        claims: Arc::new(Sqlite::open(&bank).unwrap()),
        outbox: Arc::new(SqliteOutbox::open(&bank).unwrap()) as Arc<dyn Outbox>,
        book: Arc::new(move |call, text| {
            let mut connection = connection.lock().unwrap();
            let ran = ledger.run(&mut connection, call, |transaction, _| {
                transaction.execute("insert into effect values (?1)", [&text])?;
                Ok(text.clone())
            });
            let answer = ran.unwrap().answer;
            Box::pin(async move { answer })
        }),
        damage: Box::new(move |rk| {
            let sql = "update hapax_record set token = token + 1 where rk = ?1";
            let changed = Connection::open(&damaged).unwrap().execute(sql, [&rk.as_bytes()[..]]).unwrap();
            assert_eq!(changed, 1);
            Box::pin(async {})
        }),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_inconsistency_is_found_the_certain_ones_are_repaired_and_nothing_else_is_touched() {
    let directory = tempfile::tempdir().unwrap();
    finds_and_repairs(&system(directory.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_healed_that_a_gateway_left_which_died_after_the_ledger_had_committed() {
    let directory = tempfile::tempdir().unwrap();
    heals_what_a_dead_gateway_left(&system(directory.path()), &directory.path().join("spill")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_processor_tells_of_effects_without_a_record_and_of_records_without_an_effect() {
    let directory = tempfile::tempdir().unwrap();
    asks_the_processor(&system(directory.path())).await;
}

/// A finding about this operation, and that rows of the outbox wait.
fn only(finding: &str, name: &str) -> Found {
    Found::from([(finding.to_owned(), subject(name)), ("rows-unpublished".to_owned(), String::new())])
}

/// What the command finds with these flags, once it is this.
async fn until_found(system: &System, flags: &[&str], expected: &Found) {
    let all = [&["--longest-transaction", "1ms", "--unpublished-after", "1ms"], flags].concat();
    until("exactly the expected is found", async || names(&found(&system.reconcile_with(&all).await)) == *expected)
        .await;
}

fn nothing() -> Found {
    Found::from([("rows-unpublished".to_owned(), String::new())])
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_renews_its_lease_while_the_processor_is_asked_is_not_reported() {
    let directory = tempfile::tempdir().unwrap();
    let system = system(directory.path());
    let grant = system.begin("renews", Millis(2_000)).await;
    until_found(&system, &[], &only("outcome-unknown", "renews")).await;
    let records = Arc::clone(&system.records);
    let (address, asked) = start_processor_that(move || {
        let records = Arc::clone(&records);
        Box::pin(async move {
            assert_eq!(records.renew(&grant.rk, &Claim::from(&grant)).await.unwrap(), Renewed::Yes);
            r#"{"done": [], "not_done": []}"#.to_owned()
        })
    })
    .await;
    let probe = format!("http://{address}/effects");
    let flags = ["--longest-transaction", "1ms", "--unpublished-after", "1ms", "--probe", &probe];
    let seen = names(&found(&system.reconcile_with(&flags).await));
    assert_eq!((seen, asked.lock().len()), (nothing(), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_were_granted_before_since_are_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let system = system(directory.path());
    let older = system.begin("older", SHORT).await;
    let mut since = older.token.0;
    until("the clock goes on", async || {
        since = system.records.read(&older.rk).await.unwrap().now.0;
        since / 1_000 > older.token.0 / 1_000 + 1
    })
    .await;
    system.begin("younger", SHORT).await;
    let since = SystemTime::UNIX_EPOCH + Duration::from_micros(since);
    let since = humantime::format_rfc3339_micros(since).to_string();
    until_found(&system, &["--since", &since], &only("outcome-unknown", "younger")).await;
    let both: Found = only("outcome-unknown", "younger").union(&only("outcome-unknown", "older")).cloned().collect();
    until_found(&system, &["--since", "1h"], &both).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rows_of_a_worker_with_a_secret_are_found_with_its_secret() {
    let directory = tempfile::tempdir().unwrap();
    let system = system(directory.path());
    let secret = directory.path().join("secret");
    std::fs::write(&secret, [7; 32]).unwrap();
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let grant = system.begin("booked", SHORT).await;
    let key = Key::new(grant.rk.operation().to_string()).unwrap();
    let derived = Identity::keyed([7; 32]).record_key(&Scope::untenanted(WORKER).unwrap(), &key).operation();
    system.book(ledger::Call::new(derived).fingerprint(payload("the message")), "booked").await;
    until_found(&system, &["--worker-namespace", WORKER], &only("outcome-unknown", "booked")).await;
    let flags = ["--worker-namespace", WORKER, "--secrets", secret.to_str().unwrap()];
    until_found(&system, &flags, &only("effect-committed", "booked")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_the_ledger_has_refused_has_no_effect_and_its_record_is_released() {
    let directory = tempfile::tempdir().unwrap();
    let system = system(directory.path());
    system.begin("refused", SHORT).await;
    system.book(ledger::Call::from(call("refused")), "refused").await;
    let bank = Connection::open(directory.path().join("bank.db")).unwrap();
    assert_eq!(bank.execute("update hapax_ledger set verdict = 2", []).unwrap(), 1);
    until_found(&system, &[], &only("refusal-committed", "refused")).await;
    until_found(&system, &["--fix"], &only("refusal-committed", "refused")).await;
    until_found(&system, &[], &nothing()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_needs_no_row_where_no_ledger_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let system = system(directory.path());
    let grant = system.begin("answered", LONG).await;
    system.protocol().complete(&grant.rk, &completion(&grant, b"done")).await.unwrap();
    until_found(&system, &[], &only("no-ledger-row", "answered")).await;
    until_found(&system, &["--no-ledger"], &nothing()).await;
    system.begin("crashed", SHORT).await;
    until_found(&system, &["--no-ledger"], &only("outcome-unknown", "crashed")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_whose_relay_publishes_old_rows_is_not_stuck() {
    let directory = tempfile::tempdir().unwrap();
    let system = system(directory.path());
    let bank = directory.path().join("bank.db");
    let connection = Connection::open(&bank).unwrap();
    for _ in 0..3 {
        let event = Event::new("withdrawals", "5").ordered_by(EVENT_KEYS[0]);
        SqliteOutbox::emit(&connection, "bank", None, event).unwrap();
    }
    connection.execute("update hapax_outbox set created_at = created_at - 3600000", []).unwrap();
    let sql = "select bucket from hapax_outbox order by id desc limit 1";
    let bucket: u8 = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    connection.execute("update hapax_outbox set state = 1 where bucket <> ?1", [bucket]).unwrap();
    claim_bucket(&system, bucket).await;
    let (stuck, flags) = ("bucket-stuck".to_owned(), ["--unpublished-after", "3s"]);
    let expected = Found::from([(stuck, bucket.to_string()), ("rows-unpublished".to_owned(), String::new())]);
    assert_eq!(names(&found(&system.reconcile_with(&flags).await)), expected);

    // A relay that works off old rows, as after `hapax outbox republish`: another one is the first each time.
    let (stop, stopped) = mpsc::channel::<()>();
    let relay = tokio::task::spawn_blocking(move || {
        connection.busy_timeout(Duration::from_secs(30)).unwrap();
        let next = "update hapax_outbox set id = (select max(id) + 1 from hapax_outbox)
                    where id = (select min(id) from hapax_outbox where state = 0)";
        while stopped.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Timeout) {
            assert_eq!(connection.execute(next, []).unwrap(), 1);
        }
    });
    let seen = names(&found(&system.reconcile_with(&flags).await));
    drop(stop);
    relay.await.unwrap();
    assert_eq!(seen, nothing());
}

/// Lets a relay have this bucket.
async fn claim_bucket(system: &System, bucket: u8) {
    let call = Call::new(bucket_records().unwrap()[usize::from(bucket)]);
    let ask = Begin { call, owner: Owner([8; 16]), lease: LONG, unknown_retention: DAY, on_lapse: Lapse::Retry };
    let begun = Protocol::over(&*system.claims).begin(&ask).await.unwrap();
    assert!(matches!(begun, Begun::Granted(_)), "the bucket is free");
}

/// What a run with this probe ends with, without any authority of the system.
fn probe(system: &System, flags: &[&str]) -> Output {
    let mut command = hapax();
    command.args(["reconcile", "--store", &system.store_url, "--database", &system.database_url]);
    command.args(["--longest-transaction", "1ms", "--probe"]).args(flags);
    command.env("SSL_CERT_FILE", "/dev/null").env("SSL_CERT_DIR", "/no/such/folder").output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_probe_over_tls_needs_authorities_and_it_trusts_those_of_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let system = system(directory.path());
    let grant = system.begin("happened", SHORT).await;
    until_found(&system, &[], &only("outcome-unknown", "happened")).await;
    let body = serde_json::json!({ "done": [grant.rk.operation().to_string()], "not_done": [] });
    let (plain, _) = start_processor(body.to_string()).await;
    let (pki, stranger) = (Pki::new(), Pki::new());
    let secure = start_tls_proxy(plain, &pki).await;
    let (plain, secure) = (format!("http://{plain}/effects"), format!("https://{secure}/effects"));
    for (flags, code, said) in [
        (&[&*plain][..], 1, "the effect happened"),
        (&[&secure, "--probe-ca", &pki.path("ca")], 1, "the effect happened"),
        (&[&secure, "--probe-ca", &stranger.path("ca")], 3, "the processor behind --probe cannot be asked"),
        (&[&secure, "--probe-ca", "/no/such/file"], 3, "--probe-ca"),
        (&[&secure], 3, "without --probe-ca: the system has no trusted authorities"),
    ] {
        let output = probe(&system, flags);
        let text = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat();
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {text}");
        assert!(text.contains(said), "{flags:?}: {text}");
    }
}

#[test]
fn wrong_usage_is_2_and_a_server_that_cannot_be_reached_is_3() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| format!("sqlite://{}", directory.path().join(name).display());
    let (absent, bank) = (path("absent.db"), path("bank.db"));
    let migrated = hapax().args(["migrate", "--database", &bank]).output().unwrap();
    assert_eq!(migrated.status.code(), Some(0), "{migrated:?}");
    let lost = "postgres://shop:hush-hush@127.0.0.1:1/shop";
    for (flags, code, message) in [
        (&["--database", &bank][..], 2, "--store"),
        (&["--store", &bank], 2, "--database"),
        (&["--store", "memory:", "--database", &bank], 2, "name its store"),
        (&["--store", &bank, "--database", "redis://localhost"], 2, "has no tables; name sqlite://"),
        (&["--store", &bank, "--database", &bank, "--since", "yesterday"], 2, "2026-01-31T12:00:00Z"),
        (&["--store", &bank, "--database", &bank, "--probe", "ftp://a"], 2, "--probe takes http://HOST/PATH"),
        (&["--store", &bank, "--database", &bank, "--worker-namespace", ""], 2, "namespace"),
        (&["--store", &bank, "--database", &bank, "--secrets", "a"], 2, "--worker-namespace"),
        (&["--store", &bank, "--database", &bank, "--worker-namespace", "a", "--secrets", "/no/a"], 2, "--secrets"),
        (&["--store", &bank, "--database", &bank, "--probe-ca", "a"], 2, "--probe"),
        (&["--store", &absent, "--database", &bank], 3, "name the file that the gateway uses"),
        (&["--store", &bank, "--database", &absent], 3, "does not exist"),
        (&["--store", &bank, "--database", lost], 3, "cannot be reached"),
        (&["--store", lost, "--database", &bank], 3, "cannot be reached"),
        (&["--store", "redis://:hush-hush@127.0.0.1:1", "--database", &bank], 3, "cannot be reached"),
        (&["--store", &bank, "--database", &bank], 0, ""),
    ] {
        let output = hapax().arg("reconcile").args(flags).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {error}");
        assert!(error.contains(message) && !error.contains("hush-hush"), "{flags:?}: {error}");
    }
    assert!(!directory.path().join("absent.db").exists());
}
