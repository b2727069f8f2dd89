use bytes::Bytes;
use hapax::EventId;
use hapax::broker::{LetterWord, SeenLetter};
use hapax::outbox::RowId;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Map, Value};

use super::OutboxAction;
use crate::admin::api::ApiError;
use crate::admin::api::ordering_key::OrderingKey;
use crate::admin::api::values::timestamp;

/// The members of the body of a write. [`end`](WriteBody::end) refuses those that nobody asked for.
#[derive(Debug)]
pub(super) struct WriteBody {
    left: Map<String, Value>,
}

/// What an operator found out about an operation.
#[derive(Clone, Debug)]
pub(crate) enum FoundOutcome {
    /// It happened, and this is the response that every retry gets.
    Response { status: StatusCode, headers: HeaderMap, body: Bytes },
    /// It happened, and it was the processing of a message, which has no response.
    Processed,
    /// It did not happen.
    NotDone,
}

impl WriteBody {
    pub(super) fn new(left: Map<String, Value>) -> Self {
        Self { left }
    }

    pub(super) fn end(&self) -> Result<(), ApiError> {
        match self.left.keys().next() {
            Some(name) => Err(ApiError::invalid(format!("this write has no member {name:?}"))),
            None => Ok(()),
        }
    }

    pub(super) fn number(&mut self, name: &str) -> Result<u64, ApiError> {
        let missing = || ApiError::invalid(format!("the member {name:?} must be a whole number"));
        self.left.remove(name).as_ref().and_then(Value::as_u64).ok_or_else(missing)
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        let wrong = || ApiError::invalid(format!("the member {name:?} must be true or false"));
        self.left.remove(name).map_or(Ok(false), |value| value.as_bool().ok_or_else(wrong))
    }

    pub(super) fn ordering_key(&mut self) -> Result<OrderingKey, ApiError> {
        self.text("key")?.parse().map_err(ApiError::invalid)
    }

    pub(super) fn event(&mut self) -> Result<EventId, ApiError> {
        let wrong = |_| ApiError::invalid("the member \"event\" must be the id of an event, a UUID");
        self.text("event")?.parse().map_err(wrong)
    }

    pub(super) fn seen(&mut self) -> Result<SeenLetter, ApiError> {
        let wrong =
            |_| ApiError::invalid("the member \"seen\" must be that of the letter, as a list or the letter shows it");
        self.text("seen")?.parse().map_err(wrong)
    }

    /// The word of an operator about a dead letter.
    pub(super) fn word(&mut self) -> Result<Option<LetterWord>, ApiError> {
        match (self.flag("not_done")?, self.flag("done")?) {
            (true, true) => Err(ApiError::invalid("the message is either done or not done")),
            (true, false) => Ok(Some(LetterWord::NotDone)),
            (false, true) => Ok(Some(LetterWord::Done)),
            (false, false) => Ok(None),
        }
    }

    pub(super) fn outcome(&mut self) -> Result<FoundOutcome, ApiError> {
        match &*self.text("outcome")? {
            "done" => {
                let status = self.number("status")?;
                let status = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
                let status = status.filter(|status| status.as_u16() >= 200);
                Ok(FoundOutcome::Response {
                    status: status.ok_or_else(|| ApiError::invalid("the status must be from 200 to 999"))?,
                    headers: self.headers()?,
                    body: self.bytes("body")?,
                })
            }
            "processed" => Ok(FoundOutcome::Processed),
            "not-done" => Ok(FoundOutcome::NotDone),
            _ => Err(ApiError::invalid("the outcome must be \"done\", \"processed\" or \"not-done\"")),
        }
    }

    pub(super) fn republish(&mut self) -> Result<OutboxAction, ApiError> {
        let since = self.instant("since")?.ok_or_else(|| ApiError::invalid("the member \"since\" is missing"))?;
        let until = self.instant("until")?;
        let after = if self.left.contains_key("after") { self.number("after")? } else { 0 };
        Ok(OutboxAction::Republish { since, until, after: RowId(after) })
    }

    fn instant(&mut self, name: &str) -> Result<Option<hapax::Timestamp>, ApiError> {
        if !self.left.contains_key(name) {
            return Ok(None);
        }
        let wrong = |_| ApiError::invalid(format!("{name} must be a time: 2026-01-31T12:00:00Z"));
        humantime::parse_rfc3339(&self.text(name)?).map(timestamp).map(Some).map_err(wrong)
    }

    fn text(&mut self, name: &str) -> Result<String, ApiError> {
        match self.left.remove(name) {
            Some(Value::String(text)) => Ok(text),
            Some(_) | None => Err(ApiError::invalid(format!("the member {name:?} must be a text"))),
        }
    }

    /// Text, or other bytes as `{"hex": digits}`.
    fn bytes(&mut self, name: &str) -> Result<Bytes, ApiError> {
        let digits = |value: &Value| unhex(value.as_object().filter(|object| object.len() == 1)?.get("hex")?.as_str()?);
        match self.left.remove(name) {
            None => Ok(Bytes::new()),
            Some(Value::String(text)) => Ok(text.into()),
            Some(value) => {
                let wrong = || ApiError::invalid(format!("the member {name:?} must be a text or {{\"hex\": digits}}"));
                digits(&value).map(Bytes::from).ok_or_else(wrong)
            }
        }
    }

    fn headers(&mut self) -> Result<HeaderMap, ApiError> {
        let wrong = || ApiError::invalid("the member \"headers\" must be a list of [name, value]");
        let Some(listed) = self.left.remove("headers") else { return Ok(HeaderMap::new()) };
        let mut headers = HeaderMap::new();
        for pair in listed.as_array().ok_or_else(wrong)? {
            let [name, value] = pair.as_array().map(Vec::as_slice).ok_or_else(wrong)? else { return Err(wrong()) };
            let (name, value) = name.as_str().zip(value.as_str()).ok_or_else(wrong)?;
            let name: HeaderName = name.parse().map_err(|_| wrong())?;
            headers.append(name, HeaderValue::from_str(value).map_err(|_| wrong())?);
        }
        Ok(headers)
    }
}

/// Reads hexadecimal digits.
pub(crate) fn unhex(digits: &str) -> Option<Vec<u8>> {
    let is_whole = digits.len().is_multiple_of(2) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = |place| u8::from_str_radix(&digits[place..place + 2], 16).ok();
    is_whole.then(|| (0..digits.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>())?
}
