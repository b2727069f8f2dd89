//! A response as it is recorded, the same bytes in every store.
//!
//! ```text
//! byte 0  1 = a response, 2 = an answer that was not kept
//!      1  status, 2 (big-endian)
//!      3  how many headers, 1; each: number of its name, 1; length of its value, 2; the value
//!         the body
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hapax_core::BoxError;
use hapax_core::gate::Answer;
use http::header::{
    CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE, ETAG, LINK, LOCATION, RETRY_AFTER, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// What is recorded of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Status, the headers that are kept, and the body.
    Response { status: StatusCode, headers: HeaderMap, body: Bytes },
    /// The effect happened, but the answer was too large, or a stream: never run again, never answered in full again.
    NotReplayable,
}

/// The headers that are kept. A stored number is a place in this list, counted from 1: it only grows at its end.
const KEPT: [HeaderName; 9] =
    [CONTENT_TYPE, CONTENT_LANGUAGE, CONTENT_DISPOSITION, CONTENT_ENCODING, VARY, LOCATION, ETAG, LINK, RETRY_AFTER];

const RESPONSE: u8 = 1;
const NOT_REPLAYABLE: u8 = 2;

impl Stored {
    /// What is kept of a response with this head.
    pub(crate) fn response(head: &http::response::Parts, body: Bytes) -> Self {
        let mut headers = HeaderMap::new();
        let encoded = head.headers.contains_key(CONTENT_ENCODING);
        for name in KEPT.iter().filter(|name| encoded || **name != VARY) {
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
            let number = KEPT.iter().position(|kept| kept == name).and_then(|place| u8::try_from(place + 1).ok());
            let length = u16::try_from(value.len()).ok();
            // What has no number or no room is left out: a response is not lost for a header.
            if let (Some(number), Some(length), Some(more)) = (number, length, count.checked_add(1)) {
                fields.put_u8(number);
                fields.put_u16(length);
                fields.put_slice(value.as_bytes());
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
                    let (name, value) = header(&mut stored)?;
                    headers.append(name, value);
                }
                Ok(Self::Response { status, headers, body: stored })
            }
            _ => Err("a stored response of an unknown form".into()),
        }
    }
}

fn header(stored: &mut Bytes) -> Result<(HeaderName, HeaderValue), BoxError> {
    let number = usize::from(stored.try_get_u8()?);
    let name = number.checked_sub(1).and_then(|place| KEPT.get(place)).ok_or("a stored header of an unknown number")?;
    let length = usize::from(stored.try_get_u16()?);
    if stored.len() < length {
        return Err("a stored header is cut short".into());
    }
    Ok((name.clone(), HeaderValue::from_maybe_shared(stored.split_to(length))?))
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
            ],
        );
        let stored = Stored::response(&head, Bytes::from_static(b"{\"a\":\0}"));
        let Stored::Response { status, headers, body } = Stored::decode(stored.encode()).unwrap() else { panic!() };
        assert_eq!((status, &body[..]), (StatusCode::CREATED, &b"{\"a\":\0}"[..]));
        assert_eq!(headers.len(), 4);
        assert_eq!(headers.get_all("link").iter().collect::<Vec<_>>(), ["<a>", "<b>"]);
    }

    #[test]
    fn vary_is_kept_beside_an_encoding() {
        let stored =
            Stored::response(&head(200, &[("content-encoding", "br"), ("vary", "accept-encoding")]), Bytes::new());
        let Stored::Response { headers, .. } = Stored::decode(stored.encode()).unwrap() else { panic!() };
        assert!(headers.contains_key(VARY));
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
                    prop_assert!(KEPT.contains(name));
                    prop_assert!(!value.as_bytes().iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
                }
            }
        }
    }
}
