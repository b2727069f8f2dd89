//! Records that were edited by hand while the gateway runs.

use rusqlite::{Connection, params};

use crate::harness::{Api, Gateway, sqlite};

/// The edits of a record. Each one leaves a row that differs from what the gateway wrote.
const EDITS: [(&str, &str); 18] = [
    ("one changed byte in the answer", "answer = cast(replace(answer, 'answer', 'Answer') as blob)"),
    ("the start of an answer", "answer = substr(answer, 1, 3)"),
    ("an answer without its last byte", "answer = substr(answer, 1, length(answer) - 1)"),
    ("an empty answer", "answer = x''"),
    ("an answer with invalid bytes", "answer = x'ffffffffffffffff'"),
    ("no answer", "answer = null"),
    ("the answer of another key", "answer = (select answer from hapax_record where id = 1)"),
    ("a state that does not exist", "state = 99"),
    ("released, without the columns of a released record", "state = 3"),
    ("released, with them", "state = 3, owner = zeroblob(16), attempt = 1, lease_ms = 30000, lifetime_s = 600"),
    ("in progress, without an owner", "state = 1"),
    ("indeterminate, without an owner", "state = 4"),
    ("another token", "token = token + 1"),
    ("no expiry", "expiry_s = null"),
    ("a later expiry", "expiry_s = expiry_s + 86400"),
    ("a fingerprint of another length", "fingerprint = x'00'"),
    ("the fingerprint of another payload", "fingerprint = zeroblob(12)"),
    ("another rule of the fingerprint", "rule = rule + 1"),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_record_never_runs_again_h31() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let mut gateway = Gateway::start(api.address, &sqlite(directory.path()), &[]).await;
    let database = Connection::open(directory.path().join("hapax.db")).unwrap();
    let mut originals = Vec::new();
    gateway.post("/charges", "untouched", "{}").await.unwrap();
    for (number, (name, edit)) in EDITS.iter().enumerate() {
        gateway.post("/charges", &format!("edited-{number}"), "{}").await.unwrap();
        let newest = "select id, answer from hapax_record order by id desc limit 1";
        let row: (i64, Vec<u8>) = database.query_row(newest, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let edited = database.execute(&format!("update hapax_record set {edit} where id = ?1"), [row.0]);
        assert_eq!(edited.unwrap(), 1, "{name}");
        originals.push(row);
    }
    let runs = api.seen().len();
    assert_eq!(runs, EDITS.len() + 1);
    for process in ["in the process that wrote it", "in the next process"] {
        for (number, (name, _)) in EDITS.iter().enumerate() {
            // Twice: the first retry must not have changed the record.
            for _ in 0..2 {
                let got = gateway.post("/charges", &format!("edited-{number}"), "{}").await.unwrap();
                assert_eq!(got.status, 500, "{name}, {process}: {}", got.body);
                assert_eq!(got.problem(), "record-damaged", "{name}, {process}");
            }
        }
        gateway.kill();
        gateway = Gateway::start(api.address, &sqlite(directory.path()), &[]).await;
    }
    assert_eq!(api.seen().len(), runs, "none of them ran again");
    // Restoring the original record repairs it.
    let (id, answer) = &originals[0];
    assert_eq!(database.execute("update hapax_record set answer = ?2 where id = ?1", params![id, answer]).unwrap(), 1);
    let repaired = gateway.post("/charges", "edited-0", "{}").await.unwrap();
    assert!(repaired.is_replayed() && repaired.body == "answer 2", "{}", repaired.body);
}
