use std::time::SystemTime;

/// Reads a time, or how long ago it is.
pub(super) fn instant(text: &str) -> Result<humantime::Timestamp, String> {
    if let Ok(at) = humantime::parse_rfc3339(text) {
        return Ok(at.into());
    }
    let ago = humantime::parse_duration(text).ok().and_then(|ago| SystemTime::now().checked_sub(ago));
    ago.map(Into::into).ok_or_else(|| "write a time as 2026-01-31T12:00:00Z, or how long ago it is, as 2h".into())
}
