//! Dead letters, for operators.

mod advice;

use hapax::ErrorKind;
use hapax::broker::{
    DeadCursor, DeadLetterId, DeadLetterStore, DeadReason, KeptLetter, LetterChange, LetterWord, ListedLetter,
    ListedReason, Position, SeenLetter,
};
use hapax::runtime::{Runtime, Tokio};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::admin::api::calls::{ApiCall, page_limit};
use crate::admin::api::values::{TextOrHex, exact_time, optional_text, shown_headers, text, time};
use crate::admin::api::{AdminApi, ApiError, within_deadline};

/// Why a letter of a message that cannot be read does not take `--done`.
const NOTHING_TO_RECORD: &str =
    "its message cannot be read, so nothing can be recorded about it; drop the letter, or redrive it without a word";

/// Whether the letter does not take this word.
async fn refuses_word(
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

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListLetters {
    pub(crate) reason: Option<String>,
    pub(crate) source: Option<String>,
    #[serde(default, with = "optional_text")]
    pub(crate) older_than: Option<humantime::Duration>,
    pub(crate) cursor: Option<String>,
    #[serde(default, with = "optional_text")]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LetterPage {
    pub(crate) dead_letters: Vec<ListedView>,
    /// The cursor of the next page.
    pub(crate) next: Option<String>,
}

impl ApiCall for ListLetters {
    const PATH: &'static str = "dead-letters";
    type Answer = LetterPage;

    async fn carry_out(&self, api: &AdminApi) -> Result<LetterPage, ApiError> {
        let letters = api.dead()?;
        let known = |name: &String| {
            DeadReason::from_name(name).ok_or_else(|| ApiError::invalid("reason: no dead letter has this reason"))
        };
        let (reason, limit) = (self.reason.as_ref().map(known).transpose()?, page_limit(self.limit)?);
        let after = self.cursor.clone().map(DeadCursor::new);
        let page = within_deadline(letters.list(after.as_ref(), limit)).await?;
        let next = page.get(limit - 1).map(|last| last.cursor.as_str().to_owned());
        let now = Tokio::current().wall_now();
        let listed = page.iter().filter(|letter| {
            reason.is_none_or(|reason| letter.reason == ListedReason::Known(reason))
                && self.source.as_ref().is_none_or(|source| *source == letter.source)
                && self.older_than.is_none_or(|age| now.since(letter.at) > *age)
        });
        Ok(LetterPage { dead_letters: listed.map(ListedView::of).collect(), next })
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShowLetter {
    #[serde(with = "text")]
    pub(crate) id: DeadLetterId,
    #[serde(default, with = "text")]
    pub(crate) payload: bool,
}

impl ApiCall for ShowLetter {
    const PATH: &'static str = "dead-letters/{id}";
    type Answer = LetterView;

    async fn carry_out(&self, api: &AdminApi) -> Result<LetterView, ApiError> {
        let kept = within_deadline(api.dead()?.find(self.id)).await?.ok_or_else(missing)?;
        let payload = self.payload.then(|| (&*kept.letter.message.payload).into());
        Ok(LetterView { payload, ..LetterView::of(&kept) })
    }
}

/// A letter that was written.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ChangedLetter {
    id: String,
}

/// Marks a letter to be processed again, with the word of an operator about the outcome.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedriveLetter {
    #[serde(with = "text")]
    pub(crate) id: DeadLetterId,
    #[serde(with = "text")]
    pub(crate) seen: SeenLetter,
    #[serde(default)]
    pub(crate) not_done: bool,
    #[serde(default)]
    pub(crate) done: bool,
}

impl ApiCall for RedriveLetter {
    const PATH: &'static str = "dead-letters/{id}/redrive";
    const WRITE: Option<&'static str> = Some("redrive");
    type Answer = ChangedLetter;

    async fn carry_out(&self, api: &AdminApi) -> Result<ChangedLetter, ApiError> {
        let word = match (self.not_done, self.done) {
            (true, true) => return Err(ApiError::invalid("the message is either done or not done")),
            (true, false) => Some(LetterWord::NotDone),
            (false, true) => Some(LetterWord::Done),
            (false, false) => None,
        };
        let letters = api.dead()?;
        if within_deadline(refuses_word(letters, self.id, word)).await? {
            return Err(ApiError::new(StatusCode::CONFLICT, "unreadable", NOTHING_TO_RECORD));
        }
        changed(self.id, within_deadline(letters.mark(self.id, &self.seen, word)).await?)
    }

    fn subject(&self) -> Value {
        let arguments = json!({ "not_done": self.not_done, "done": self.done });
        json!({ "dead_letter": self.id.to_string(), "seen": self.seen.to_string(), "arguments": arguments })
    }
}

/// Removes a letter for good.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DropLetter {
    #[serde(with = "text")]
    pub(crate) id: DeadLetterId,
    #[serde(with = "text")]
    pub(crate) seen: SeenLetter,
}

