//! The last hour of the process, minute by minute.

use serde::{Deserialize, Serialize};

use crate::admin::api::calls::ApiCall;
use crate::admin::api::values::{time, timestamp};
use crate::admin::api::{AdminApi, ApiError};
use crate::serve::history::{CountedMinute, MetricHistory};

/// A request for the last hour.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShowHistory {}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HistoryView {
    /// The oldest first. The last one still runs.
    minutes: Vec<MinuteView>,
}

#[derive(Debug, Serialize, Deserialize)]
struct MinuteView {
    begun: String,
    /// How long it lasted.
    seconds: f64,
    new: u64,
    replayed: u64,
    refused: u64,
    unknown: u64,
    /// The times in which half of the calls and 99 % of them ended. None without a call, or beyond a minute.
    p50_seconds: Option<f64>,
    p99_seconds: Option<f64>,
}

impl ApiCall for ShowHistory {
    const PATH: &'static str = "history";
    type Answer = HistoryView;

    async fn carry_out(&self, api: &AdminApi) -> Result<HistoryView, ApiError> {
        // A command has no process whose metrics it could count.
        let minutes = api.history.as_ref().map(MetricHistory::minutes).unwrap_or_default();
        Ok(HistoryView { minutes: minutes.into_iter().map(MinuteView::from).collect() })
    }
}

impl From<CountedMinute> for MinuteView {
    fn from(minute: CountedMinute) -> Self {
        let (calls, latency) = (minute.calls, &minute.latency);
        Self {
            begun: time(timestamp(minute.begun)),
            seconds: minute.length.as_secs_f64(),
            new: calls.new,
            replayed: calls.replayed,
            refused: calls.refused,
            unknown: calls.unknown,
            p50_seconds: latency.quantile(0.5),
            p99_seconds: latency.quantile(0.99),
        }
    }
}
