//! Headers and bodies as the attributes and the text of a message, which cannot hold everything.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hapax_core::broker::Headers;

use super::queue::MessageAttribute;
use crate::folded::{BASE64, FOLDED, pairs, read_pairs};

/// The attribute that names the encoding of the body.
pub(super) const ENCODING: &str = "hapax-encoding";

/// The attributes of one message, at most.
const MAX_ATTRIBUTES: usize = 10;

/// The longest name of an attribute.
const MAX_NAME: usize = 256;

pub(super) fn text(value: impl Into<String>) -> MessageAttribute {
    MessageAttribute { data_type: "String".into(), string_value: Some(value.into()), binary_value: None }
}

/// The text of these bytes, if SQS takes it as it is.
pub(super) fn sendable(bytes: &[u8]) -> Option<&str> {
    // The characters of XML, in which the service once answered.
    let is_allowed = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{FFFD}' | '\u{10000}'..);
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.is_empty() && text.chars().all(is_allowed)).then_some(text)
}

/// Whether an attribute may have this name.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let has_prefix = |prefix: &str| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    let has_edge = name.starts_with('.') || name.ends_with('.') || name.contains("..");
    let is_ours = name.eq_ignore_ascii_case(FOLDED) || name.eq_ignore_ascii_case(ENCODING);
    !name.is_empty()
        && name.len() <= MAX_NAME
        && name.bytes().all(is_plain)
        && !has_edge
        && !is_ours
        && !has_prefix("AWS.")
        && !has_prefix("Amazon.")
}

/// The attributes for the headers of an event: the first `own` headers are of its user, the others of the sink. `spare`
/// attributes stay free.
///
/// The headers of the user are attributes if all of them can be; otherwise all are in [`FOLDED`], so that they keep
/// their order. A header of the sink is there only if no attribute can have its value.
///
/// # Errors
/// The name of a header that SQS never takes.
pub(super) fn fold(headers: &Headers, own: usize, spare: usize) -> Result<BTreeMap<String, MessageAttribute>, String> {
    let (mut attributes, mut folded) = (BTreeMap::new(), Vec::new());
    let all: Vec<(&str, &Bytes)> = headers.iter().collect();
    let (users, sinks) = all.split_at(own.min(all.len()));
    let fits = |(name, value): &(&str, &Bytes)| is_name(name) && sendable(value).is_some();
    let (plain, unfit): (Vec<_>, Vec<_>) = sinks.iter().partition(|header| fits(header));
    let names: std::collections::BTreeSet<&str> = all.iter().map(|(name, _)| *name).collect();
    let has_room = all.len() + spare <= MAX_ATTRIBUTES && names.len() == all.len() && unfit.is_empty();
    if has_room && users.iter().all(fits) {
        attributes.extend(users.iter().filter_map(|(name, value)| Some(((*name).to_owned(), text(sendable(value)?)))));
    } else {
        folded.extend(users);
    }
    attributes.extend(plain.iter().filter_map(|(name, value)| Some(((*name).to_owned(), text(sendable(value)?)))));
    folded.extend(unfit);
    if !folded.is_empty() {
        attributes.insert(FOLDED.to_owned(), text(pairs(&folded, sendable)?));
    }
    Ok(attributes)
}

