//! The outbox in a database of Spanner. Rows have the order of the times of their commits.
//!
//! ```text
//! place.rs    where a row is among all others, and its id
//! rows.rs     rows as they are read, and the changes of rows
//! upkeep.rs   what operators do
//! ```

mod place;
mod rows;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::ledger::Event;
use hapax_core::outbox::{
    EventRow, Horizon, MarkedRows, OpenRow, OpenRows, Outbox, OutgoingEvent, ParkedRow, ReadRequest, Rewinds,
};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::store::Finding;
use hapax_core::{Error, ErrorKind, EventId, OperationId, Result, Timestamp};

use self::place::{PlaceStart, RowPlace, last_until};
use self::rows::{FoundOpen, OpenBucket, RefusedRow, RowState};
use super::answers::{SpannerFailure, SpannerResult};
use super::api::{LentSession, SpannerApi};
use super::database::SpannerTables;
use super::ledger::SpannerTransaction;
use super::messages::{Mutation, Selected, SqlList, TransactionSelector};
use super::transactions::TransactionEnd;
use super::values::SqlStatement;
use super::{SpannerUrl, values};
use crate::errors::not_applied;

/// How many bytes of events one read returns, or one event. An answer of the service has ten million bytes at most, and
/// values in it are a third longer.
const MOST_BYTES: usize = 4 << 20;

/// How many bytes a row may have in an answer beside its payload and headers, about.
const COLUMNS_SIZE: usize = 500;

/// The outbox in a database of Google Cloud Spanner, for the relay and for operators. Its tables must exist.
///
/// A transaction has no place among the others before it commits, and then it is behind all that have committed before.
/// So events of a key always leave in the order of the commits. Two transactions that do not know of each other may
/// have one time; their events have a fixed order, too.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use hapax::outbox::OutboxUpkeep;
/// use hapax::stores::SpannerOutbox;
///
/// let outbox = SpannerOutbox::connect(&"spanner://shop-4711/main/payments".parse()?)?;
/// for parked in outbox.parked(None, 100).await? {
///     println!("{}: {}", parked.event, parked.reason);
/// }
/// # Ok(())
/// # }
/// ```
pub struct SpannerOutbox {
    api: SpannerApi,
}

