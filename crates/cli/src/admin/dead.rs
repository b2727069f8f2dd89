//! Dead letters, for operators.

use hapax::broker::{DeadLetterId, DeadLetterStore, DeadReason, ListedReason};
use hapax::runtime::{Runtime, Tokio};
use serde_json::{Value, json};

use crate::admin::call::{LetterAction, ListLetters};
use crate::admin::{ApiError, within_deadline};
use crate::commands::dead::{letter_fields, listed_letter};

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
    action: LetterAction,
) -> Result<Value, ApiError> {
    let existed = match action {
        LetterAction::Redrive { not_done: false } => within_deadline(letters.mark(id)).await?,
        LetterAction::Redrive { not_done: true } => {
            within_deadline(letters.mark_as(id, DeadReason::OutcomeUnknown, DeadReason::NotDone)).await?
        }
        LetterAction::Drop => within_deadline(letters.remove(id)).await?,
    };
    existed.then(|| json!({ "id": id.to_string() })).ok_or_else(missing)
}

fn missing() -> ApiError {
    ApiError::not_found("there is no dead letter with this id")
}
