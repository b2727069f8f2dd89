use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::outbox::{
    EventRow, OpenRow, OpenRows, Outbox, OutboxUpkeep, OutgoingEvent, ReadRequest, ReadStart, Reopened, RowId, RowState,
};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::{EventId, Identity, Inspect, Key, OperationId, Scope, Store, Timestamp};

use super::setup::{OutboxSetup, OutboxWriter};
use crate::pause;

/// More than any case writes.
pub(super) const ALL_BYTES: usize = 100_000_000;

/// An outbox with what the cases do with it.
pub(super) struct OutboxWorld<'s> {
    setup: &'s dyn OutboxSetup,
    pub(super) outbox: Arc<dyn Outbox>,
    pub(super) upkeep: Arc<dyn OutboxUpkeep>,
}

impl<'s> OutboxWorld<'s> {
    pub(super) fn new(setup: &'s dyn OutboxSetup) -> Self {
        Self { setup, outbox: setup.outbox(), upkeep: setup.upkeep() }
    }

    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.setup.store()
    }

    pub(super) fn records(&self) -> Arc<dyn Inspect> {
        self.setup.records()
    }

    pub(super) async fn begin(&self) -> Box<dyn OutboxWriter> {
        self.setup.begin().await
    }

    pub(super) async fn begin_slow(&self, event: &OutgoingEvent) -> Box<dyn OutboxWriter> {
        self.setup.begin_slow(event).await
    }

    pub(super) async fn age(&self, by: Duration) {
        self.setup.age(by).await;
    }

    /// Commits these events in one transaction. Returns their ids.
    pub(super) async fn emit(&self, events: &[OutgoingEvent]) -> Vec<EventId> {
        let mut writer = self.begin().await;
        let mut ids = Vec::new();
        for event in events {
            ids.push(writer.emit(event).await.expect("the event is within its limits"));
        }
        writer.commit().await.expect("nothing conflicts");
        ids
    }

    /// All open rows, in the order of their ids.
    pub(super) async fn read(&self) -> OpenRows {
        self.read_from(ReadStart::FIRST, 1_000, ALL_BYTES).await
    }

    pub(super) async fn read_from(&self, from: ReadStart, limit: u32, bytes: usize) -> OpenRows {
        let request = ReadRequest::all_buckets(from, limit, bytes);
        let mut read = self.outbox.read(&request).await.expect("the outbox can be read");
        read.rows.sort_by_key(|row| row.id);
        read
    }

    /// The topics of all open rows, in the order of their ids.
    pub(super) async fn topics(&self) -> Vec<String> {
        self.read().await.rows.iter().map(|row| row.event.topic.clone()).collect()
    }

    /// Publishes all open rows whose keys are not parked.
    pub(super) async fn publish_all(&self) {
        let rows = self.read().await.rows;
        let rows: Vec<EventRow> = rows.iter().filter(|row| !row.is_parked).map(OpenRow::named).collect();
        assert_eq!(self.mark(&rows).await, rows.len());
    }

    /// Marks rows, none of which is locked. Returns how many were open.
    pub(super) async fn mark(&self, rows: &[EventRow]) -> usize {
        let republications = self.read().await.rewinds.republications;
        let marked = self.outbox.mark(rows, republications).await.expect("the rows can be marked");
        assert!(marked.locked.is_empty() && !marked.is_rewound, "{marked:?}");
        marked.marked
    }

    /// Parks the key of a row.
    pub(super) async fn park(&self, row: &OpenRow, reason: &str) {
        let gone = self.outbox.park(&[row.refused(reason)]).await.expect("the key can be parked");
        assert_eq!(gone, [], "the row is not published");
    }

    /// Resumes a key until nothing of it is set aside. Returns how many rows were opened.
    pub(super) async fn resume(&self, key: &str, limit: usize) -> usize {
        let mut opened = 0;
        loop {
            let step = self.upkeep.resume(key.as_bytes(), limit).await.expect("the key can be resumed");
            match step.expect("the key is parked") {
                0 => return opened,
                step => opened += step,
            }
        }
    }

    pub(super) async fn begin_republication(&self) {
        self.upkeep.begin_republication().await.expect("the republication can be counted");
    }

    /// Opens what was published within this time, of the next two rows.
    pub(super) async fn republish(&self, published: Range<Timestamp>, after: RowId) -> Option<Reopened> {
        self.upkeep.republish(&published, after, 2).await.expect("rows can be opened")
    }

    pub(super) async fn state(&self, id: EventId) -> Option<RowState> {
        self.upkeep.find(id).await.expect("the row can be read").map(|(_, state, _)| state)
    }

    /// Polls until every transaction has ended that could hold an id up to that of this horizon.
    pub(super) async fn settle(&self, stamp: u64) {
        let runtime = Tokio::current();
        let until = runtime.boottime_now() + Duration::from_secs(60);
        while self.outbox.horizon().await.expect("the horizon can be read").settled <= stamp {
            assert!(runtime.boottime_now() < until, "a transaction has not ended for a minute");
            pause().await;
        }
    }
}

/// An event of this ordering key. The topic names it in the cases.
pub(super) fn event(topic: &str, key: Option<&str>) -> OutgoingEvent {
    OutgoingEvent {
        namespace: "suite".into(),
        ordering_key: key.map(|key| key.to_owned().into()),
        ..OutgoingEvent::new(EventId::from_bytes([0; 16]), topic, "the payload")
    }
}

/// An operation for each key.
pub(super) fn operation(key: &str) -> OperationId {
    let scope = Scope::untenanted("suite").expect("a valid scope");
    Identity::plain().record_key(&scope, &Key::new(key).expect("a valid key")).operation()
}
