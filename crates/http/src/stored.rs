//! The stored form of a response. Every store keeps the same bytes.
//!
//! ```text
//! byte 0  1 = a response, 2 = an answer that was not stored
//!      1  status, 2 (big-endian)
//!      3  number of headers, 1; each begins with a code, 1:
//!           1..=127    the name of that number, then the length of its value, 2, and the value
//!           128..=255  a common Content-Type, name and value
//!           0          the length of its name, 1, and the name, then the length of its value, 2, and the value
//!         the body
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hapax_core::BoxError;
use hapax_core::gate::Answer;
use http::header::{
    ALLOW, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_RANGE, CONTENT_TYPE, ETAG, LINK, LOCATION,
    RETRY_AFTER, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::headers::is_storable;

/// A response as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoredResponse {
    /// Status, stored headers and body.
    Replayable { status: StatusCode, headers: HeaderMap, body: Bytes },
    /// The response was too large, or a stream of events. The request never runs again and its response is never
    /// replayed.
    NotReplayable,
}

/// The headers that are stored by default. A stored code is an index of this list, counted from 1, so the list may only
/// grow at its end.
const STORED_BY_DEFAULT: [HeaderName; 11] = [
    CONTENT_TYPE,
    CONTENT_LANGUAGE,
    CONTENT_DISPOSITION,
    CONTENT_ENCODING,
    VARY,
    LOCATION,
    ETAG,
    LINK,
    RETRY_AFTER,
    ALLOW,
    CONTENT_RANGE,
];

/// Content types that are stored as one byte, counted from 128. This list, too, may only grow at its end.
const COMMON_TYPES: [&str; 8] = [
    "application/json",
    "application/json; charset=utf-8",
    "application/problem+json",
    "text/plain",
    "text/plain; charset=utf-8",
    "text/html; charset=utf-8",
    "application/xml",
    "application/octet-stream",
];

const RESPONSE: u8 = 1;
const NOT_REPLAYABLE: u8 = 2;
const BY_NAME: u8 = 0;
const COMMON_TYPE: u8 = 128;

impl StoredResponse {
    /// The stored form of a response: the default headers, those of the names in `more`, and the body.
    pub(crate) fn replayable(head: &http::response::Parts, body: Bytes, more: &[HeaderName]) -> Self {
        let mut headers = HeaderMap::new();
        for name in STORED_BY_DEFAULT.iter().chain(more) {
            // A name in `more` may also be a default one. Its values are stored once.
            if headers.contains_key(name) {
                continue;
            }
            for value in head.headers.get_all(name) {
                headers.append(name.clone(), value.clone());
            }
        }
        Self::Replayable { status: head.status, headers, body }
    }
}

impl Answer for StoredResponse {
    fn encode(&self) -> Bytes {
        let Self::Replayable { status, headers, body } = self else {
            return Bytes::from_static(&[NOT_REPLAYABLE]);
        };
        let mut fields = BytesMut::new();
        let mut count = 0_u8;
        for (name, value) in headers {
            // A header that does not fit is left out, so that it does not make the whole response unstorable.
            if let Some(more) = count.checked_add(1)
                && put_header(&mut fields, name, value).is_some()
            {
                count = more;
            }
        }
        let mut stored = BytesMut::with_capacity(4 + fields.len() + body.len());
        stored.put_u8(RESPONSE);
        stored.put_u16(status.as_u16());
        stored.put_u8(count);
        stored.put_slice(&fields);
        stored.put_slice(body);
        stored.freeze()
    }

    fn decode(mut stored: Bytes) -> Result<Self, BoxError> {
        match stored.try_get_u8()? {
            NOT_REPLAYABLE => Ok(Self::NotReplayable),
            RESPONSE => {
                let status = StatusCode::from_u16(stored.try_get_u16()?)?;
                let mut headers = HeaderMap::new();
                for _ in 0..stored.try_get_u8()? {
                    let (name, value) = take_header(&mut stored)?;
                    headers.append(name, value);
                }
                Ok(Self::Replayable { status, headers, body: stored })
            }
            _ => Err("the first byte of a stored response is unknown".into()),
        }
    }
}

/// Appends a header. Appends nothing and returns `None` if the name or the value is too long.
fn put_header(fields: &mut BytesMut, name: &HeaderName, value: &HeaderValue) -> Option<()> {
    let common = COMMON_TYPES.iter().position(|common| name == CONTENT_TYPE && value == common);
    if let Some(index) = common.and_then(|index| u8::try_from(index).ok()) {
        fields.put_u8(COMMON_TYPE + index);
        return Some(());
    }
    let length = u16::try_from(value.len()).ok()?;
    match STORED_BY_DEFAULT.iter().position(|stored| stored == name).and_then(|index| u8::try_from(index + 1).ok()) {
        Some(code) => fields.put_u8(code),
        None => {
            let name_length = u8::try_from(name.as_str().len()).ok()?;
            fields.put_u8(BY_NAME);
            fields.put_u8(name_length);
            fields.put_slice(name.as_str().as_bytes());
        }
    }
    fields.put_u16(length);
    fields.put_slice(value.as_bytes());
    Some(())
}

