//! `[secrets]`: the secret of the namespace, and the other secrets that are read from files.

use std::path::Path;

use anyhow::bail;
use hapax::Identity;
use http::HeaderValue;
use subtle::ConstantTimeEq;

use crate::config::reader::setting::SettingSpec;
use crate::files;

pub(crate) const TABLE: &str = "secrets";

pub(crate) const SETTINGS: &[SettingSpec] = &[SettingSpec::new(TABLE, "secrets", "HAPAX_SECRETS")
    .key("file")
    .value("FILE")
    .help("File with the secret of the namespace: 32 bytes or 64 hexadecimal digits")
    .details(
        "Ids are derived under the secret, so that keys and payloads cannot be guessed from the store. \
         Use it only for a new namespace: it can neither be changed nor removed later.",
    )];

/// Reads the secret in this file. Neither errors nor logs show it.
pub(crate) fn identity(path: &Path) -> Result<Identity, anyhow::Error> {
    let content = files::read_secret(path)?;
    match parse_secret(&content) {
        Some(secret) => Ok(Identity::keyed(secret)),
        None => bail!(
            "the file holds {} bytes; a secret is 32 bytes or 64 hexadecimal digits: create one with \
             `openssl rand -hex 32`",
            content.len()
        ),
    }
}

/// The token that the admin listener requires. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AdminToken(Vec<u8>);

impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminToken(…)")
    }
}

/// A shorter token could be guessed.
const SHORTEST_TOKEN: usize = 16;

impl AdminToken {
    /// Reads the token in this file and trims white space around it.
    pub(crate) fn read(path: &Path) -> Result<Self, anyhow::Error> {
        let content = files::read_secret(path)?;
        let token = content.trim_ascii();
        if token.len() < SHORTEST_TOKEN || !token.iter().all(u8::is_ascii_graphic) {
            bail!(
                "the file holds no token; it must be {SHORTEST_TOKEN} or more visible characters: \
                 create one with `openssl rand -hex 32`"
            );
        }
        Ok(Self(token.to_vec()))
    }

    /// The field with which a client shows the token.
    pub(crate) fn authorization(&self) -> HeaderValue {
        let field = [b"Bearer ", &self.0[..]].concat();
        let mut value = HeaderValue::try_from(field).expect("a token has visible characters only");
        value.set_sensitive(true);
        value
    }

    /// Whether both are one token.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.is(&other.0)
    }

    /// Compares in constant time, so that the duration of an answer does not reveal a part of the token.
    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        self.0.ct_eq(shown).into()
    }
}

/// Accepts 32 raw bytes, or 64 hexadecimal digits with white space around them.
fn parse_secret(content: &[u8]) -> Option<[u8; 32]> {
    if let Ok(secret) = content.try_into() {
        return Some(secret);
    }
    let digits = content.trim_ascii();
    let mut secret = [0; 32];
    if digits.len() != 2 * secret.len() {
        return None;
    }
    for (byte, pair) in secret.iter_mut().zip(digits.chunks(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_32_bytes_or_64_digits() {
        let raw: [u8; 32] = std::array::from_fn(|place| u8::try_from(place * 7).unwrap());
        let digits: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(parse_secret(&raw), Some(raw));
        assert_eq!(parse_secret(digits.as_bytes()), Some(raw));
        assert_eq!(parse_secret(format!(" {}\n", digits.to_uppercase()).as_bytes()), Some(raw));
        for wrong in [&b""[..], &raw[..31], &[0; 33], &[b'g'; 64], &digits.as_bytes()[..63]] {
            assert_eq!(parse_secret(wrong), None);
        }
    }

    #[test]
    fn only_the_same_token_is_accepted() {
        let token = AdminToken(b"0123456789abcdef".to_vec());
        assert!(token.is(b"0123456789abcdef"));
        for other in [&b""[..], b"0123456789abcde", b"0123456789abcdeg", b"1123456789abcdef", b"0123456789abcdef0"] {
            assert!(!token.is(other), "{other:?}");
        }
        assert_eq!(format!("{token:?}"), "AdminToken(…)");
    }
}
