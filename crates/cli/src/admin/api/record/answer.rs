use hapax::Completion;
use hapax::http::RecordedResponse;
use serde_json::{Value, json};

use crate::admin::api::values::text_or_hexadecimal;

/// A recorded answer: a response, the outcome of a message, or bytes of another service.
pub(in crate::admin::api) fn shown_answer(completion: &Completion) -> Value {
    match RecordedResponse::decode(completion.answer.clone()) {
        Ok(Some(RecordedResponse { status, headers, body })) => {
            let headers: Vec<_> = headers
                .iter()
                .map(|(name, value)| json!([name.as_str(), text_or_hexadecimal(value.as_bytes())]))
                .collect();
            json!({ "status": status.as_u16(), "headers": headers, "body": text_or_hexadecimal(&body) })
        }
        Ok(None) => json!({ "too_large": true }),
        Err(_) => json!({ "bytes": text_or_hexadecimal(&completion.answer) }),
    }
}
