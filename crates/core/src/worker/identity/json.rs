use std::cell::OnceCell;

use serde_json::Value;

use crate::broker::DeadReason;

/// A payload that may be JSON, parsed when a rule first asks.
pub(super) struct JsonPayload<'p> {
    bytes: &'p [u8],
    parsed: OnceCell<Option<Value>>,
}

impl<'p> JsonPayload<'p> {
    pub(super) fn new(bytes: &'p [u8]) -> Self {
        Self { bytes, parsed: OnceCell::new() }
    }

    fn value(&self) -> Option<&Value> {
        self.parsed.get_or_init(|| serde_json::from_slice(self.bytes).ok()).as_ref()
    }

    /// The text or number at a pointer. None if there is nothing, or the payload is no JSON.
    pub(super) fn text_at(&self, pointer: &str) -> Result<Option<Vec<u8>>, DeadReason> {
        match self.value().and_then(|value| value.pointer(pointer)) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone().into_bytes())),
            Some(Value::Number(number)) => Ok(Some(number.to_string().into_bytes())),
            Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => Err(DeadReason::KeyMalformed),
        }
    }

    /// The payload in the form of RFC 8785, without what is at these pointers.
    pub(super) fn canonical(&self, without: &[Box<str>]) -> Option<Vec<u8>> {
        let mut value = self.value()?.clone();
        for pointer in without {
            remove(&mut value, pointer);
        }
        serde_json_canonicalizer::to_vec(&value).ok()
    }
}

/// Removes a member of an object. An element of an array becomes null, so that the others keep their places.
fn remove(value: &mut Value, pointer: &str) {
    let Some((parent, name)) = pointer.rsplit_once('/') else { return };
    let name = name.replace("~1", "/").replace("~0", "~");
    match value.pointer_mut(parent) {
        Some(Value::Object(members)) => drop(members.remove(&name)),
        Some(Value::Array(elements)) => {
            if let Some(element) = name.parse::<usize>().ok().and_then(|place| elements.get_mut(place)) {
                *element = Value::Null;
            }
        }
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | None => {}
    }
}
