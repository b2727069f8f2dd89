//! What commands print for operators.

use std::io::{self, Write};

use serde_json::{Map, Value};

use crate::serve::exit::CommandError;
use crate::serve::logs::escape_controls;

/// Prints a text of one line or several. What would control the terminal is escaped, also in JSON. Returns false if
/// nobody reads the output any more.
pub(crate) fn line(text: &str) -> Result<bool, CommandError> {
    let lines: Vec<_> = text.split('\n').map(escape_controls).collect();
    match writeln!(io::stdout(), "{}", lines.join("\n")) {
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
