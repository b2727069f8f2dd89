//! Times, bytes and text as the API, its commands and the audit file have them.

use std::time::{Duration, SystemTime};

use hapax::Timestamp;
use serde_json::{Value, json};

/// Text as a string, and other bytes as `{"hex": digits}`.
pub(crate) fn text_or_hexadecimal(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": hexadecimal(bytes) }),
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The time in the form of RFC 3339, in milliseconds.
pub(crate) fn time(time: Timestamp) -> String {
    humantime::format_rfc3339_millis(system_time(time)).to_string()
}

/// The time in the form of RFC 3339, in microseconds, so that a command which gets it back means the same time.
pub(crate) fn exact_time(time: Timestamp) -> String {
    humantime::format_rfc3339_micros(system_time(time)).to_string()
}

fn system_time(time: Timestamp) -> SystemTime {
    // A time that the system cannot express is damaged; the largest one shows that.
    let largest = Duration::from_secs(253_402_300_799);
    SystemTime::UNIX_EPOCH + time.since(Timestamp(0)).min(largest)
}

/// The time of a clock of this host.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
