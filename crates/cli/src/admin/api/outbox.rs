//! The outbox, for operators.

pub(crate) mod waiting;

use hapax::outbox::{OutboxUpkeep, OutgoingEvent, ParkedKey, RowId, RowState};
use hapax::{EventId, Timestamp};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::admin::api::calls::{ApiCall, page_limit, wrong_cursor};
use crate::admin::api::ordering_key::OrderingKey;
use crate::admin::api::values::{
    RowNumber, TextOrHex, hexadecimal, optional_text, shown_headers, system_time, text, time, timestamp, unhex,
};
use crate::admin::api::{AdminApi, ApiError, within_deadline};

/// How many rows one request opens.
const STEP: usize = 1000;

/// Counting reads each row that it counts.
pub(crate) const MAX_COUNTED: u64 = 1_000_000;

/// How many times [`STEP`] rows one call opens or looks at. A longer write continues with another call.
const STEPS: usize = 20;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListParked {
    /// The time at which the last key was parked, a dot, and the key as digits.
    pub(crate) cursor: Option<String>,
    #[serde(default, with = "optional_text")]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OutboxPage {
    pub(crate) counts: CountsView,
    pub(crate) parked: Vec<ParkedView>,
    /// The cursor of the next page.
    pub(crate) next: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct CountsView {
    pub(crate) open: u64,
    pub(crate) oldest_seconds: Option<u64>,
    pub(crate) parked_keys: u64,
}

/// A parked key of a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ParkedView {
    #[serde(with = "text")]
    pub(crate) key: OrderingKey,
    #[serde(with = "text")]
    pub(crate) event: EventId,
    pub(crate) row: RowNumber,
    pub(crate) topic: String,
    pub(crate) reason: String,
    pub(crate) time: String,
}

impl ApiCall for ListParked {
    const PATH: &'static str = "outbox";
    type Answer = OutboxPage;

    async fn carry_out(&self, api: &AdminApi) -> Result<OutboxPage, ApiError> {
        let (outbox, limit) = (api.outbox()?, page_limit(self.limit)?);
        let after = self.cursor.as_ref().map(|cursor| place(cursor).ok_or_else(wrong_cursor)).transpose()?;
        let page = within_deadline(outbox.parked(after.as_ref(), limit)).await?;
        let counts = within_deadline(outbox.counts(MAX_COUNTED)).await?;
        let next = page.get(limit - 1).map(|last| format!("{}.{}", last.parked_at.0, hexadecimal(&last.key)));
        let (open, parked_keys) = (counts.open, counts.parked_keys);
        let counts = CountsView { open, oldest_seconds: counts.oldest.map(|age| age.as_secs()), parked_keys };
        Ok(OutboxPage { counts, parked: page.into_iter().map(ParkedView::from).collect(), next })
    }
}

/// The place in the list behind this cursor.
fn place(cursor: &str) -> Option<ParkedKey> {
    let (micros, key) = cursor.split_once('.')?;
    Some(ParkedKey {
        key: unhex(key)?.into(),
        parked_at: Timestamp(micros.parse().ok()?),
        // The place depends on the two above.
        row: RowId(0),
        event: EventId::from_bytes([0; 16]),
        topic: String::new(),
        reason: String::new(),
    })
}

