//! CloudEvents. A bridge may copy one event in the other of its two modes, so both have one key and are compared by
//! their data.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::broker::{DeadReason, Message};
use crate::canonical::{canonical_json, canonical_value};
use crate::outbox::percent_decoded;
use crate::worker::identity::join;
use crate::worker::identity::json::JsonPayload;
use crate::worker::identity::key_rule::one_header;

/// A key from a CloudEvent. Its attributes have another prefix on each broker.
pub(super) fn key(message: &Message, payload: &JsonPayload<'_>) -> Result<Option<Vec<u8>>, DeadReason> {
    let (mut source, mut id) = (attribute(message, "source")?, attribute(message, "id")?);
    if source.is_none() && id.is_none() && is_structured(message) {
        (source, id) = (payload.text_at("/source")?, payload.text_at("/id")?);
    }
    match (source, id) {
        (None, None) => Ok(None),
        (Some(source), Some(id)) if !source.is_empty() && !id.is_empty() => Ok(Some(join(&[&source, &id]))),
        (Some(_) | None, Some(_) | None) => Err(DeadReason::KeyMalformed),
    }
}

/// The data of an event, the same in both modes. None if a reader may take it for different data.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EventData {
    /// JSON in its canonical form.
    Json(Vec<u8>),
    Bytes(Vec<u8>),
}

impl EventData {
    /// The data of the event in this message, which has the key of an event.
    pub(super) fn of(message: &Message, payload: &JsonPayload<'_>) -> Option<Self> {
        // As for the key: attributes in headers are those of an event whose payload is its data.
        let has_attributes = attribute(message, "id").is_ok_and(|id| id.is_some());
        if has_attributes || !is_structured(message) {
            let content_type = message.headers.all("content-type").next().map_or(&b""[..], |value| &value[..]);
            return Some(Self::read(&message.payload, is_json(content_type)));
        }
        let event = payload.unambiguous()?;
        let content_type = event.get("datacontenttype").map_or(Some("application/json"), Value::as_str)?;
        let is_json = is_json(content_type.as_bytes());
        match (event.get("data"), event.get("data_base64")) {
            (None, None) => Some(Self::Bytes(Vec::new())),
            (None, Some(Value::String(encoded))) => Some(Self::read(&STANDARD.decode(encoded).ok()?, is_json)),
            (Some(Value::String(text)), None) if !is_json => Some(Self::Bytes(text.clone().into_bytes())),
            (Some(data), None) => canonical_value(data.clone()).map(Self::Json),
            (_, Some(_)) => None,
        }
    }

    fn read(data: &[u8], is_json: bool) -> Self {
        let json = is_json.then(|| canonical_json(data)).flatten();
        json.map_or_else(|| Self::Bytes(data.to_vec()), Self::Json)
    }

    /// The two texts that the fingerprint is computed of: the form of the data, and the data.
    pub(super) fn parts(&self) -> [&[u8]; 2] {
        match self {
            Self::Json(json) => [b"json", json],
            Self::Bytes(bytes) => [b"bytes", bytes],
        }
    }
}

/// The value of this attribute in the headers.
fn attribute(message: &Message, name: &str) -> Result<Option<Vec<u8>>, DeadReason> {
    let names = ["ce-", "ce_", "cloudEvents:", "cloudEvents_"].map(|prefix| format!("{prefix}{name}"));
    let names = names.each_ref().map(String::as_str);
    // Some bindings encode a value, and others do not. One event has one key at every broker.
    one_header(message, &names).map(|value| value.map(percent_decoded))
}

/// Whether the payload is the whole event as JSON.
fn is_structured(message: &Message) -> bool {
    let content_type = message.headers.all("content-type").next();
    content_type.is_some_and(|value| value.to_ascii_lowercase().starts_with(b"application/cloudevents+json"))
}

fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let essence = essence.to_ascii_lowercase();
    essence.ends_with(b"/json") || essence.ends_with(b"+json")
}
