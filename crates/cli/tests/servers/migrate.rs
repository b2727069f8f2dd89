//! `hapax migrate` on PostgreSQL.

use std::process::{Output, Stdio};

use hapax_testkit::servers::{self, PostgresSchema, PostgresServer, Trial};

use crate::harness::{GatewayClient, free_address, hapax, until};
use crate::worker::RunningWorker;

pub(crate) fn tests() -> Vec<Trial> {
    let postgres = "postgres";
    vec![
        servers::test("ten_processes_create_the_tables_at_once", postgres, ten_at_once),
        servers::test("a_sequence_behind_its_table_is_named_with_its_remedy", postgres, sequence_behind),
        servers::test(
            "a_sequence_of_dead_letters_behind_its_table_stops_a_worker",
            postgres,
            sequence_of_letters_behind,
        ),
        servers::test("a_taken_name_ends_each_start", postgres, taken_name),
        servers::test("a_database_that_would_commit_an_open_claim_ends_each_start", postgres, open_claims),
        servers::test("a_printed_script_creates_the_tables", postgres, printed_script),
    ]
}

async fn ten_at_once() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let start = || {
        let mut migrate = hapax();
        migrate
            .args(["migrate", "--database", &schema.url()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..10).map(|_| start()).collect();
    let mut applied = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        applied += usize::from(output.stdout.starts_with(b"applied: versions 1, 2, 3, 4, 5, 6, 7, 8\n"));
    }
    assert_eq!(applied, 1, "one process applies the versions, and the others find nothing to do");
}

async fn printed_script() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let run = |flag: &str| hapax().args(["migrate", "--database", &schema.url(), flag]).output().unwrap();
    let script = run("--print");
    assert!(script.status.success(), "{script:?}");
    assert_eq!(run("--check").status.code(), Some(1), "printing changes nothing");
    // The role that owns the schema runs the script.
    schema.admin().batch_execute(&format!("set role {}", schema.name())).await.unwrap();
    schema.admin().batch_execute(&String::from_utf8(script.stdout).unwrap()).await.unwrap();
    let check = run("--check");
    assert_eq!(check.status.code(), Some(0), "{check:?}");
}

/// As after a restore of the rows alone.
async fn sequence_behind() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let (folder, name) = (tempfile::tempdir().unwrap(), schema.name());
    assert_eq!(run(&["migrate", "--database", &schema.url()]).await.status.code(), Some(0));
    let check = ["migrate", "--check", "--database", &schema.url()];
    let sink = format!("sqlite://{}?queue=orders", folder.path().join("orders.db").display());
    let relay = ["relay", "--database", &schema.url(), "--sink", &sink, "--admin", &free_address().to_string()];
    let relay_check = [&relay[..], &["--check"]].concat();
    let emit = format!("select {name}.hapax_emit('shop', null, null, 'paid', '') from generate_series(1, 3)");
    schema.admin().batch_execute(&emit).await.unwrap();
    for drawn in ["2", "3, false"] {
        let set_back = format!("select setval('{name}.hapax_outbox_id', {drawn})");
        schema.admin().batch_execute(&set_back).await.unwrap();
        let checked = run(&check).await;
        assert_eq!(checked.status.code(), Some(1), "{drawn}: {checked:?}");
        let remedy = remedy(&checked.stdout);
        assert!(remedy.contains("setval") && remedy.contains(&format!("\"{name}\".hapax_outbox_id")), "{remedy}");
        for arguments in [&relay[..], &relay_check] {
            let refused = run(arguments).await;
            let told = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(3), "{drawn}, {arguments:?}: {told}");
            assert!(told.contains(&remedy), "{drawn}, {arguments:?}: {told}");
        }
        schema.admin().batch_execute(&remedy).await.unwrap();
        assert_eq!((run(&check).await.status.code(), run(&relay_check).await.status.code()), (Some(0), Some(0)));
    }
}

/// The triggers of the foreign key that no open claim passes are off.
async fn open_claims() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let (folder, url, admin) = (tempfile::tempdir().unwrap(), schema.url(), free_address().to_string());
    assert_eq!(run(&["migrate", "--database", &url]).await.status.code(), Some(0));
    let off = format!("alter table {}.hapax_guard disable trigger all", schema.name());
    schema.admin().batch_execute(&off).await.unwrap();
    let queue = format!("sqlite://{}?queue=orders", folder.path().join("orders.db").display());
    let data = folder.path().display().to_string();
    let place = ["--admin", &*admin, "--data-dir", &data, "--store", &url];
    let gateway = ["gateway", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0"];
    let worker = ["worker", "--source", &queue, "--target", "http://127.0.0.1:9/"];
    let relay = vec!["relay", "--database", &url, "--sink", &queue, "--admin", &admin];
    let relay_check = [&relay[..], &["--check"]].concat();
    for arguments in [[&gateway[..], &place].concat(), [&worker[..], &place].concat(), relay, relay_check] {
        let refused = run(&arguments).await;
        let told = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(3), "{arguments:?}: {told}");
        assert!(told.contains("a trigger of the key is disabled"), "{arguments:?}: {told}");
    }
}

