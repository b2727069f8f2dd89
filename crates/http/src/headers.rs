//! The names of the header fields that the contract defines, and the fields that are never stored or passed on.

use http::HeaderName;
use http::header::{
    CONNECTION, CONTENT_LENGTH, DATE, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, WWW_AUTHENTICATE,
};

/// Request: the key, unless the service reads it from another place.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Response: `true` if it is a replay of the recorded answer.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Response: the time until which copies of the request get the recorded answer.
pub const IDEMPOTENCY_KEY_EXPIRES: HeaderName = HeaderName::from_static("idempotency-key-expires");

/// Response: `pending` if the store has not confirmed the record yet.
pub const HAPAX_RECORDED: HeaderName = HeaderName::from_static("hapax-recorded");

/// Response: `true` if the handler ran without a record.
pub const HAPAX_UNRECORDED: HeaderName = HeaderName::from_static("hapax-unrecorded");

/// Request from the gateway to the service behind it: the operation id, the same in every attempt.
pub const HAPAX_OPERATION: HeaderName = HeaderName::from_static("hapax-operation");

/// Request from the gateway to the service behind it: the number of the attempt, from 1.
pub const HAPAX_ATTEMPT: HeaderName = HeaderName::from_static("hapax-attempt");

/// Request from the gateway to the service behind it: the fencing token.
pub const HAPAX_TOKEN: HeaderName = HeaderName::from_static("hapax-token");

/// Request from the gateway to the service behind it: the fingerprint of the payload.
pub const HAPAX_FINGERPRINT: HeaderName = HeaderName::from_static("hapax-fingerprint");

/// Fields whose names begin like this are set by Hapax only, in requests and in responses.
pub const RESERVED_PREFIX: &str = "hapax-";

/// Fields that belong to one connection (RFC 9110, 7.6.1) and are neither stored nor passed on.
pub const HOP_BY_HOP: [HeaderName; 10] = [
    CONNECTION,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Fields that belong to one moment or one client. Beside [`HOP_BY_HOP`], these are never stored.
const NEVER_STORED: [HeaderName; 4] = [CONTENT_LENGTH, DATE, SET_COOKIE, WWW_AUTHENTICATE];

/// Whether only Hapax sets this field of a response: whether it is a replay, and the state of its record.
pub fn is_reserved(name: &HeaderName) -> bool {
    name.as_str().starts_with(RESERVED_PREFIX) || name == IDEMPOTENT_REPLAYED || name == IDEMPOTENCY_KEY_EXPIRES
}

/// Whether this field can be stored with an answer and given to other clients later.
///
/// ```
/// use hapax::http::headers::is_storable;
/// use http::header::{ETAG, SET_COOKIE};
///
/// assert!(is_storable(&ETAG) && !is_storable(&SET_COOKIE));
/// ```
pub fn is_storable(name: &HeaderName) -> bool {
    !is_reserved(name) && !HOP_BY_HOP.contains(name) && !NEVER_STORED.contains(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_connection_a_moment_or_a_client_are_not_storable() {
        for name in ["set-cookie", "date", "connection", "content-length", "hapax-token", "idempotency-key-expires"] {
            assert!(!is_storable(&HeaderName::from_static(name)), "{name}");
        }
        assert!(is_storable(&HeaderName::from_static("x-request-cost")));
    }
}