impl SpannerOutbox {
    /// The outbox in the database of this URL, on the current tokio runtime. It connects at its first call.
    ///
    /// # Errors
    /// `Unusable` if the system has no authorities for TLS.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect(url: &SpannerUrl) -> Result<Self> {
        Self::with(url, Arc::new(Tokio::current()))
    }

    /// The outbox in the database of this URL, on this runtime. It connects at its first call.
    ///
    /// # Errors
    /// `Unusable` if the system has no authorities for TLS.
    pub fn with(url: &SpannerUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        Ok(Self { api: SpannerApi::new(url, runtime)? })
    }

    /// Writes an event in a transaction of the caller's own, without a ledger. It leaves after the commit. With an
    /// operation and the number of the event within it, counted from 0, the id is derived, so that the same event is
    /// written once. Without them the id is new. Returns the id.
    ///
    /// # Errors
    /// - `Invalid` if the topic, the ordering key or the size is out of its limits. Nothing was written.
    /// - `NotApplied`: roll the transaction back: the operation has written this event before, or a statement failed.
    ///
    /// # Cancel safety
    /// Roll the transaction back if the future is dropped.
    pub async fn emit(
        transaction: &SpannerTransaction,
        namespace: &str,
        operation: Option<(OperationId, u32)>,
        event: Event,
    ) -> Result<EventId> {
        if namespace.len() > Event::MAX_NAME {
            return Err(Error::new(ErrorKind::Invalid, "the namespace of an event has at most 255 bytes"));
        }
        let id = match operation {
            Some((operation, number)) => operation.event(namespace, number),
            None => EventId::from_random(transaction.random()),
        };
        let event = OutgoingEvent {
            namespace: namespace.to_owned(),
            operation: operation.map(|(operation, _)| operation),
            number: operation.map(|(_, number)| number),
            ..event.into_outgoing(id)?
        };
        let exists = SqlStatement::new(include_str!("outbox/exists.sql")).bytes("event", id.as_bytes());
        if !transaction.rows_of(&exists).await?.is_empty() {
            return Err(not_applied("the operation has written this event before"));
        }
        transaction.add_event(&event).await;
        Ok(id)
    }

    /// Reads in a snapshot that no other call has begun.
    async fn read_once(&self, request: &ReadRequest) -> SpannerResult<OpenRows> {
        let mut session = self.api.session().await?;
        if request.cursors.is_empty() {
            let answer = session.run(&SqlStatement::new(include_str!("outbox/relay.sql")), None).await?;
            session.give_back();
            let rewinds = rows::read_rewinds(&answer.rows).map_err(SpannerFailure::Failed)?;
            return Ok(OpenRows { rewinds, ..OpenRows::default() });
        }
        let answer = session.run(&read_statement(request), Some(SpannerApi::snapshot())).await?;
        let buckets = answer.rows.iter().map(OpenBucket::read).collect::<Result<Vec<_>>>();
        let buckets = buckets.map_err(SpannerFailure::Failed)?;
        let rewinds = buckets.first().map_or_else(Rewinds::default, |bucket| bucket.rewinds);
        let (chosen, is_cut) = choose(request, buckets);
        let snapshot = answer.transaction.map(|id| TransactionSelector { selected: Some(Selected::Id(id)) });
        let rows = match chosen.is_empty() {
            true => Vec::new(),
            false => read_events(&mut session, snapshot, &chosen).await?,
        };
        session.give_back();
        let rows = open_rows(chosen, &rows, rewinds).map_err(SpannerFailure::Failed)?;
        Ok(OpenRows { rows, is_cut, rewinds })
    }

    /// Runs a transaction that reads the rows with these events.
    async fn change<R: Send>(
        &self,
        statement: SqlStatement,
        decide: impl Fn(Vec<SqlList>) -> Result<TransactionEnd<R>> + Send + Sync,
    ) -> Result<R> {
        let _permit = self.api.admit().await?;
        self.api.transact(&statement, decide).await
    }

    /// The time of a snapshot: all transactions that have committed until then can be seen, and no later one will have
    /// an earlier time.
    async fn settled(&self) -> Result<Timestamp> {
        let time = async || {
            let mut session = self.api.session().await?;
            let statement = SqlStatement::new(include_str!("outbox/relay.sql"));
            let answer = session.run(&statement, Some(SpannerApi::snapshot())).await?;
            session.give_back();
            Ok(answer.snapshot)
        };
        let time = match time().await {
            Err(failure) if repeats(&self.api, &failure) => time().await,
            time => time,
        };
        let time = time.map_err(SpannerFailure::into_error)?;
        time.ok_or_else(|| not_applied("Spanner has not told the time of a snapshot"))
    }
}

/// Whether the sessions have ended, so that the next call gets a new one.
fn repeats(api: &SpannerApi, failure: &SpannerFailure) -> bool {
    api.note(failure);
    failure.may_repeat()
}

#[async_trait]
impl Outbox for SpannerOutbox {
    async fn read(&self, request: &ReadRequest) -> Result<OpenRows> {
        let read = match self.read_once(request).await {
            Err(failure) if repeats(&self.api, &failure) => self.read_once(request).await,
            read => read,
        };
        read.map_err(SpannerFailure::into_error)
    }

    async fn mark(&self, rows: &[EventRow], republications: u64) -> Result<MarkedRows> {
        if rows.is_empty() {
            return Ok(MarkedRows::default());
        }
        let statement = of_events(include_str!("outbox/mark.sql"), rows.iter().map(|row| row.event));
        let mark = |found: Vec<SqlList>| {
            let (begun, found) = rows::marked_rows(&found)?;
            if begun != republications {
                return Ok(TransactionEnd::Keep(MarkedRows { is_rewound: true, ..MarkedRows::default() }));
            }
            let named: BTreeSet<EventRow> = rows.iter().copied().collect();
            let is_named = |place: &RowPlace| named.contains(&EventRow { id: place.id(), event: place.event });
            let open = found.iter().filter(|(place, state)| *state == RowState::Open && is_named(place));
            let changes: Vec<_> = open.map(|(place, _)| rows::publish(place)).collect();
            let marked = MarkedRows { marked: changes.len(), ..MarkedRows::default() };
            Ok(if changes.is_empty() { TransactionEnd::Keep(marked) } else { TransactionEnd::Write(changes, marked) })
        };
        self.change(statement, mark).await
    }

