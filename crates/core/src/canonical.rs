//! JSON in a form in which two texts with one meaning are the same bytes.

mod exact;

use std::collections::BTreeMap;

use serde_json::{Number, Value};

#[cfg(feature = "worker")]
pub(crate) use exact::is_printed_exactly;
pub(crate) use exact::{is_held_by_double, mark_lost_digits};

/// The JSON in the form of RFC 8785: without white space, with the members of each object in order. None if the bytes
/// are no JSON, or two services may read them differently: an object names a member twice, or a number has more digits
/// than a double holds.
///
/// Two texts with different values have different forms. An integer of 64 bits that no double holds is kept with all of
/// its digits: in the form stands another number in its place, and a list of the places and digits follows behind a
/// zero byte.
///
/// ```
/// use hapax::canonical_json;
///
/// assert_eq!(canonical_json(br#"{ "b": 1.0, "a": [] }"#), Some(br#"{"a":[],"b":1}"#.to_vec()));
/// assert_ne!(canonical_json(b"9007199254740992"), canonical_json(b"9007199254740993"));
/// assert_eq!(canonical_json(br#"{"a":1,"a":2}"#), None);
/// assert_eq!(canonical_json(b"0.12345678901234567890"), None);
/// ```
pub fn canonical_json(json: &[u8]) -> Option<Vec<u8>> {
    let value = parse(json)?;
    is_unambiguous(json, &value).then(|| canonical_value(value)).flatten()
}

/// Whether each object of this JSON, which was parsed to this value, names each of its members once.
pub(crate) fn is_unambiguous(json: &[u8], value: &Value) -> bool {
    members_in_text(json) == members_in(value)
}

/// The form of a value that [`parse`] has returned.
pub(crate) fn canonical_value(mut value: Value) -> Option<Vec<u8>> {
    let mut large = BTreeMap::new();
    take_large_integers(&mut value, String::new(), &mut large)?;
    let mut form = canonical_form(&value)?;
    if !large.is_empty() {
        form.push(0);
        form.extend(serde_json::to_vec(&large).ok()?);
    }
    Some(form)
}

/// Parses JSON. None if this is no JSON. A number that loses digits is replaced by one that no check accepts.
pub(crate) fn parse(json: &[u8]) -> Option<Value> {
    let value = serde_json::from_slice(json).ok()?;
    match mark_lost_digits(json) {
        None => Some(value),
        Some(marked) => serde_json::from_slice(&marked).ok(),
    }
}

/// The form of RFC 8785. Check the numbers first: this form rounds them.
pub(crate) fn canonical_form(value: &Value) -> Option<Vec<u8>> {
    serde_json_canonicalizer::to_vec(value).ok()
}

/// The number of members of all objects in a text that is valid JSON: each has one colon outside of strings.
fn members_in_text(json: &[u8]) -> usize {
    let (mut members, mut at) = (0, 0);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => at += exact::string_length(&json[at..]),
            b':' => {
                members += 1;
                at += 1;
            }
            _ => at += 1,
        }
    }
    members
}

/// The number of members of all objects in a value. A member that was named twice counts once.
fn members_in(value: &Value) -> usize {
    match value {
        Value::Array(elements) => elements.iter().map(members_in).sum(),
        Value::Object(members) => members.len() + members.values().map(members_in).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Moves each integer of 64 bits that no double holds into a map by its place. A number that [`is_held_by_double`]
/// never accepts takes its place. None if another number loses digits.
fn take_large_integers(value: &mut Value, place: String, large: &mut BTreeMap<String, String>) -> Option<()> {
    match value {
        Value::Number(number) if is_held_by_double(number) => Some(()),
        Value::Number(number) => {
            let is_kept = number.is_i64() || number.is_u64();
            let digits = is_kept.then(|| number.to_string())?;
            large.insert(place, digits);
            *number = Number::from_f64(PLACEHOLDER)?;
            Some(())
        }
        Value::Array(elements) => elements
            .iter_mut()
            .enumerate()
            .try_for_each(|(index, element)| take_large_integers(element, format!("{place}/{index}"), large)),
        Value::Object(members) => members.iter_mut().try_for_each(|(name, member)| {
            // As in a JSON pointer (RFC 6901), so that two places never have one name.
            let name = name.replace('~', "~0").replace('/', "~1");
            take_large_integers(member, format!("{place}/{name}"), large)
        }),
        Value::Null | Value::Bool(_) | Value::String(_) => Some(()),
    }
}

/// Stands in the form for a large integer.
const PLACEHOLDER: f64 = 1e308;

#[cfg(test)]
mod tests {
    use super::*;

    fn form(json: &str) -> Option<String> {
        canonical_json(json.as_bytes()).map(|form| String::from_utf8(form).unwrap())
    }

    #[test]
    fn texts_of_one_value_have_one_form() {
        for (text, expected) in [
            ("{\"b\":1,\"a\":{\"d\":[1,2],\"c\":\":\"}}", "{\"a\":{\"c\":\":\",\"d\":[1,2]},\"b\":1}"),
            (" [ 1.0 , 1e2, \"\\u0041\" ]\n", "[1,100,\"A\"]"),
            ("9007199254740992", "9007199254740992"),
            ("null", "null"),
        ] {
            assert_eq!(form(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn integers_of_64_bits_keep_their_digits() {
        let texts = [
            "[9007199254740993,1e2]",
            "[9007199254740995,1e2]",
            "[1e2,9007199254740993]",
            "{\"a\":9007199254740993,\"b\":18446744073709551615}",
            "{\"b\":9007199254740993,\"a\":18446744073709551615}",
            "{\"a/b\":9007199254740993}",
            "{\"a\":{\"b\":9007199254740993}}",
            "{\"a~1b\":9007199254740993}",
            "-9007199254740993",
            "9007199254740993",
            "\"9007199254740993\"",
        ];
        let mut forms: Vec<_> = texts.iter().map(|text| form(text).unwrap()).collect();
        assert_eq!(form("{\"b\":18446744073709551615, \"a\":9007199254740993}").as_ref(), forms.get(3));
        forms.sort_unstable();
        forms.dedup();
        assert_eq!(forms.len(), texts.len());
    }

    #[test]
    fn what_two_services_may_read_differently_has_no_form() {
        for text in [
            "",
            "{",
            "{\"a\":1}{",
            "{\"a\":1,\"a\":1}",
            "{\"a\":1,\"\\u0061\":1}",
            "[{\"x\":{\"a\":1,\"b\":2,\"a\":1}}]",
            "1e308",
            "1e400",
            "18446744073709551616",
            "0.1234567890123456789",
            "\"\\ud800\"",
            "\u{feff}{}",
        ] {
            assert_eq!(form(text), None, "{text}");
        }
    }
}