/// Splits off the first header. Fails on bytes that [`put_header`] never writes.
fn take_header(stored: &mut Bytes) -> Result<(HeaderName, HeaderValue), BoxError> {
    let code = stored.try_get_u8()?;
    if code >= COMMON_TYPE {
        let index = usize::from(code - COMMON_TYPE);
        let common = COMMON_TYPES.get(index).ok_or("the code of a stored content type is unknown")?;
        return Ok((CONTENT_TYPE, HeaderValue::from_static(common)));
    }
    let name = if code == BY_NAME {
        let length = usize::from(stored.try_get_u8()?);
        let name = HeaderName::from_bytes(&take(stored, length)?)?;
        // An edited record must not set a field of the connection, or one that only Hapax sets.
        if !is_storable(&name) {
            return Err("a stored header has a name that is never stored".into());
        }
        name
    } else {
        STORED_BY_DEFAULT.get(usize::from(code) - 1).ok_or("the code of a stored header is unknown")?.clone()
    };
    let length = usize::from(stored.try_get_u16()?);
    Ok((name, HeaderValue::from_maybe_shared(take(stored, length)?)?))
}

/// Splits off this many bytes.
fn take(stored: &mut Bytes, length: usize) -> Result<Bytes, BoxError> {
    if stored.len() < length {
        return Err("a stored header is shorter than its length says".into());
    }
    Ok(stored.split_to(length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(status: u16, headers: &[(&str, &str)]) -> http::response::Parts {
        let builder = headers
            .iter()
            .fold(http::Response::builder().status(status), |builder, (name, value)| builder.header(*name, *value));
        builder.body(()).unwrap().into_parts().0
    }

    /// Stores a response and returns the headers that are read back.
    fn round_trip(head: &http::response::Parts, more: &[HeaderName]) -> HeaderMap {
        let stored = StoredResponse::replayable(head, Bytes::from_static(b"{\"a\":\0}"), more);
        let StoredResponse::Replayable { status, headers, body } = StoredResponse::decode(stored.encode()).unwrap()
        else {
            panic!()
        };
        assert_eq!((status, &body[..]), (head.status, &b"{\"a\":\0}"[..]));
        headers
    }

    #[test]
    fn default_headers_and_listed_ones_are_stored_and_no_others() {
        let head = head(
            201,
            &[
                ("content-type", "application/json"),
                ("location", "/charges/1"),
                ("link", "<a>"),
                ("link", "<b>"),
                ("set-cookie", "session=1"),
                ("date", "Sat, 21 Nov 2026 00:00:00 GMT"),
                ("vary", "accept-encoding"),
                ("allow", "GET, POST"),
                ("content-range", "bytes */7"),
                ("transfer-encoding", "chunked"),
                ("x-request-cost", "7"),
            ],
        );
        let headers = round_trip(&head, &[]);
        assert_eq!(headers.len(), 7);
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(
            (&headers["vary"], &headers["allow"]),
            (&HeaderValue::from_static("accept-encoding"), &HeaderValue::from_static("GET, POST"))
        );
        assert_eq!(headers.get_all("link").iter().collect::<Vec<_>>(), ["<a>", "<b>"]);
        let headers = round_trip(&head, &[HeaderName::from_static("x-request-cost"), LINK]);
        assert_eq!((headers.len(), &headers["x-request-cost"]), (8, &HeaderValue::from_static("7")));
    }

    #[test]
    fn a_json_answer_takes_five_bytes_beside_its_body() {
        let head = head(200, &[("content-type", "application/json")]);
        assert_eq!(
            StoredResponse::replayable(&head, Bytes::from_static(b"{}"), &[]).encode(),
            &b"\x01\x00\xc8\x01\x80{}"[..]
        );
    }

    #[test]
    fn a_response_that_was_not_stored_stays_not_replayable() {
        assert_eq!(
            StoredResponse::decode(StoredResponse::NotReplayable.encode()).unwrap(),
            StoredResponse::NotReplayable
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_or_yield_a_header_that_splits_a_response(bytes: Vec<u8>, prefix in 0..3_u8) {
            let mut stored = vec![prefix];
            stored.extend(bytes);
            if let Ok(StoredResponse::Replayable { headers, .. }) = StoredResponse::decode(stored.into()) {
                for (name, value) in &headers {
                    prop_assert!(is_storable(name));
                    prop_assert!(!value.as_bytes().iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
                }
            }
        }

        #[test]
        fn every_response_is_read_back_unchanged(
            status in 200..600_u16,
            index in 0..9_usize,
            value in "[ -~]{0,40}",
            body: Vec<u8>,
        ) {
            let mut headers = HeaderMap::new();
            headers.insert(STORED_BY_DEFAULT[index].clone(), HeaderValue::from_str(&value).unwrap());
            headers.append(HeaderName::from_static("x-own"), HeaderValue::from_static("1"));
            let status = StatusCode::from_u16(status).unwrap();
            let stored = StoredResponse::Replayable { status, headers, body: body.into() };
            prop_assert_eq!(StoredResponse::decode(stored.encode()).unwrap(), stored);
        }
    }
}