    async fn park(&self, rows: &[ParkedRow]) -> Result<Vec<EventRow>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let statement = of_events(include_str!("outbox/park.sql"), rows.iter().map(|row| row.event));
        self.change(statement, |found| {
            let found = found.iter().map(RefusedRow::read).collect::<Result<Vec<_>>>()?;
            let (changes, gone) = park_changes(rows, &found);
            Ok(if changes.is_empty() { TransactionEnd::Keep(gone) } else { TransactionEnd::Write(changes, gone) })
        })
        .await
    }

    async fn set_aside(&self, rows: &[EventRow]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let statement = of_events(include_str!("outbox/park.sql"), rows.iter().map(|row| row.event));
        let named: BTreeSet<EventRow> = rows.iter().copied().collect();
        self.change(statement, |found| {
            let found = found.iter().map(RefusedRow::read).collect::<Result<Vec<_>>>()?;
            let is_named = |place: &RowPlace| named.contains(&EventRow { id: place.id(), event: place.event });
            let is_meant = |row: &&RefusedRow| {
                row.state == RowState::Open && row.is_parked && !row.is_resumed && is_named(&row.place)
            };
            let changes: Vec<_> = found.iter().filter(is_meant).map(rows::aside).collect();
            Ok(if changes.is_empty() { TransactionEnd::Keep(()) } else { TransactionEnd::Write(changes, ()) })
        })
        .await
    }

    async fn horizon(&self) -> Result<Horizon> {
        let settled = self.settled().await?;
        Ok(Horizon { drawn: last_until(settled), stamp: settled.0, settled: settled.0 })
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        SpannerTables::of(&self.api).outbox_findings().await
    }
}

impl fmt::Debug for SpannerOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpannerOutbox").field("api", &self.api).finish_non_exhaustive()
    }
}

/// A statement about the rows with these events.
fn of_events(sql: &'static str, events: impl Iterator<Item = EventId>) -> SqlStatement {
    let events: BTreeSet<EventId> = events.collect();
    let events: Vec<Bytes> = events.iter().map(|event| Bytes::copy_from_slice(event.as_bytes())).collect();
    SqlStatement::new(sql).all_bytes("events", &events)
}

/// How many rows of each bucket one read looks at: all of them must fit into an answer of the service.
fn most_of_each(request: &ReadRequest) -> u32 {
    const MOST_ROWS: usize = 50_000;
    let asked = request.cursors.iter().map(|cursor| cursor.limit).max().unwrap_or_default();
    asked.min(u32::try_from(MOST_ROWS / request.cursors.len().max(1)).unwrap_or(u32::MAX))
}

fn read_statement(request: &ReadRequest) -> SqlStatement {
    let starts: Vec<_> = request.cursors.iter().map(|cursor| PlaceStart::from(cursor.from)).collect();
    let all = |value: fn(&PlaceStart) -> i64| starts.iter().map(value).collect::<Vec<_>>();
    let buckets: Vec<i64> = request.cursors.iter().map(|cursor| cursor.bucket.into()).collect();
    let events: Vec<_> = starts.iter().map(|start| Bytes::copy_from_slice(&start.event)).collect();
    let most = most_of_each(request);
    let left_out = request.left_out.iter().map(|left| {
        let (namespace, topic) = (&left.namespace, &left.topic);
        format!("{}:{namespace}{topic}", namespace.chars().count())
    });
    SqlStatement::new(include_str!("outbox/read.sql"))
        .all_integers("buckets", &buckets)
        .all_integers("times", &all(|start| start.time))
        .all_integers("seqs", &all(|start| start.number))
        .all_bytes("events", &events)
        .integer("most", most.into())
        .all_texts("left_out", left_out.collect())
}