/// A process that tried again for ever would never tell.
async fn taken_name() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let (folder, url, admin) = (tempfile::tempdir().unwrap(), schema.url(), free_address().to_string());
    let file = |name: &str| format!("sqlite://{}", folder.path().join(name).display());
    let (queue, records) = (format!("{}?queue=orders", file("orders.db")), file("records.db"));
    let gateway = ["gateway", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--store", &url];
    let worker = ["worker", "--source", &queue, "--target", "http://127.0.0.1:9/"];
    let data = folder.path().display().to_string();
    let place = ["--admin", &*admin, "--data-dir", &data];
    schema.admin().batch_execute("create domain hapax_ledger as text").await.unwrap();
    for arguments in [
        [&gateway[..], &place].concat(),
        [&worker[..], &place, &["--store", &url]].concat(),
        [&worker[..], &place, &["--store", &records, "--dead-letter", &url]].concat(),
        vec!["relay", "--database", &url, "--sink", &queue, "--admin", &admin],
        vec!["migrate", "--database", &url],
    ] {
        let refused = run(&arguments).await;
        let told = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(3), "{arguments:?}: {told}");
        assert!(told.contains("type \"hapax_ledger\" already exists"), "{arguments:?}: {told}");
    }
    schema.admin().batch_execute("drop domain hapax_ledger").await.unwrap();
    assert_eq!(run(&["migrate", "--database", &url]).await.status.code(), Some(0));
}

/// As [`sequence_behind`], for dead letters.
async fn sequence_of_letters_behind() {
    let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
    let (folder, name, url) = (tempfile::tempdir().unwrap(), schema.name(), schema.url());
    assert_eq!(run(&["migrate", "--database", &url]).await.status.code(), Some(0));
    let check = ["migrate", "--check", "--database", &url];
    let letter = format!(
        "insert into {name}.hapax_dead
             (at, attempts, rule, id, reason, namespace, source, fingerprint, headers, payload)
         values (now(), 1, 0, gen_random_uuid(), 'rejected', 'shop', 'orders', 'twelve bytes', '[]', '');
         select setval('{name}.hapax_dead_number', 1, false)"
    );
    let admin = free_address();
    let file = format!("sqlite://{}", folder.path().join("messages.db").display());
    assert_eq!(run(&["migrate", "--database", &file]).await.status.code(), Some(0));
    let (source, address) = (format!("{file}?queue=orders"), admin.to_string());
    let worker = ["worker", "--source", &source, "--target", "http://127.0.0.1:9/", "--admin", &address];
    let worker = [&worker[..], &["--store", &url, "--data-dir", folder.path().to_str().unwrap()]].concat();
    let mut command = hapax();
    command.args(&worker);
    let running = RunningWorker::start(command);
    let readiness = async || GatewayClient::of(admin).get("/readyz").await;
    until("the worker is ready", async || readiness().await.is_some_and(|got| got.status == 200)).await;
    schema.admin().batch_execute(&letter).await.unwrap();
    let checked = run(&check).await;
    assert_eq!(checked.status.code(), Some(1), "{checked:?}");
    let remedy = remedy(&checked.stdout);
    let got = readiness().await.unwrap();
    assert!(got.status == 503 && got.body.contains(&remedy), "{}", got.body);
    let (_, log) = running.terminate();
    assert!(log.contains("as the owner run `select"), "{log}");
    let refused = run(&worker).await;
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(3) && told.contains(&remedy), "{told}");
    schema.admin().batch_execute(&remedy).await.unwrap();
    assert_eq!(run(&check).await.status.code(), Some(0));
    later_letter(&schema).await;
}

/// A letter that is written again under a number that came again.
async fn later_letter(schema: &PostgresSchema) {
    let (url, name) = (schema.url(), schema.name());
    let listed = run(&["dead", "list", "--json", "--database", &url]).await;
    let letter: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let [id, seen] = ["id", "seen"].map(|member| letter[member].as_str().unwrap());
    let again = format!("update {name}.hapax_dead set at = at + interval '1 second'");
    schema.admin().batch_execute(&again).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.jsonl").display().to_string();
    for verb in ["redrive", "drop"] {
        let stale = run(&["dead", verb, id, "--seen", seen, "--database", &url, "--audit-file", &audit]).await;
        let told = String::from_utf8_lossy(&stale.stdout);
        assert!(stale.status.code() == Some(1) && told.contains("has changed since"), "{verb}: {told}");
    }
}

/// Waits for the end of a command.
async fn run(arguments: &[&str]) -> Output {
    let mut child = hapax().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the command ends", async || child.try_wait().unwrap().is_some()).await;
    child.wait_with_output().unwrap()
}

/// The statement that a message names.
fn remedy(message: &[u8]) -> String {
    let message = String::from_utf8_lossy(message);
    message.split('`').nth(1).unwrap_or_else(|| panic!("no remedy in {message}")).to_owned()
}
