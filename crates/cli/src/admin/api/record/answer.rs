use hapax::Completion;
use hapax::http::RecordedResponse;
use serde_json::{Value, json};

use crate::admin::api::values::{TextOrHex, shown_headers};

/// A recorded answer: a response, the outcome of a message, or bytes of another service.
pub(in crate::admin::api) fn shown_answer(completion: &Completion) -> Value {
    match RecordedResponse::decode(completion.answer.clone()) {
        Ok(Some(RecordedResponse { status, headers, body })) => {
            json!({
                "status": status.as_u16(), "headers": shown_headers(&headers), "body": TextOrHex::from(&*body),
            })
        }
        Ok(None) => json!({ "too_large": true }),
        Err(_) => json!({ "bytes": TextOrHex::from(&*completion.answer) }),
    }
}
