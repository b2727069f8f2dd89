//! Headers of a message as JSON, so that people can read them: a list of pairs. A value that is no text is in
//! hexadecimal digits.

use std::fmt::Write;

use hapax_core::broker::Headers;
use hapax_core::{Error, ErrorKind, Result};
use serde_json::{Value, json};

pub(crate) fn encode(headers: &Headers) -> String {
    let pair = |(name, value): (&str, &bytes::Bytes)| match std::str::from_utf8(value) {
        Ok(text) => json!([name, text]),
        Err(_) => json!([name, { "hex": hexadecimal(value) }]),
    };
    Value::Array(headers.iter().map(pair).collect()).to_string()
}

pub(crate) fn decode(text: &str) -> Result<Headers> {
    let pairs: Vec<(String, Value)> = serde_json::from_str(text).map_err(|error| damaged().caused_by(error))?;
    let decoded = pairs.into_iter().map(|(name, value)| {
        let bytes = match value.as_str() {
            Some(text) => text.to_owned().into_bytes(),
            None => value.get("hex").and_then(Value::as_str).and_then(bytes_of).ok_or_else(damaged)?,
        };
        Ok((name, bytes))
    });
    decoded.collect::<Result<Headers>>()
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
    fn damaged_headers_are_an_error() {
        for text in ["", "{}", "[[1,2]]", r#"[["a",{"hex":"zz"}]]"#, r#"[["a",{"hex":"012"}]]"#, r#"[["a",null]]"#] {
            let decoded = decode(text);
            assert!(decoded.is_err(), "{text}: {decoded:?}");
        }
    }
}
