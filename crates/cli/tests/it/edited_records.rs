//! Records that were edited by hand while the gateway runs.

use rusqlite::{Connection, params};

use crate::harness::{Api, Gateway, sqlite};

/// The edit of a record, and the status and problem that a retry gets.
const FORGERIES: [(&str, &str, u16, &str); 11] = [
    ("a state that does not exist", "state = 99", 500, "record-damaged"),
    ("released, without the columns of a released record", "state = 3", 500, "record-damaged"),
    ("in progress, without an owner", "state = 1", 500, "record-damaged"),
    ("indeterminate, without an owner", "state = 4", 500, "record-damaged"),
    ("no answer", "answer = null", 500, "record-damaged"),
    ("the start of an answer", "answer = substr(answer, 1, 3)", 500, "record-damaged"),
    ("an empty answer", "answer = x''", 500, "record-damaged"),
    ("an answer with invalid bytes", "answer = x'ffffffffffffffff'", 500, "record-damaged"),
    ("no expiry", "expiry_s = null", 500, "record-damaged"),
    ("a fingerprint of another length", "fingerprint = x'00'", 500, "record-damaged"),
    ("the fingerprint of another payload", "fingerprint = zeroblob(12)", 422, "key-reused"),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_record_never_runs_again_h31() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let mut gateway = Gateway::start(api.address, &sqlite(directory.path()), &[]).await;
    let database = Connection::open(directory.path().join("hapax.db")).unwrap();
    let mut originals = Vec::new();
    for (number, (name, edit, _, _)) in FORGERIES.iter().enumerate() {
        gateway.post("/charges", &format!("forged-{number}"), "{}").await.unwrap();
        let newest = "select id, answer from hapax_record order by id desc limit 1";
        let row: (i64, Vec<u8>) = database.query_row(newest, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let edited = database.execute(&format!("update hapax_record set {edit} where id = ?1"), [row.0]);
        assert_eq!(edited.unwrap(), 1, "{name}");
        originals.push(row);
    }
    let runs = api.seen().len();
    assert_eq!(runs, FORGERIES.len());
    for process in ["in the process that wrote it", "in the next process"] {
        for (number, (name, _, status, problem)) in FORGERIES.iter().enumerate() {
            // Twice: the first retry must not have changed the record.
            for _ in 0..2 {
                let got = gateway.post("/charges", &format!("forged-{number}"), "{}").await.unwrap();
                assert_eq!(got.status.as_u16(), *status, "{name}, {process}: {}", got.body);
                assert_eq!(got.problem(), *problem, "{name}, {process}");
            }
        }
        gateway.kill();
        gateway = Gateway::start(api.address, &sqlite(directory.path()), &[]).await;
    }
    assert_eq!(api.seen().len(), runs, "none of them ran again");
    // Restoring the original record repairs it.
    let (id, answer) = &originals[6];
    assert_eq!(database.execute("update hapax_record set answer = ?2 where id = ?1", params![id, answer]).unwrap(), 1);
    let repaired = gateway.post("/charges", "forged-6", "{}").await.unwrap();
    assert!(repaired.is_replayed() && repaired.body == "answer 7", "{}", repaired.body);
}
