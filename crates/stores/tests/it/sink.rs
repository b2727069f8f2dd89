//! Queues of a file as what a relay publishes to, where the file does not take an event.

use std::sync::Arc;

use futures_util::future::join_all;
use hapax_core::EventId;
use hapax_core::outbox::{OutgoingEvent, Published, Sink};
use hapax_core::runtime::Tokio;
use hapax_stores::{SqliteQueue, SqliteSink, SqliteSinkConfig};
use rusqlite::Connection;

fn event(number: u8, topic: &str) -> Arc<OutgoingEvent> {
    Arc::new(OutgoingEvent::new(EventId::from_bytes([number; 16]), topic, "{}"))
}

fn open() -> (tempfile::TempDir, Connection, SqliteSink) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("post.db");
    let mut file = Connection::open(&path).unwrap();
    SqliteQueue::migrate(&mut file).unwrap();
    let sink = SqliteSink::open(SqliteSinkConfig::new(&path), Arc::new(Tokio::current())).unwrap();
    (folder, file, sink)
}

fn count(file: &Connection) -> u32 {
    file.query_row("select count(*) from hapax_queue", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_row_that_the_file_refuses_keeps_no_other_event_back() {
    let (_folder, file, sink) = open();
    let refuse = "create trigger refuse before insert on hapax_queue when new.queue = 'bad'
                  begin select raise(abort, 'no bad ones'); end";
    file.execute_batch(refuse).unwrap();
    let events: Vec<_> = (0..9).map(|number| event(number, if number % 3 == 0 { "bad" } else { "good" })).collect();
    let published = join_all(events.iter().map(|event| sink.publish(event))).await;
    for (event, published) in events.iter().zip(published) {
        match published {
            Published::Yes { .. } => assert_eq!(event.topic, "good"),
            Published::Refused(reason) => assert!(event.topic == "bad" && reason.contains("no bad ones"), "{reason}"),
            Published::NotPublished { .. } | Published::Unknown(_) => panic!("{published:?}"),
        }
    }
    assert_eq!(count(&file), 6);
    file.execute_batch("drop trigger refuse").unwrap();
    let published = sink.publish(&events[0]).await;
    assert!(matches!(published, Published::Yes { .. }), "{published:?}");
    assert_eq!(count(&file), 7, "the file did not note the id of what it refused");
}

#[tokio::test]
async fn a_file_that_another_process_keeps_locked_takes_the_event_later() {
    let (_folder, file, sink) = open();
    file.execute_batch("begin immediate").unwrap();
    let event = event(1, "orders");
    let published = sink.publish(&event).await;
    assert!(matches!(published, Published::NotPublished { .. }), "{published:?}");
    file.execute_batch("rollback").unwrap();
    let published = sink.publish(&event).await;
    assert!(matches!(published, Published::Yes { .. }), "{published:?}");
    assert_eq!(count(&file), 1);
    sink.close().await;
    assert!(matches!(sink.publish(&event).await, Published::NotPublished { .. }));
    assert_eq!(count(&file), 1);
}

#[tokio::test]
async fn an_event_that_comes_again_after_the_window_is_put_in_again() {
    let (_folder, file, sink) = open();
    for (count_then, age) in [(1, None), (1, None), (2, Some("put_at - 601000")), (2, None)] {
        if let Some(age) = age {
            file.execute(&format!("update hapax_queue_event set put_at = {age}"), []).unwrap();
        }
        let published = sink.publish(&event(1, "orders")).await;
        assert!(matches!(published, Published::Yes { .. }), "{published:?}");
        assert_eq!(count(&file), count_then);
    }
}