impl From<ParkedKey> for ParkedView {
    fn from(parked: ParkedKey) -> Self {
        Self {
            key: OrderingKey::new(parked.key),
            event: parked.event,
            row: RowNumber(parked.row.0),
            topic: parked.topic,
            reason: parked.reason,
            time: time(parked.parked_at),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShowEvent {
    #[serde(with = "text")]
    pub(crate) id: EventId,
    #[serde(default, with = "text")]
    pub(crate) payload: bool,
}

/// All that is known of an event.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EventView {
    id: String,
    state: String,
    row: RowNumber,
    topic: String,
    #[serde(with = "optional_text")]
    key: Option<OrderingKey>,
    time: String,
    namespace: String,
    operation: Option<String>,
    number: Option<u32>,
    r#type: Option<String>,
    source: Option<String>,
    content_type: Option<String>,
    headers: Vec<(String, TextOrHex)>,
    payload_bytes: usize,
    /// Only if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<TextOrHex>,
}

impl EventView {
    fn of((row, state, event): (RowId, RowState, OutgoingEvent)) -> Self {
        Self {
            id: event.id.to_string(),
            state: state.as_str().to_owned(),
            row: RowNumber(row.0),
            topic: event.topic,
            key: event.ordering_key.map(OrderingKey::new),
            time: time(event.created_at),
            namespace: event.namespace,
            operation: event.operation.map(|operation| operation.to_string()),
            number: event.number,
            r#type: event.kind,
            source: event.source,
            content_type: event.content_type,
            headers: shown_headers(event.headers.iter()),
            payload_bytes: event.payload.len(),
            payload: Some((&*event.payload).into()),
        }
    }
}

impl ApiCall for ShowEvent {
    const PATH: &'static str = "outbox/events/{id}";
    type Answer = EventView;

    async fn carry_out(&self, api: &AdminApi) -> Result<EventView, ApiError> {
        let found = within_deadline(api.outbox()?.find(self.id)).await?;
        let missing = || ApiError::not_found("there is no event with this id; its row may have been removed");
        let shown = EventView::of(found.ok_or_else(missing)?);
        Ok(if self.payload { shown } else { EventView { payload: None, ..shown } })
    }
}

/// Lets a parked key go on.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResumeKey {
    #[serde(with = "text")]
    pub(crate) key: OrderingKey,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ResumedKey {
    /// How many rows are open.
    pub(crate) rows: usize,
    /// If false, there are more: the key stays parked until the last one is open.
    pub(crate) is_complete: bool,
}

impl ApiCall for ResumeKey {
    const PATH: &'static str = "outbox/resume";
    const WRITE: Option<&'static str> = Some("resume");
    type Answer = ResumedKey;

    async fn carry_out(&self, api: &AdminApi) -> Result<ResumedKey, ApiError> {
        let (outbox, mut rows) = (api.outbox()?, 0);
        for step in 0..STEPS {
            match within_deadline(outbox.resume(self.key.as_bytes(), STEP)).await? {
                None if step == 0 => {
                    return Err(ApiError::new(StatusCode::CONFLICT, "wrong-state", "the key is not parked"));
                }
                None | Some(0) => return Ok(ResumedKey { rows, is_complete: true }),
                Some(opened) => rows += opened,
            }
        }
        Ok(ResumedKey { rows, is_complete: false })
    }

    fn subject(&self) -> Value {
        json!({ "ordering_key": self.key.to_string() })
    }
}

/// Drops the event for which a key was parked, if it is the one that the operator saw.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DropEvent {
    #[serde(with = "text")]
    pub(crate) key: OrderingKey,
    #[serde(with = "text")]
    pub(crate) event: EventId,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DroppedEvent {
    dropped: bool,
    event: String,
}

impl ApiCall for DropEvent {
    const PATH: &'static str = "outbox/drop";
    const WRITE: Option<&'static str> = Some("drop");
    type Answer = DroppedEvent;

    async fn carry_out(&self, api: &AdminApi) -> Result<DroppedEvent, ApiError> {
        let dropped = api.outbox()?.drop_refused(self.key.as_bytes(), Some(self.event));
        let stale = || {
            let detail = "the key is no longer parked for this event, or the event is published or dropped";
            ApiError::new(StatusCode::CONFLICT, "stale", detail)
        };
        let event = within_deadline(dropped).await?.ok_or_else(stale)?;
        Ok(DroppedEvent { dropped: true, event: event.to_string() })
    }

    fn subject(&self) -> Value {
        json!({ "ordering_key": self.key.to_string(), "event": self.event.to_string() })
    }
}

/// Opens rows that were published within this time.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Republish {
    #[serde(with = "text")]
    pub(crate) since: humantime::Timestamp,
    /// The time of the call on the clock of the database, if there is none.
    #[serde(default, with = "optional_text")]
    pub(crate) until: Option<humantime::Timestamp>,
    /// The row behind which the call goes on.
    #[serde(default)]
    pub(crate) after: RowNumber,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Republished {
    pub(crate) rows: usize,
    /// The end of the range.
    #[serde(with = "text")]
    pub(crate) until: humantime::Timestamp,
    /// The row behind which the next call goes on.
    pub(crate) next: Option<RowNumber>,
}

impl ApiCall for Republish {
    const PATH: &'static str = "outbox/republish";
    const WRITE: Option<&'static str> = Some("republish");
    type Answer = Republished;

    async fn carry_out(&self, api: &AdminApi) -> Result<Republished, ApiError> {
        let (since, until) = (timestamp(*self.since), self.until.map(|until| timestamp(*until)));
        republish(api.outbox()?, (since, until), RowId(self.after.0)).await
    }

    fn subject(&self) -> Value {
        let since = timestamp(*self.since).0;
        match self.until {
            Some(until) => json!({ "since": since, "until": timestamp(*until).0 }),
            None => json!({ "since": since }),
        }
    }
}

async fn republish(
    outbox: &dyn OutboxUpkeep,
    (since, until): (Timestamp, Option<Timestamp>),
    after: RowId,
) -> Result<Republished, ApiError> {
    if until.is_none() && within_deadline(outbox.now()).await? <= since || until.is_some_and(|until| until <= since) {
        return Err(ApiError::invalid("since must be before until, and before now"));
    }
    // Before the end is taken: a row whose mark counts is published before it, and each other one is published again.
    if after == RowId(0) {
        within_deadline(outbox.begin_republication()).await?;
    }
    // An end, so that events which a relay publishes meanwhile are not opened again and again.
    let until = match until {
        Some(until) => until,
        None => within_deadline(outbox.now()).await?,
    };
    let (published, mut rows, mut last) = (since..until, 0, Some(after));
    for _ in 0..STEPS {
        let Some(behind) = last else { break };
        let step = within_deadline(outbox.republish(&published, behind, STEP)).await?;
        last = step.map(|step| step.last);
        rows += step.map_or(0, |step| step.rows);
    }
    Ok(Republished { rows, until: system_time(until).into(), next: last.map(|row| RowNumber(row.0)) })
}
