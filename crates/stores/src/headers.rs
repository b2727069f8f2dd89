//! Headers of a message as JSON, so that people can read them: a list of pairs. A value that is no text is in
//! hexadecimal digits.

use std::fmt::Write;

use hapax_core::broker::Headers;
use hapax_core::{Error, ErrorKind, Result};
use serde_json::{Value, json};

/// The name of the pair that has what a letter needs beside its columns. A release without it reads a header with this
/// name and no value, so that two releases can share a table.
const EXTRAS: &str = "Hapax-Dead-Letter";

pub(crate) fn encode(headers: &Headers) -> String {
    encode_with(headers, None)
}

/// The headers, and behind them what else is kept. A message cannot have such a pair.
pub(crate) fn encode_with(headers: &Headers, extras: Option<Value>) -> String {
    let pair = |(name, value): (&str, &bytes::Bytes)| match std::str::from_utf8(value) {
        Ok(text) => json!([name, text]),
        Err(_) => json!([name, { "hex": hexadecimal(value) }]),
    };
    let extras = extras.map(|extras| json!([EXTRAS, { "hex": "", "letter": extras }]));
    Value::Array(headers.iter().map(pair).chain(extras).collect()).to_string()
}

pub(crate) fn decode(text: &str) -> Result<Headers> {
    decode_with(text).map(|(headers, _)| headers)
}

/// The headers, and what else is kept.
pub(crate) fn decode_with(text: &str) -> Result<(Headers, Option<Value>)> {
    let pairs: Vec<(String, Value)> = serde_json::from_str(text).map_err(|error| damaged().caused_by(error))?;
    let (mut headers, mut extras) = (Headers::default(), None);
    for (name, mut value) in pairs {
        if let Some(letter) = value.get_mut("letter") {
            extras = Some(letter.take());
            continue;
        }
        let bytes = match value.as_str() {
            Some(text) => text.to_owned().into_bytes(),
            None => value.get("hex").and_then(Value::as_str).and_then(bytes_of).ok_or_else(damaged)?,
        };
        headers.push(name, bytes);
    }
    Ok((headers, extras))
}

fn damaged() -> Error {
    Error::new(ErrorKind::Damaged, "the headers of a stored message cannot be decoded")
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes_of(hexadecimal: &str) -> Option<Vec<u8>> {
    if !hexadecimal.len().is_multiple_of(2) || !hexadecimal.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = hexadecimal.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_any_bytes_survive_and_text_stays_readable() {
        let mut headers = Headers::default();
        headers.push("Idempotency-Key", "order \"7\" \u{0} \u{e4}");
        headers.push("binary", vec![0_u8, 0xff, 0x80]);
        headers.push("binary", "");
        let text = encode(&headers);
        assert!(text.contains(r#"["binary",{"hex":"00ff80"}]"#), "{text}");
        assert!(!text.contains('\u{0}'), "PostgreSQL stores no NUL in a text");
        assert_eq!(decode(&text).unwrap(), headers);
    }

    #[test]
    fn what_is_kept_beside_headers_is_none_of_them_and_an_earlier_release_reads_a_header_without_a_value() {
        let headers: Headers = [(EXTRAS, "{\"cause\":\"forged\"}"), ("letter", "a")].into_iter().collect();
        let text = encode_with(&headers, Some(json!({ "cause": "late" })));
        assert_eq!(decode_with(&text).unwrap(), (headers.clone(), Some(json!({ "cause": "late" }))));
        assert_eq!(decode_with(&encode(&headers)).unwrap(), (headers, None));
        let pairs: Vec<(String, Value)> = serde_json::from_str(&text).unwrap();
        assert_eq!(pairs[2].1["hex"], "", "earlier releases read this member only");
    }

    #[test]
    fn damaged_headers_are_an_error() {
        for text in ["", "{}", "[[1,2]]", r#"[["a",{"hex":"zz"}]]"#, r#"[["a",{"hex":"012"}]]"#, r#"[["a",null]]"#] {
            let decoded = decode(text);
            assert!(decoded.is_err(), "{text}: {decoded:?}");
        }
    }
}
