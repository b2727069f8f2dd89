//! Headers as attributes of a message, which cannot hold everything.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use hapax_core::broker::Headers;

use crate::folded::{FOLDED, pairs, read_pairs};

/// The attributes of one message, at most.
const MAX_ATTRIBUTES: usize = 100;

/// The longest name of an attribute, and the longest value, in bytes.
const MAX_NAME: usize = 256;
const MAX_VALUE: usize = 1024;

/// The text of these bytes, which has every UTF-8.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn fits((name, value): &(&str, &Bytes)) -> bool {
    let is_reserved = name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("goog"));
    let is_ours = name.get(..FOLDED.len()).is_some_and(|start| start.eq_ignore_ascii_case(FOLDED));
    let is_name = !name.is_empty() && name.len() <= MAX_NAME && !is_reserved && !is_ours;
    is_name && value.len() <= MAX_VALUE && text(value).is_some()
}

/// The attributes for the headers of an event: the first `own` headers are of its user, the others of the sink.
///
/// The headers of the user are attributes if all of them can be; otherwise all are folded, so that they keep their
/// order. A header of the sink is folded only if no attribute can have its value.
///
/// # Errors
/// Why the attributes do not hold the headers.
pub(super) fn fold(headers: &Headers, own: usize) -> Result<BTreeMap<String, String>, String> {
    let (mut attributes, mut folded) = (BTreeMap::new(), Vec::new());
    let all: Vec<(&str, &Bytes)> = headers.iter().collect();
    let (users, sinks) = all.split_at(own.min(all.len()));
    let (plain, unfit): (Vec<_>, Vec<_>) = sinks.iter().partition(|header| fits(header));
    let names: BTreeSet<&str> = all.iter().map(|(name, _)| *name).collect();
    let has_room = all.len() <= MAX_ATTRIBUTES && names.len() == all.len() && unfit.is_empty();
    let attribute = |(name, value): &(&str, &Bytes)| Some(((*name).to_owned(), text(value)?.to_owned()));
    if has_room && users.iter().all(fits) {
        attributes.extend(users.iter().filter_map(attribute));
    } else {
        folded.extend(users);
    }
    attributes.extend(plain.iter().copied().filter_map(attribute));
    folded.extend(unfit);
    if !folded.is_empty() {
        let pairs = pairs(&folded, text)?;
        attributes.extend(pieces(&pairs).enumerate().map(|(index, piece)| (piece_name(index), piece.to_owned())));
    }
    if attributes.len() > MAX_ATTRIBUTES {
        return Err(format!("its headers need more than the {MAX_ATTRIBUTES} attributes of a message"));
    }
    Ok(attributes)
}

/// The name of the attribute with a piece of the folded headers.
fn piece_name(index: usize) -> String {
    if index == 0 { FOLDED.to_owned() } else { format!("{FOLDED}-{}", index + 1) }
}

/// The text in pieces that are values of attributes.
fn pieces(mut rest: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let end = rest.floor_char_boundary(MAX_VALUE);
        let (piece, behind) = rest.split_at(end);
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The headers in the attributes of a message, in the order of their names. Those that were folded come last.
pub(super) fn unfold(mut attributes: BTreeMap<String, String>) -> Headers {
    let names: Vec<String> = (0..).map(piece_name).take_while(|name| attributes.contains_key(name)).collect();
    let text: String = names.iter().filter_map(|name| attributes.get(name)).map(String::as_str).collect();
    let folded = read_pairs(text.as_bytes());
    if folded.is_some() {
        attributes.retain(|name, _| !names.contains(name));
    }
    let mut headers: Headers = attributes.into_iter().collect();
    for (name, value) in folded.into_iter().flatten() {
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

    fn names(attributes: &BTreeMap<String, String>) -> Vec<&str> {
        attributes.keys().map(String::as_str).collect()
    }

    #[test]
    fn headers_are_attributes_while_they_fit_and_come_back_as_they_were() {
        let few = headers(&[("b", b"1"), ("a", b""), ("ce-id", "\u{0}ü".as_bytes())]);
        let attributes = fold(&few, 2).unwrap();
        assert_eq!(names(&attributes), ["a", "b", "ce-id"]);
        assert_eq!(unfold(attributes), headers(&[("a", b""), ("b", b"1"), ("ce-id", "\u{0}ü".as_bytes())]));
        let hundred: Vec<String> = (0..100).map(|number| format!("h{number:03}")).collect();
        let hundred: Headers = hundred.iter().map(|name| (name.as_str(), "v")).collect();
        let attributes = fold(&hundred, 99).unwrap();
        assert_eq!((attributes.len(), unfold(attributes)), (100, hundred));
    }

    #[test]
    fn headers_that_no_attribute_can_have_are_folded_in_their_order() {
        let long = [b'v'; 1025];
        let longest = [b'v'; 1024];
        let (name, umlauts) = ("n".repeat(257), "ü".repeat(2000));
        let cases: [&[(&str, &[u8])]; 7] = [
            &[("z", b"1"), ("a", b"\xff")],
            &[("z", b"1"), ("a", &long)],
            &[("z", b"1"), ("z", b"2")],
            &[("z", b"1"), ("GOOGle", b"2")],
            &[("z", b"1"), ("hapax-headers-7", b"2"), ("", b"3")],
            &[("z", &longest), (&name, b"2")],
            &[("z", b"1"), ("a", umlauts.as_bytes())],
        ];
        for pairs in cases {
            let all = headers(pairs);
            let attributes = fold(&all, pairs.len()).unwrap();
            assert!(attributes.keys().all(|name| name.starts_with(FOLDED)), "{:?}", names(&attributes));
            assert!(attributes.values().all(|value| value.len() <= MAX_VALUE));
            assert_eq!(unfold(attributes), all, "{pairs:?}");
        }
        let many: Vec<String> = (0..101).map(|number| format!("h{number}")).collect();
        let many: Headers = many.iter().map(|name| (name.as_str(), "v")).collect();
        let attributes = fold(&many, 100).unwrap();
        assert!(attributes.len() < 10 && attributes.contains_key("h100"), "{:?}", names(&attributes));
        let huge = headers(&[("z", &vec![b'v'; 200_000])]);
        assert!(fold(&huge, 1).unwrap_err().contains("100 attributes"));
    }

    #[test]
    fn attributes_of_other_senders_are_headers() {
        let attributes = BTreeMap::from([("hapax-headers", "not ours"), ("hapax-headers-2", "x"), ("a", "b")]);
        let attributes = attributes.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let expected: [(&str, &[u8]); 3] = [("a", b"b"), (FOLDED, b"not ours"), ("hapax-headers-2", b"x")];
        assert_eq!(unfold(attributes), headers(&expected));
    }
}
