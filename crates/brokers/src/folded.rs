//! Headers that attributes of a message cannot have, folded into one text: JSON pairs of a name and a value. A value
//! that is no text is an object with `base64`.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};

/// The attribute that has them.
pub(crate) const FOLDED: &str = "hapax-headers";

/// The only encoding.
pub(crate) const BASE64: &str = "base64";

/// The text of these headers. `sendable` is the text of bytes that the service takes as they are.
///
/// # Errors
/// The name of a header that the service never takes.
pub(crate) fn pairs(headers: &[(&str, &Bytes)], sendable: fn(&[u8]) -> Option<&str>) -> Result<String, String> {
    let pair = |(name, value): &(&str, &Bytes)| {
        if sendable(name.as_bytes()).is_none() {
            return Err((*name).to_owned());
        }
        let value = match sendable(value) {
            Some(text) => json!(text),
            None => json!({ BASE64: BASE64_STANDARD.encode(value) }),
        };
        Ok(json!([name, value]))
    };
    Ok(Value::Array(headers.iter().map(pair).collect::<Result<_, _>>()?).to_string())
}

/// None if another sender uses the attribute.
pub(crate) fn read_pairs(json: &[u8]) -> Option<Vec<(String, Bytes)>> {
    let pairs: Vec<(String, Value)> = serde_json::from_slice(json).ok()?;
    let value = |value: Value| match value {
        Value::String(text) => Some(Bytes::from(text)),
        Value::Object(fields) => Some(BASE64_STANDARD.decode(fields.get(BASE64)?.as_str()?).ok()?.into()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
    };
    pairs.into_iter().map(|(name, found)| Some((name, value(found)?))).collect()
}
