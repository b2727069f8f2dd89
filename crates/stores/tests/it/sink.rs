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

/// The queue forgets old events when it takes new ones.
#[tokio::test]
async fn an_event_is_recognized_until_the_end_of_the_window() {
    let (_folder, file, sink) = open();
    for (number, age) in [(1, 301_000), (2, 450_000), (3, 590_000)] {
        assert!(matches!(sink.publish(&event(number, "orders")).await, Published::Yes { caught: false }));
        let aged = format!("update hapax_queue_event set put_at = put_at - {age} where event_id = ?1");
        assert_eq!(file.execute(&aged, [[number; 16]]).unwrap(), 1);
    }
    // One of them is older than the window, and is forgotten.
    assert!(matches!(sink.publish(&event(4, "orders")).await, Published::Yes { caught: false }));
    file.execute("update hapax_queue_event set put_at = put_at - 610000 where event_id = ?1", [[4_u8; 16]]).unwrap();
    for number in 10..30 {
        assert!(matches!(sink.publish(&event(number, "orders")).await, Published::Yes { caught: false }));
    }
    let noted = "select count(*) from hapax_queue_event where event_id = ?1";
    let is_noted = |number: u8| file.query_row(noted, [[number; 16]], |row| row.get::<_, u32>(0)).unwrap() == 1;
    assert_eq!([1, 2, 3, 4].map(is_noted), [true, true, true, false]);
    for number in 1..=3 {
        let published = sink.publish(&event(number, "orders")).await;
        assert!(matches!(published, Published::Yes { caught: true }), "{number}: {published:?}");
    }
    assert_eq!(count(&file), 24);
}
