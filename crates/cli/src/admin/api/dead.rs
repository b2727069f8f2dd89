//! Dead letters, for operators.

use hapax::ErrorKind;
use hapax::broker::{
    DeadLetter, DeadLetterId, DeadLetterStore, DeadReason, KeptLetter, LetterChange, LetterWord, ListedLetter,
    ListedReason, Position,
};
use hapax::runtime::{Runtime, Tokio};
use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::admin::api::call::{LetterAction, LetterWrite, ListLetters};
use crate::admin::api::values::{exact_time, text_or_hexadecimal, time};
use crate::admin::api::{ApiError, within_deadline};

/// Why a letter of a message that cannot be read does not take `--done`.
pub(crate) const NOTHING_TO_RECORD: &str =
    "its message cannot be read, so nothing can be recorded about it; drop the letter, or redrive it without a word";

/// Whether the letter does not take this word.
pub(crate) async fn refuses_word(
    letters: &dyn DeadLetterStore,
    id: DeadLetterId,
    word: Option<LetterWord>,
) -> hapax::Result<bool> {
    if word != Some(LetterWord::Done) {
        return Ok(false);
    }
    match letters.find(id).await {
        Ok(found) => Ok(found.is_some_and(|kept| kept.letter.reason == DeadReason::Unreadable)),
        // A redrive leaves out a letter that cannot be decoded, whatever its word.
        Err(error) if error.kind() == ErrorKind::Damaged => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) async fn list(letters: &dyn DeadLetterStore, ask: &ListLetters) -> Result<Value, ApiError> {
    let page = within_deadline(letters.list(ask.after.as_ref(), ask.limit)).await?;
    let next = page.get(ask.limit - 1).map(|last| last.cursor.as_str().to_owned());
    let now = Tokio::current().wall_now();
    let listed = page.iter().filter(|letter| {
        ask.reason.is_none_or(|reason| letter.reason == ListedReason::Known(reason))
            && ask.source.as_ref().is_none_or(|source| *source == letter.source)
            && ask.older_than.is_none_or(|age| now.since(letter.at) > age)
    });
    let listed: Vec<Value> = listed.map(listed_letter).collect();
    Ok(json!({ "dead_letters": listed, "next": next }))
}

pub(super) async fn show(
    letters: &dyn DeadLetterStore,
    id: DeadLetterId,
    with_payload: bool,
) -> Result<Value, ApiError> {
    let found = within_deadline(letters.find(id)).await?.ok_or_else(missing)?;
    Ok(Value::Object(letter_fields(&found, with_payload)))
}

pub(super) async fn act(
    letters: &dyn DeadLetterStore,
    id: DeadLetterId,
    write: &LetterWrite,
) -> Result<Value, ApiError> {
    if let LetterAction::Redrive(word) = write.action
        && within_deadline(refuses_word(letters, id, word)).await?
    {
        return Err(ApiError::new(StatusCode::CONFLICT, "unreadable", NOTHING_TO_RECORD));
    }
    let change = match write.action {
        LetterAction::Redrive(word) => within_deadline(letters.mark(id, &write.seen, word)).await?,
        LetterAction::Drop => within_deadline(letters.remove(id, &write.seen)).await?,
    };
    match change {
        LetterChange::Yes => Ok(json!({ "id": id.to_string() })),
        LetterChange::Missing => Err(missing()),
        LetterChange::Stale => {
            let detail = "the letter was written, marked or delivered since you saw it; look at it again";
            Err(ApiError::new(StatusCode::CONFLICT, "stale", detail))
        }
        LetterChange::Taken(until) => {
            let free_at = exact_time(until);
            let detail =
                format!("a worker processes the message; the letter is free after {free_at}, unless it goes on");
            Err(ApiError { free_at: Some(until), ..ApiError::new(StatusCode::CONFLICT, "taken", detail) })
        }
    }
}

fn missing() -> ApiError {
    ApiError::not_found("there is no dead letter with this id")
}

/// A letter of a list.
pub(crate) fn listed_letter(letter: &ListedLetter) -> Value {
    json!({
        "id": letter.id.to_string(),
        "reason": letter.reason.as_str(),
        "attempts": letter.attempts,
        "source": letter.source,
        "time": time(letter.at),
        "namespace": letter.namespace,
        "operation": letter.operation.map(|operation| operation.to_string()),
        "payload_bytes": letter.size,
        "redrive_at": letter.marked_at.map(time),
        "seen": letter.seen.to_string(),
        "cursor": letter.cursor.as_str(),
    })
}

/// All that is known of a letter.
pub(crate) fn letter_fields(kept: &KeptLetter, with_payload: bool) -> Map<String, Value> {
    let mut fields = fields(&kept.letter);
    fields.insert("redrive_at".into(), json!(kept.marked_at.map(time)));
    fields.insert("seen".into(), json!(kept.seen.to_string()));
    if with_payload {
        fields.insert("payload".into(), text_or_hexadecimal(&kept.letter.message.payload));
    }
    fields
}

fn fields(letter: &DeadLetter) -> Map<String, Value> {
    let message = &letter.message;
    let headers: Vec<Value> =
        message.headers.iter().map(|(name, value)| json!([name, text_or_hexadecimal(value)])).collect();
    let coordinates = message.coordinates.as_ref();
    let position = coordinates.map(|coordinates| match &coordinates.position {
        Position::Number(number) => json!(number),
        Position::Id(id) => text_or_hexadecimal(id),
    });
    let fields = [
        ("id", json!(letter.id.to_string())),
        ("reason", json!(letter.reason.as_str())),
        ("attempts", json!(letter.attempts)),
        ("source", json!(&*letter.source)),
        ("time", json!(time(letter.at))),
        ("namespace", json!(&*letter.namespace)),
        ("operation", json!(letter.operation.map(|operation| operation.to_string()))),
        ("origin", json!(coordinates.map(|coordinates| &*coordinates.origin))),
        ("partition", json!(coordinates.map(|coordinates| coordinates.partition))),
        ("position", position.unwrap_or_default()),
        ("sent_at", json!(message.timestamp.map(time))),
        ("ordering_key", message.ordering_key.as_deref().map(text_or_hexadecimal).unwrap_or_default()),
        ("headers", Value::Array(headers)),
        ("payload_bytes", json!(message.payload.len())),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
