use std::cell::OnceCell;

use serde_json::Value;

use crate::broker::DeadReason;
use crate::canonical::{canonical_form, is_held_by_double, is_printed_exactly, is_unambiguous, parse};

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
        self.parsed.get_or_init(|| parse(self.bytes)).as_ref()
    }

    /// The payload as JSON. None if it is none, or one of its objects names a member twice.
    pub(super) fn unambiguous(&self) -> Option<&Value> {
        self.value().filter(|value| is_unambiguous(self.bytes, value))
    }

    /// The text or number at a pointer. None if there is nothing, or the payload is no JSON.
    ///
    /// # Errors
    /// `KeyMalformed` if there is something else, or a number that loses digits.
    pub(super) fn text_at(&self, pointer: &str) -> Result<Option<Vec<u8>>, DeadReason> {
        match self.value().and_then(|value| value.pointer(pointer)) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone().into_bytes())),
            Some(Value::Number(number)) if is_printed_exactly(number) => Ok(Some(number.to_string().into_bytes())),
            Some(Value::Number(_) | Value::Bool(_) | Value::Array(_) | Value::Object(_)) => {
                Err(DeadReason::KeyMalformed)
            }
        }
    }

    /// The payload in the form of RFC 8785, without what is at these pointers. None if the payload is no JSON.
    ///
    /// # Errors
    /// `KeyMalformed` if the payload has a number that this form cannot hold.
    pub(super) fn canonical(&self, without: &[Box<str>]) -> Result<Option<Vec<u8>>, DeadReason> {
        let Some(mut value) = self.value().cloned() else { return Ok(None) };
        for pointer in without {
            remove(&mut value, pointer);
        }
        if !are_numbers_held(&value) {
            return Err(DeadReason::KeyMalformed);
        }
        Ok(canonical_form(&value))
    }
}

/// Whether doubles hold all numbers of this value.
fn are_numbers_held(value: &Value) -> bool {
    match value {
        Value::Number(number) => is_held_by_double(number),
        Value::Array(elements) => elements.iter().all(are_numbers_held),
        Value::Object(members) => members.values().all(are_numbers_held),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

/// Removes a member of an object. An element of an array becomes null, so that the others keep their indexes.
fn remove(value: &mut Value, pointer: &str) {
    let Some((parent, name)) = pointer.rsplit_once('/') else { return };
    let name = name.replace("~1", "/").replace("~0", "~");
    match value.pointer_mut(parent) {
        Some(Value::Object(members)) => drop(members.remove(&name)),
        Some(Value::Array(elements)) => {
            if let Some(element) = name.parse::<usize>().ok().and_then(|index| elements.get_mut(index)) {
                *element = Value::Null;
            }
        }
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | None => {}
    }
}
