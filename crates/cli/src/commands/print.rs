//! What commands print for operators.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use hapax::Timestamp;
use serde_json::{Map, Value, json};

use crate::serve::exit::CommandError;
use crate::serve::logs::escape_controls;

/// Prints a line. Returns false if nobody reads the output any more.
pub(crate) fn line(text: &str) -> Result<bool, CommandError> {
    match writeln!(io::stdout(), "{text}") {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(CommandError::failed(anyhow::Error::new(error).context("the output cannot be written"))),
    }
}

/// Fields as one JSON object, or as one line each without those that are null.
pub(crate) fn object(fields: Map<String, Value>, as_json: bool) -> String {
    if as_json {
        return Value::Object(fields).to_string();
    }
    let lines = fields.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| {
        if let Some(headers) = value.as_array() {
            let headers = headers.iter().map(|header| format!("\n  {}", escape_controls(&header.to_string())));
            return format!("{name}:{}", headers.collect::<String>());
        }
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{name}: {}", escape_controls(&text))
    });
    lines.collect::<Vec<_>>().join("\n")
}

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
