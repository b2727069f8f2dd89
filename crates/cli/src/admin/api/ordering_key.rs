use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::admin::api::values::{hexadecimal, unhex};

/// An ordering key on the command line. It is any bytes: plain text is itself, and everything else is `hex:` and its
/// digits. Each key has one form, and each form is one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OrderingKey(Bytes);

const HEXADECIMAL: &str = "hex:";

impl OrderingKey {
    pub(crate) fn new(key: Bytes) -> Self {
        Self(key)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key as text, if a terminal shows all of it and a command takes it back.
    fn plain_text(&self) -> Option<&str> {
        let text = std::str::from_utf8(&self.0).ok()?;
        // Others may be invisible, look like a neighbour, or change the direction of the line.
        let is_shown = |letter: char| letter == ' ' || letter.is_ascii_graphic() || letter.is_alphanumeric();
        let is_plain = !text.is_empty() && text.chars().all(is_shown) && text.trim() == text;
        (is_plain && !text.starts_with('-') && !text.starts_with(HEXADECIMAL)).then_some(text)
    }
}

impl fmt::Display for OrderingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.plain_text() {
            Some(text) => f.write_str(text),
            None => write!(f, "{HEXADECIMAL}{}", hexadecimal(&self.0)),
        }
    }
}

impl FromStr for OrderingKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(digits) = text.strip_prefix(HEXADECIMAL) else {
            return Ok(Self(Bytes::copy_from_slice(text.as_bytes())));
        };
        let wrong = || format!("write an even number of hexadecimal digits behind {HEXADECIMAL}");
        unhex(digits).map(|bytes| Self(bytes.into())).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_printed_in_one_form_that_is_read_back() {
        for (key, form) in [
            (&b"account-7"[..], "account-7"),
            ("Zürich 7".as_bytes(), "Zürich 7"),
            (b"hex:00", "hex:6865783a3030"),
            (b"--all", "hex:2d2d616c6c"),
            (b" a", "hex:2061"),
            (b"a\nb", "hex:610a62"),
            ("a\u{202e}b".as_bytes(), "hex:61e280ae62"),
            (&[0xff, 0x00], "hex:ff00"),
            (b"", "hex:"),
        ] {
            let key = OrderingKey::new(Bytes::copy_from_slice(key));
            assert_eq!(key.to_string(), form);
            assert_eq!(form.parse(), Ok(key), "{form}");
        }
        for wrong in ["hex:0", "hex:0g", "hex:ü"] {
            assert!(wrong.parse::<OrderingKey>().is_err(), "{wrong}");
        }
    }
}
