//! The header fields and trailers of requests to the API and of its responses.

use bytes::Bytes;
use hapax::gate::Attempt;
use hapax::http::headers::{HAPAX_ATTEMPT, HAPAX_FINGERPRINT, HAPAX_OPERATION, HAPAX_TOKEN, HOP_BY_HOP, is_reserved};
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, EXPECT, HOST, TRAILER,
    TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use hyper::body::Frame;

/// Adds the fields that tell the API which attempt this is.
pub(crate) fn add_attempt_fields(headers: &mut HeaderMap, attempt: &Attempt) {
    let text = |text: String| HeaderValue::try_from(text).expect("digits, colons and hyphens are a valid field value");
    headers.insert(HAPAX_OPERATION, text(attempt.operation().to_string()));
    headers.insert(HAPAX_ATTEMPT, attempt.number().into());
    headers.insert(HAPAX_FINGERPRINT, text(attempt.fingerprint().to_string()));
    if let Some(grant) = attempt.grant() {
        headers.insert(HAPAX_TOKEN, grant.token.0.into());
    }
    // The answer may be replayed to a client that does not accept the encodings of this one.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

/// Removes the fields that belong to one connection, and those that only Hapax may set in this direction.
pub(crate) fn remove_unforwardable(headers: &mut HeaderMap, is_reserved: impl Fn(&HeaderName) -> bool) {
    let named = named_by_connection(headers).filter_map(|name| name.parse().ok());
    let others = headers.keys().filter(|name| HOP_BY_HOP.contains(name) || is_reserved(name));
    let removed: Vec<HeaderName> = named.chain(others.cloned()).collect();
    for name in removed {
        headers.remove(name);
    }
}

/// The names in all `Connection` fields. A field that is not text names no field.
pub(crate) fn named_by_connection(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let fields = headers.get_all(CONNECTION).iter().filter_map(|field| field.to_str().ok());
    fields.flat_map(|field| field.split(',')).map(str::trim)
}

/// Fields that a receiver needs before the body (RFC 9110, 6.5.1). They are not passed on as trailers.
const NEVER_TRAILERS: [HeaderName; 6] = [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, EXPECT, HOST];

/// The names of the trailers that a response declares, without those that are removed. None if there are none. A server
/// of HTTP/1.1 sends only trailers that the head names.
pub(crate) fn declared_trailers(headers: &HeaderMap) -> Option<HeaderValue> {
    let lines = headers.get_all(TRAILER).iter().filter_map(|line| line.to_str().ok());
    let names = lines.flat_map(|line| line.split(',')).filter_map(|name| name.trim().parse::<HeaderName>().ok());
    let passed =
        names.filter(|name| !(HOP_BY_HOP.contains(name) || NEVER_TRAILERS.contains(name) || is_reserved(name)));
    let passed: Vec<String> = passed.map(|name| name.to_string()).collect();
    HeaderValue::try_from(passed.join(", ")).ok().filter(|names| !names.is_empty())
}

/// Removes from trailers what is removed from a head, and the fields that mean nothing after a body. Returns None if no
/// trailer is left. A frame of data stays as it is.
pub(crate) fn filter_trailers(frame: Frame<Bytes>, is_reserved: impl Fn(&HeaderName) -> bool) -> Option<Frame<Bytes>> {
    let mut trailers = match frame.into_trailers() {
        Ok(trailers) => trailers,
        Err(data) => return Some(data),
    };
    remove_unforwardable(&mut trailers, |name| NEVER_TRAILERS.contains(name) || is_reserved(name));
    (!trailers.is_empty()).then(|| Frame::trailers(trailers))
}

/// Removes the length of a response, because the length towards the client comes from the body that is sent. The length
/// in a response to HEAD stays: it describes a body that nobody sends.
///
/// # Errors
/// If the end of the body is uncertain: the body has a transfer coding other than chunked, or its lengths are not one
/// number.
pub(crate) fn take_framing(headers: &mut HeaderMap, is_head: bool) -> Result<(), &'static str> {
    let is_chunked = is_chunked(headers).map_err(|OtherCoding| "its transfer coding is not `chunked`")?;
    // A transfer coding takes precedence over a length (RFC 9112, 6.3), whatever the length says.
    if !is_chunked && !has_one_length(headers) {
        return Err("its Content-Length is not one number");
    }
    let length = headers.remove(CONTENT_LENGTH);
    if is_head && !is_chunked {
        // Several fields with the same length become one.
        headers.extend(length.map(|length| (CONTENT_LENGTH, length)));
    }
    Ok(())
}

/// Whether all `Content-Length` fields have the same number. Lists are refused, because servers read them differently.
fn has_one_length(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter().map(number);
    lengths.next().is_none_or(|first| first.is_some() && lengths.all(|length| length == first))
}

/// The number that a field consists of. A sign or a blank is not part of a number.
fn number(field: &HeaderValue) -> Option<u64> {
    let digits = field.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}

/// The body has another transfer coding than `chunked`.
#[derive(Debug)]
pub(crate) struct OtherCoding;

/// Whether the body is chunked.
pub(crate) fn is_chunked(headers: &HeaderMap) -> Result<bool, OtherCoding> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(false),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(true),
        (Some(_), _) => Err(OtherCoding),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The length that is left, or None if the end of the body is uncertain.
    fn framed(fields: &[(HeaderName, &'static str)], is_head: bool) -> Option<Vec<HeaderValue>> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, HeaderValue::from_static(value));
        }
        take_framing(&mut headers, is_head).ok()?;
        Some(headers.get_all(CONTENT_LENGTH).iter().cloned().collect())
    }

    #[test]
    fn only_a_response_to_head_keeps_its_length() {
        let (length, coding) = (|text| (CONTENT_LENGTH, text), |text| (TRANSFER_ENCODING, text));
        for (fields, left) in [
            (&[][..], &[][..]),
            (&[length("5")], &["5"]),
            (&[length("5"), length("5")], &["5"]),
            (&[length("5"), coding("chunked")], &[]),
            (&[length("5, 5"), coding("Chunked")], &[]),
        ] {
            assert_eq!(framed(fields, true).unwrap(), left, "{fields:?}");
            assert_eq!(framed(fields, false).unwrap(), [""; 0], "{fields:?}");
        }
    }

    #[test]
    fn a_body_whose_end_is_uncertain_is_refused() {
        for length in ["", "5, 5", "+5", "-5", "0x5", "5 5", "18446744073709551616"] {
            assert_eq!(framed(&[(CONTENT_LENGTH, length)], false), None, "{length}");
        }
        assert_eq!(framed(&[(CONTENT_LENGTH, "5"), (CONTENT_LENGTH, "6")], false), None);
        for coding in ["gzip", "gzip, chunked", "chunked, chunked", "identity", ""] {
            assert_eq!(framed(&[(TRANSFER_ENCODING, coding)], false), None, "{coding}");
        }
        assert_eq!(framed(&[(TRANSFER_ENCODING, "gzip"), (TRANSFER_ENCODING, "chunked")], false), None);
    }
}
