use std::time::SystemTime;

use hapax::Timestamp;

use crate::admin::api::values::timestamp;

/// Reads a time, or how long ago it is.
pub(super) fn instant(text: &str) -> Result<Timestamp, String> {
    if let Ok(at) = humantime::parse_rfc3339(text) {
        return Ok(timestamp(at));
    }
    let ago = humantime::parse_duration(text).ok().and_then(|ago| SystemTime::now().checked_sub(ago));
    ago.map(timestamp).ok_or_else(|| "write a time as 2026-01-31T12:00:00Z, or how long ago it is, as 2h".into())
}
