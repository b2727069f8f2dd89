//! Each copy on the way is made: an order that is sent twice, and an event that is published twice.

use std::time::Duration;

use hapax::Timestamp;
use hapax::outbox::{OutboxUpkeep, RowId};
use hapax::relay::Relay;
use hapax::stores::{Sqlite, SqliteOutbox, SqliteSink, SqliteSinkConfig};

use super::*;

const LOOK: Duration = Duration::from_millis(10);

fn count(file: &Path, rows: &str) -> u32 {
    let connection = Connection::open(file).unwrap();
    connection.query_row(&format!("select count(*) from {rows}"), [], |row| row.get(0)).unwrap()
}

/// Runs a relay until everything is published.
async fn publish(shop: &Path, post: &Path) {
    let outbox: Arc<SqliteOutbox> = Arc::new(SqliteOutbox::open(shop).unwrap());
    let sink = Arc::new(SqliteSink::open(SqliteSinkConfig::new(post), Arc::new(Tokio::current())).unwrap());
    let relay = Relay::builder(Arc::clone(&outbox) as _, Arc::new(Sqlite::open(shop).unwrap()), sink).build().unwrap();
    let all_published = async {
        while outbox.counts(1).await.unwrap().open > 0 {
            tokio::time::sleep(LOOK).await;
        }
    };
    assert_eq!(relay.run(all_published).await.unwrap().unconfirmed, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_that_are_sent_twice_and_published_twice_become_one_parcel_each() {
    let folder = tempfile::tempdir().unwrap();
    let [shop, post, parcels] = ["shop.db", "post.db", "parcels.db"].map(|name| folder.path().join(name));
    for (id, item) in [("order-7", "umbrella"), ("order-8", "hat"), ("order-7", "umbrella")] {
        assert_eq!(order(&shop, id, "alice", item).unwrap(), format!("alice ordered {item}"));
    }
    assert!(order(&shop, "order-7", "alice", "coat").is_err(), "the id was used for another order");
    assert_eq!((count(&shop, "purchase"), count(&shop, "hapax_outbox")), (2, 2));

    publish(&shop, &post).await;
    let outbox = SqliteOutbox::open(&shop).unwrap();
    let opened = outbox.republish(&(Timestamp(0)..Timestamp(u64::MAX)), RowId(0), 1000).await.unwrap();
    assert!(opened.is_some());
    let window_ends = "delete from hapax_queue_event";
    Connection::open(&post).unwrap().execute(window_ends, []).unwrap();
    publish(&shop, &post).await;
    assert_eq!(count(&post, "hapax_queue"), 4, "each event is in the queue twice");

    let queue_is_empty = async {
        while count(&post, "hapax_queue") > 0 {
            tokio::time::sleep(LOOK).await;
        }
    };
    warehouse(&post, &parcels).unwrap().run(queue_is_empty).await.unwrap();
    let parcels = Connection::open(&parcels).unwrap();
    let mut parcels = parcels.prepare("select content from parcel order by rowid").unwrap();
    let parcels: Vec<String> = parcels.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(parcels, ["alice umbrella", "alice hat"]);
}
