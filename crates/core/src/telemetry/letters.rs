//! The events and metrics of dead letters at a sink.

use metrics::counter;

use super::{AUDIT, names};
use crate::broker::DeadLetter;

/// The form of a dead letter that lacks the headers of its message.
pub(crate) const WITHOUT_HEADERS: &str = "headers";

/// The form of a dead letter that lacks the payload, too.
pub(crate) const STUB: &str = "stub";

/// Reports a dead letter that its sink took only without a part of its message: [`WITHOUT_HEADERS`] or
/// [`STUB`].
pub(crate) fn letter_shortened(letter: &DeadLetter, form: &'static str, refused: &str) {
    let DeadLetter { id, source, message, .. } = letter;
    let (source, place) = (&**source, message.coordinates.as_ref().map(tracing::field::debug));
    let (payload, headers) = (message.payload.len(), message.headers.size());
    counter!(names::WORKER_DEAD_SHORTENED, "form" => form).increment(1);
    tracing::error!(
        target: AUDIT,
        source,
        letter = %id,
        form,
        payload,
        headers,
        place,
        refused,
        "the sink of dead letters did not take a letter as a whole; a shorter one is published"
    );
}
