//! The outbox in an SQLite file: what writers can put there that no relay can publish.

use std::sync::Arc;

use hapax_core::outbox::{OpenRow, Outbox, OutboxUpkeep, ReadRequest, ReadStart};
use hapax_stores::{SqliteOutbox, SqliteTables};
use rusqlite::Connection;

fn all() -> ReadRequest {
    ReadRequest::all_buckets(ReadStart::FIRST, 100, 1_000_000)
}

fn topics(rows: &[OpenRow]) -> Vec<&str> {
    rows.iter().map(|row| &*row.event.topic).collect()
}

#[tokio::test(flavor = "current_thread")]
async fn a_row_that_cannot_be_decoded_keeps_no_other_row_from_being_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("service.db");
    let outbox = Arc::new(SqliteOutbox::open(&path).unwrap());
    let insert = "insert into hapax_outbox (event_id, namespace, operation, okey, bucket, topic, payload, created_at)";
    let writer = Connection::open(&path).unwrap();
    writer
        .execute_batch(
            &format!(
                "{insert} values (randomblob(16), 'shop', x'0102', x'61', 7, 'short', '', 0);
             {insert} values (randomblob(16), cast(x'ff61' as text), null, x'62', 7, 'bytes', '', 0);
             {insert} values (randomblob(16), 'shop', null, x'63', 7, cast(x'fe' as text), '', 0);
             {insert} values (randomblob(16), 'shop', null, x'64', 7, 'whole', '', 0);"
            )
            .replace("''", "x''"),
        )
        .unwrap();
    let rows = outbox.read(&all()).await.unwrap().rows;
    assert_eq!(topics(&rows), ["short", "bytes", "\u{fffd}", "whole"]);
    let damages: Vec<Option<&str>> = rows.iter().map(|row| row.damage.as_deref()).collect();
    assert!(damages[0].is_some_and(|why| why.starts_with("the operation of the row has not 16 bytes")), "{damages:?}");
    assert!(damages[1].is_some_and(|why| why.starts_with("the column namespace")), "{damages:?}");
    assert!(damages[2].is_some_and(|why| why.starts_with("the column topic")), "{damages:?}");
    assert_eq!(damages[3], None);
    // The relay parks its key, and operators can see it.
    for (row, reason) in rows.iter().zip(damages).filter_map(|(row, damage)| Some((row, damage?))) {
        assert_eq!(outbox.park(&[row.refused(reason)]).await.unwrap(), []);
    }
    assert_eq!(outbox.parked(None, 10).await.unwrap().len(), 3);
    assert!(outbox.find(rows[1].event.id).await.unwrap().is_some());
    assert_eq!(topics(&outbox.read(&all()).await.unwrap().rows), ["whole"]);
}

#[test]
fn an_older_file_gets_the_trigger_that_limits_the_bytes_of_a_topic() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("service.db");
    let tables = SqliteTables::new(&path);
    tables.create().unwrap();
    let mut writer = Connection::open(&path).unwrap();
    let insert = "insert into hapax_outbox (event_id, namespace, bucket, topic, payload, created_at) \
                  values (randomblob(16), 'shop', 7, ?1, x'', 0)";
    for migrates in [true, false] {
        writer.execute_batch("drop trigger hapax_outbox_topic").unwrap();
        assert_eq!(tables.missing().unwrap(), [5]);
        if migrates {
            SqliteOutbox::migrate(&mut writer).unwrap();
        } else {
            writer.execute_batch(&tables.script().unwrap()).unwrap();
        }
        assert!(tables.missing().unwrap().is_empty());
        let refused = writer.execute(insert, ["\u{1f980}".repeat(64)]).unwrap_err();
        assert!(refused.to_string().contains("the topic of an event has 1 to 255 bytes"), "{refused}");
        assert_eq!(writer.execute(insert, ["x".repeat(255)]).unwrap(), 1);
    }
}