/// The rows that fit into the request, and whether others do not: the first row of each bucket comes before the second
/// one of any.
fn choose(request: &ReadRequest, buckets: Vec<OpenBucket>) -> (Vec<FoundOpen>, bool) {
    let limit = |bucket| {
        let cursor = request.cursors.iter().find(|cursor| cursor.bucket == bucket);
        cursor.map_or(0, |cursor| usize::try_from(cursor.limit).unwrap_or(usize::MAX))
    };
    let most_of_each = usize::try_from(most_of_each(request)).unwrap_or(usize::MAX);
    let (mut found, mut has_more): (Vec<(usize, FoundOpen)>, bool) = (Vec::new(), false);
    for OpenBucket { bucket, rows, .. } in buckets {
        has_more |= rows.len() == most_of_each && most_of_each < limit(bucket);
        found.extend(rows.into_iter().take(limit(bucket)).enumerate());
    }
    found.sort_unstable_by_key(|(number, row)| (*number, row.place));
    let count = found.len();
    let (mut chosen, mut bytes) = (Vec::new(), 0_usize);
    for (_, row) in found {
        bytes = bytes.saturating_add(row.size);
        let answer = bytes.saturating_add(COLUMNS_SIZE * chosen.len());
        if (bytes > request.bytes || answer > MOST_BYTES) && !chosen.is_empty() {
            break;
        }
        chosen.push(row);
    }
    let is_cut = has_more || chosen.len() < count;
    (chosen, is_cut)
}

async fn read_events(
    session: &mut LentSession,
    snapshot: Option<TransactionSelector>,
    chosen: &[FoundOpen],
) -> SpannerResult<Vec<SqlList>> {
    let statement = of_events(include_str!("outbox/rows.sql"), chosen.iter().map(|row| row.place.event));
    Ok(session.run(&statement, snapshot).await?.rows)
}

/// The rows with their events, in the order of their ids.
fn open_rows(chosen: Vec<FoundOpen>, rows: &[SqlList], rewinds: Rewinds) -> Result<Vec<OpenRow>> {
    let events = rows.iter().map(rows::stored_event).map(|row| row.map(|row| (row.place.event, row)));
    let mut events = events.collect::<Result<BTreeMap<_, _>>>()?;
    let mut open = Vec::new();
    for found in chosen {
        let Some(stored) = events.remove(&found.place.event) else { return Err(values::unexpected()) };
        let event = OutgoingEvent { republications: rewinds.republications, ..stored.event };
        open.push(OpenRow {
            id: found.place.id(),
            bucket: found.place.bucket,
            is_parked: found.is_parked,
            damage: None,
            event: Arc::new(event),
        });
    }
    open.sort_unstable_by_key(|row| row.id);
    Ok(open)
}

/// The changes that park the keys of these rows, and the rows that are not there any more. The first row of a key gives
/// the reason.
fn park_changes(rows: &[ParkedRow], found: &[RefusedRow]) -> (Vec<Mutation>, Vec<EventRow>) {
    let (mut changes, mut gone, mut parked) = (Vec::new(), Vec::new(), BTreeSet::<&[u8]>::new());
    let mut ascending: Vec<&ParkedRow> = rows.iter().collect();
    ascending.sort_unstable_by_key(|row| row.id);
    for row in ascending {
        let is_unpublished = |found: &&RefusedRow| matches!(found.state, RowState::Open | RowState::Aside);
        let refused = found.iter().find(|found| found.place.is(&row.named())).filter(is_unpublished);
        let Some(refused) = refused else {
            gone.push(row.named());
            continue;
        };
        if !refused.is_parked && parked.insert(&refused.key) {
            changes.push(rows::parked(refused, &row.reason));
        }
        if refused.state == RowState::Open {
            changes.push(rows::aside(refused));
        }
    }
    (changes, gone)
}
