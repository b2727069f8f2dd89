//! Calls of gRPC. The layer passes them on, and protects none.
//!
//! The status of a call is in trailers, behind the body. A record has neither trailers nor a rule about what each
//! status says about the effect.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::body::ResponseBody;
use crate::problem::Problem;

const CALL: &str = "application/grpc";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The code `UNIMPLEMENTED`. Clients do not retry it by themselves.
const UNIMPLEMENTED: &str = "12";

/// Whether these are the header fields of a call: its type is `application/grpc`, with or without a format.
pub(crate) fn is_call(headers: &HeaderMap) -> bool {
    let Some(Ok(content_type)) = headers.get(CONTENT_TYPE).map(HeaderValue::to_str) else { return false };
    let Some(start) = content_type.get(..CALL.len()) else { return false };
    start.eq_ignore_ascii_case(CALL)
        && matches!(content_type.as_bytes().get(CALL.len()), None | Some(b'+' | b';' | b' '))
}

/// Turns the response of a problem into one that clients of gRPC read: a head with a status, and no body. It keeps its
/// extensions.
pub(crate) fn refusal<R>(problem: &Problem, mut response: Response<ResponseBody<R>>) -> Response<ResponseBody<R>> {
    *response.status_mut() = StatusCode::OK;
    *response.body_mut() = ResponseBody::default();
    let message = HeaderValue::try_from(&*problem.detail()).expect("the detail is visible ASCII");
    *response.headers_mut() = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static(CALL)),
        (GRPC_STATUS, HeaderValue::from_static(UNIMPLEMENTED)),
        (GRPC_MESSAGE, message),
    ]);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body_util::Full;

    #[test]
    fn a_call_is_known_by_its_type() {
        for (content_type, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/gRPC; charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/json", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
            assert_eq!(is_call(&headers), expected, "{content_type}");
        }
        assert!(!is_call(&HeaderMap::new()));
    }

    /// A percent sign begins an encoded byte in a message of gRPC.
    #[test]
    fn the_message_needs_no_encoding() {
        let response = refusal(&Problem::GrpcCall, Response::new(ResponseBody::<Full<Bytes>>::whole("text")));
        let message = response.headers()[GRPC_MESSAGE].to_str().unwrap();
        assert!(message.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'%'), "{message}");
    }
}
