//! The rows of the outbox that wait.

use hapax::outbox::{OpenRow, ReadRequest, ReadStart};
use serde::{Deserialize, Serialize};

use crate::admin::api::calls::{ApiCall, page_limit};
use crate::admin::api::ordering_key::OrderingKey;
use crate::admin::api::values::{optional_text, time};
use crate::admin::api::{AdminApi, ApiError, within_deadline};

/// The rows that are not published, the oldest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListWaiting {
    #[serde(default, with = "optional_text")]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WaitingPage {
    pub(crate) events: Vec<WaitingView>,
    /// Whether there are no others.
    pub(crate) is_complete: bool,
}

/// A row that is not published.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WaitingView {
    pub(crate) id: String,
    pub(crate) topic: String,
    #[serde(with = "optional_text")]
    pub(crate) key: Option<OrderingKey>,
    pub(crate) time: String,
    /// Whether its key waits for an operator.
    pub(crate) is_parked: bool,
    /// Why it cannot be read.
    pub(crate) damage: Option<String>,
    pub(crate) payload_bytes: usize,
}

impl ApiCall for ListWaiting {
    const PATH: &'static str = "outbox/waiting";
    type Answer = WaitingPage;

    async fn carry_out(&self, api: &AdminApi) -> Result<WaitingPage, ApiError> {
        /// The payloads that are read with the rows.
        const BYTES: usize = 4 << 20;
        let limit = page_limit(self.limit)?;
        let most = u32::try_from(limit).unwrap_or(u32::MAX);
        let request = ReadRequest::all_buckets(ReadStart::default(), most, BYTES);
        let mut found = within_deadline(api.outbox_rows()?.read(&request)).await?;
        found.rows.sort_by_key(|row| (row.event.created_at, row.id));
        // With fewer rows than the limit, no bucket has reached it.
        let is_complete = !found.is_cut && found.rows.len() < limit;
        let events = found.rows.iter().take(limit).map(WaitingView::of).collect();
        Ok(WaitingPage { events, is_complete })
    }
}

impl WaitingView {
    fn of(row: &OpenRow) -> Self {
        let event = &row.event;
        Self {
            id: event.id.to_string(),
            topic: event.topic.clone(),
            key: event.ordering_key.clone().map(OrderingKey::new),
            time: time(event.created_at),
            is_parked: row.is_parked,
            damage: row.damage.clone(),
            payload_bytes: event.payload.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hapax::EventId;
    use hapax::outbox::{MemoryOutbox, OutgoingEvent};
    use hapax::runtime::Tokio;
    use hapax_systems::OpenedOutbox;

    use super::*;
    use crate::admin::api::PolicyDescription;

    #[tokio::test]
    async fn rows_that_wait_are_listed_the_oldest_first() {
        let outbox = Arc::new(MemoryOutbox::new(Arc::new(Tokio::current())));
        for number in 0..5_u8 {
            let event = OutgoingEvent::new(EventId::from_bytes([number; 16]), "orders", vec![0; 7]);
            outbox.insert(OutgoingEvent { ordering_key: Some(vec![number].into()), ..event });
        }
        let opened = OpenedOutbox { outbox: Arc::clone(&outbox) as _, upkeep: outbox };
        let api = AdminApi { outbox: Some(opened), ..AdminApi::new(PolicyDescription::new("relay", "shop"), None) };
        for (limit, expected, is_complete) in [(3, vec![0, 1, 2], false), (500, vec![0, 1, 2, 3, 4], true)] {
            let page = ListWaiting { limit: Some(limit) }.carry_out(&api).await.unwrap();
            let ids = expected.into_iter().map(|number| EventId::from_bytes([number; 16]).to_string());
            assert_eq!(page.events.iter().map(|event| event.id.clone()).collect::<Vec<_>>(), ids.collect::<Vec<_>>());
            assert_eq!(page.is_complete, is_complete);
            assert!(page.events.iter().all(|event| event.payload_bytes == 7 && !event.is_parked), "{page:?}");
        }
    }
}