impl ApiCall for DropLetter {
    const PATH: &'static str = "dead-letters/{id}/drop";
    const WRITE: Option<&'static str> = Some("drop");
    type Answer = ChangedLetter;

    async fn carry_out(&self, api: &AdminApi) -> Result<ChangedLetter, ApiError> {
        changed(self.id, within_deadline(api.dead()?.remove(self.id, &self.seen)).await?)
    }

    fn subject(&self) -> Value {
        json!({ "dead_letter": self.id.to_string(), "seen": self.seen.to_string() })
    }
}

fn changed(id: DeadLetterId, change: LetterChange) -> Result<ChangedLetter, ApiError> {
    match change {
        LetterChange::Yes => Ok(ChangedLetter { id: id.to_string() }),
        LetterChange::Missing => Err(missing()),
        LetterChange::Stale => {
            let detail = "the letter has changed since it was seen; look at it again";
            Err(ApiError::new(StatusCode::CONFLICT, "stale", detail))
        }
        LetterChange::Taken(until) => {
            let free_at = exact_time(until);
            let detail =
                format!("a worker processes the message; the letter is free after {free_at}, unless it goes on");
            Err(ApiError { free_at: Some(free_at), ..ApiError::new(StatusCode::CONFLICT, "taken", detail) })
        }
    }
}

fn missing() -> ApiError {
    ApiError::not_found("there is no dead letter with this id")
}

/// A letter of a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ListedView {
    #[serde(with = "text")]
    pub(crate) id: DeadLetterId,
    pub(crate) reason: String,
    pub(crate) attempts: u32,
    pub(crate) source: String,
    pub(crate) time: String,
    namespace: String,
    operation: Option<String>,
    payload_bytes: u64,
    pub(crate) redrive_at: Option<String>,
    #[serde(with = "text")]
    pub(crate) seen: SeenLetter,
    pub(crate) cursor: String,
}

impl ListedView {
    fn of(letter: &ListedLetter) -> Self {
        Self {
            id: letter.id,
            reason: letter.reason.as_str().to_owned(),
            attempts: letter.attempts,
            source: letter.source.clone(),
            time: time(letter.at),
            namespace: letter.namespace.clone(),
            operation: letter.operation.map(|operation| operation.to_string()),
            payload_bytes: letter.size,
            redrive_at: letter.marked_at.map(time),
            seen: letter.seen.clone(),
            cursor: letter.cursor.as_str().to_owned(),
        }
    }
}

/// All that is known of a letter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LetterView {
    id: String,
    pub(crate) reason: String,
    attempts: u32,
    /// The last error.
    cause: Option<String>,
    /// The next step of an operator, in words.
    advice: Option<String>,
    source: String,
    time: String,
    namespace: String,
    operation: Option<String>,
    origin: Option<String>,
    partition: Option<u32>,
    /// A number, or an id as text or digits.
    position: Option<Value>,
    sent_at: Option<String>,
    ordering_key: Option<TextOrHex>,
    headers: Vec<(String, TextOrHex)>,
    payload_bytes: usize,
    /// Only if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<TextOrHex>,
    redrive_at: Option<String>,
    seen: String,
}

impl LetterView {
    fn of(kept: &KeptLetter) -> Self {
        let (letter, message) = (&kept.letter, &kept.letter.message);
        let coordinates = message.coordinates.as_ref();
        Self {
            id: letter.id.to_string(),
            reason: letter.reason.as_str().to_owned(),
            attempts: letter.attempts,
            cause: letter.cause.as_ref().map(ToString::to_string),
            advice: Some(advice::advice(letter.reason).to_owned()),
            source: letter.source.to_string(),
            time: time(letter.at),
            namespace: letter.namespace.to_string(),
            operation: letter.operation.map(|operation| operation.to_string()),
            origin: coordinates.map(|coordinates| coordinates.origin.to_string()),
            partition: coordinates.map(|coordinates| coordinates.partition),
            position: coordinates.map(|coordinates| match &coordinates.position {
                Position::Number(number) => json!(number),
                Position::Id(id) => json!(TextOrHex::from(&**id)),
            }),
            sent_at: message.timestamp.map(time),
            ordering_key: message.ordering_key.as_deref().map(TextOrHex::from),
            headers: shown_headers(message.headers.iter()),
            payload_bytes: message.payload.len(),
            payload: None,
            redrive_at: kept.marked_at.map(time),
            seen: kept.seen.to_string(),
        }
    }
}
