//! A response as it is recorded, the same bytes in every store.
//!
//! ```text
//! byte 0  1 = a response, 2 = an answer that was not kept
//!      1  status, 2 (big-endian)
//!      3  how many headers, 1; each begins with a code, 1:
//!           1..=127    the name of that number, then the length of its value, 2, and the value
//!           128..=255  a Content-Type of the usual ones, whole
//!           0          the length of its name, 1, and the name, then the length of its value, 2, and the value
//!         the body
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hapax_core::BoxError;
use hapax_core::gate::Answer;
use http::header::{
    CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE, ETAG, LINK, LOCATION, RETRY_AFTER, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::headers::is_storable;

/// What is recorded of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Status, the headers that are kept, and the body.
    Response { status: StatusCode, headers: HeaderMap, body: Bytes },
    /// The effect happened, but the answer was too large, or a stream: never run again, never answered in full again.
    NotReplayable,
}

/// The headers that are kept. A stored code is a place in this list, counted from 1: it only grows at its end.
const KEPT: [HeaderName; 9] =
    [CONTENT_TYPE, CONTENT_LANGUAGE, CONTENT_DISPOSITION, CONTENT_ENCODING, VARY, LOCATION, ETAG, LINK, RETRY_AFTER];

/// Content types that are stored as one byte, counted from 128: this list, too, only grows at its end.
const USUAL_TYPES: [&str; 8] = [
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
const USUAL_TYPE: u8 = 128;

impl Stored {
    /// What is kept of a response with this head: the usual headers, and those of these names.
    pub(crate) fn response(head: &http::response::Parts, body: Bytes, more: &[HeaderName]) -> Self {
        let mut headers = HeaderMap::new();
        let encoded = head.headers.contains_key(CONTENT_ENCODING);
        for name in KEPT.iter().filter(|name| encoded || **name != VARY).chain(more) {
            if headers.contains_key(name) {
                continue;
            }
            for value in head.headers.get_all(name) {
                headers.append(name.clone(), value.clone());
            }
        }
        Self::Response { status: head.status, headers, body }
    }
}

impl Answer for Stored {
    fn encode(&self) -> Bytes {
        let Self::Response { status, headers, body } = self else {
            return Bytes::from_static(&[NOT_REPLAYABLE]);
        };
        let mut fields = BytesMut::new();
        let mut count = 0_u8;
        for (name, value) in headers {
            // What has no room is left out: a response is not lost for a header.
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
                Ok(Self::Response { status, headers, body: stored })
            }
            _ => Err("a stored response of an unknown form".into()),
        }
    }
}

/// Nothing, and nothing put, if the header has no room.
fn put_header(fields: &mut BytesMut, name: &HeaderName, value: &HeaderValue) -> Option<()> {
    let usual = USUAL_TYPES.iter().position(|usual| name == CONTENT_TYPE && value == usual);
    if let Some(place) = usual.and_then(|place| u8::try_from(place).ok()) {
        fields.put_u8(USUAL_TYPE + place);
        return Some(());
    }
    let length = u16::try_from(value.len()).ok()?;
    match KEPT.iter().position(|kept| kept == name).and_then(|place| u8::try_from(place + 1).ok()) {
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

fn take_header(stored: &mut Bytes) -> Result<(HeaderName, HeaderValue), BoxError> {
    let code = stored.try_get_u8()?;
    if code >= USUAL_TYPE {
        let usual =
            USUAL_TYPES.get(usize::from(code - USUAL_TYPE)).ok_or("a stored content type of an unknown number")?;
        return Ok((CONTENT_TYPE, HeaderValue::from_static(usual)));
    }
    let name = if code == BY_NAME {
        let length = usize::from(stored.try_get_u8()?);
        let name = HeaderName::from_bytes(&take(stored, length)?)?;
        if !is_storable(&name) {
            return Err("a stored header that is never kept".into());
        }
        name
    } else {
        KEPT.get(usize::from(code) - 1).ok_or("a stored header of an unknown number")?.clone()
    };
    let length = usize::from(stored.try_get_u16()?);
    Ok((name, HeaderValue::from_maybe_shared(take(stored, length)?)?))
}

fn take(stored: &mut Bytes, length: usize) -> Result<Bytes, BoxError> {
    if stored.len() < length {
        return Err("a stored header is cut short".into());
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

    /// The headers that come back.
    fn kept(head: &http::response::Parts, more: &[HeaderName]) -> HeaderMap {
        let stored = Stored::response(head, Bytes::from_static(b"{\"a\":\0}"), more);
        let Stored::Response { status, headers, body } = Stored::decode(stored.encode()).unwrap() else { panic!() };
        assert_eq!((status, &body[..]), (head.status, &b"{\"a\":\0}"[..]));
        headers
    }

    #[test]
    fn what_is_kept_comes_back_and_the_rest_is_left_out() {
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
                ("transfer-encoding", "chunked"),
                ("x-request-cost", "7"),
            ],
        );
        let headers = kept(&head, &[]);
        assert_eq!(headers.len(), 4);
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers.get_all("link").iter().collect::<Vec<_>>(), ["<a>", "<b>"]);
        let headers = kept(&head, &[HeaderName::from_static("x-request-cost"), LINK]);
        assert_eq!((headers.len(), &headers["x-request-cost"]), (5, &HeaderValue::from_static("7")));
    }

    #[test]
    fn vary_is_kept_beside_an_encoding() {
        assert!(kept(&head(200, &[("content-encoding", "br"), ("vary", "accept-encoding")]), &[]).contains_key(VARY));
    }

    #[test]
    fn a_json_answer_costs_five_bytes_beside_its_body() {
        let head = head(200, &[("content-type", "application/json")]);
        assert_eq!(Stored::response(&head, Bytes::from_static(b"{}"), &[]).encode(), &b"\x01\x00\xc8\x01\x80{}"[..]);
    }

    #[test]
    fn an_answer_that_was_not_kept_comes_back_as_such() {
        assert_eq!(Stored::decode(Stored::NotReplayable.encode()).unwrap(), Stored::NotReplayable);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_give_a_header_that_splits_a_response(bytes: Vec<u8>, prefix in 0..3_u8) {
            let mut stored = vec![prefix];
            stored.extend(bytes);
            if let Ok(Stored::Response { headers, .. }) = Stored::decode(stored.into()) {
                for (name, value) in &headers {
                    prop_assert!(is_storable(name));
                    prop_assert!(!value.as_bytes().iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
                }
            }
        }

        #[test]
        fn what_was_stored_comes_back(status in 200..600_u16, kept in 0..9_usize, value in "[ -~]{0,40}", body: Vec<u8>) {
            let mut headers = HeaderMap::new();
            headers.insert(KEPT[kept].clone(), HeaderValue::from_str(&value).unwrap());
            headers.append(HeaderName::from_static("x-own"), HeaderValue::from_static("1"));
            let stored = Stored::Response { status: StatusCode::from_u16(status).unwrap(), headers, body: body.into() };
            prop_assert_eq!(Stored::decode(stored.encode()).unwrap(), stored);
        }
    }
}
