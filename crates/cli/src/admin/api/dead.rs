//! Dead letters, for operators.

use hapax::broker::{DeadLetterId, DeadLetterStore, LetterChange, ListedReason};
use hapax::runtime::{Runtime, Tokio};
use http::StatusCode;
use serde_json::{Value, json};

use crate::admin::api::call::{LetterAction, LetterWrite, ListLetters};
use crate::admin::api::{ApiError, within_deadline};
use crate::commands::dead::{letter_fields, listed_letter};
use crate::commands::print::exact_time;

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