/// The headers in the attributes of a message, in the order of their names. Those that were folded come last.
pub(super) fn unfold(attributes: &BTreeMap<String, MessageAttribute>) -> Headers {
    let mut headers = Headers::default();
    let mut folded = Vec::new();
    for (name, attribute) in attributes {
        let value = match (&attribute.string_value, &attribute.binary_value) {
            (Some(text), _) => Bytes::copy_from_slice(text.as_bytes()),
            (None, Some(binary)) => BASE64_STANDARD.decode(binary).unwrap_or_default().into(),
            (None, None) => Bytes::new(),
        };
        let found = (name == FOLDED).then(|| read_pairs(&value)).flatten();
        match found {
            Some(pairs) => folded = pairs,
            None if name == ENCODING && value == BASE64 => {}
            // An attribute of another sender, who uses these names for something else.
            None => headers.push(name.as_str(), value),
        }
    }
    for (name, value) in folded {
        headers.push(name, value);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &[u8])]) -> Headers {
        pairs.iter().map(|(name, value)| (*name, Bytes::copy_from_slice(value))).collect()
    }

    fn names(attributes: &BTreeMap<String, MessageAttribute>) -> Vec<&str> {
        attributes.keys().map(String::as_str).collect()
    }

    #[test]
    fn headers_are_attributes_while_they_fit_and_come_back_as_they_were() {
        let few = headers(&[("b", b"1"), ("a", b"2"), ("ce-id", b"3")]);
        let attributes = fold(&few, 2, 0).unwrap();
        assert_eq!(names(&attributes), ["a", "b", "ce-id"]);
        assert_eq!(unfold(&attributes), headers(&[("a", b"2"), ("b", b"1"), ("ce-id", b"3")]));
        let ten: Vec<String> = (0..10).map(|number| format!("h{number}")).collect();
        let ten: Headers = ten.iter().map(|name| (name.as_str(), "v")).collect();
        assert_eq!(fold(&ten, 9, 0).unwrap().len(), 10);
        assert_eq!(names(&fold(&ten, 9, 1).unwrap()), ["h9", FOLDED]);
    }

    #[test]
    fn headers_that_no_attribute_can_have_are_folded_in_their_order() {
        let cases: [&[(&str, &[u8])]; 6] = [
            &[("z", b"1"), ("a", b"")],
            &[("z", b"1"), ("a", b"\x00\x01")],
            &[("z", b"1"), ("a", b"\xff")],
            &[("z", b"1"), ("a", "\u{FFFE}".as_bytes())],
            &[("z", b"1"), ("z", b"2")],
            &[("z", b"1"), ("a b", b"2"), ("AWS.x", b"3"), ("hapax-headers", b"4"), (".x", b"5")],
        ];
        for pairs in cases {
            let all = headers(pairs);
            let attributes = fold(&all, pairs.len(), 0).unwrap();
            assert_eq!(names(&attributes), [FOLDED], "{pairs:?}");
            let folded = attributes[FOLDED].string_value.as_deref().unwrap();
            assert!(sendable(folded.as_bytes()).is_some(), "{folded}");
            assert_eq!(unfold(&attributes), all, "{pairs:?}");
        }
        assert_eq!(fold(&headers(&[("a\u{FFFF}", b"1")]), 1, 0), Err("a\u{FFFF}".to_owned()));
    }

    #[test]
    fn attributes_of_other_senders_are_headers() {
        let mut attributes = BTreeMap::from([
            (FOLDED.to_owned(), text("not ours")),
            (ENCODING.to_owned(), text("gzip")),
            ("count".to_owned(), MessageAttribute { data_type: "Number".into(), ..text("7") }),
        ]);
        let binary = Some("AAE=".to_owned());
        let bytes = MessageAttribute { data_type: "Binary".into(), string_value: None, binary_value: binary };
        attributes.insert("raw".to_owned(), bytes);
        let expected: [(&str, &[u8]); 4] =
            [("count", b"7"), (ENCODING, b"gzip"), (FOLDED, b"not ours"), ("raw", b"\x00\x01")];
        assert_eq!(unfold(&attributes), headers(&expected));
    }

    #[test]
    fn text_is_sendable_without_the_characters_that_xml_forbids() {
        for text in ["a", "a\t\r\n", "\u{D7FF}\u{E000}\u{FFFD}\u{10FFFF}", "\u{7f}"] {
            assert_eq!(sendable(text.as_bytes()), Some(text));
        }
        for bytes in [&b""[..], b"\x00", b"a\x0b", b"\x1f", b"\xff", "\u{FFFE}".as_bytes(), "\u{FFFF}".as_bytes()] {
            assert_eq!(sendable(bytes), None, "{bytes:?}");
        }
    }
}
