use hapax_core::Key;
use http::HeaderMap;
use sfv::{Item, Parser};

use crate::problem::Problem;

/// The field that names an operation.
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The longest key, in bytes.
const MAX_LEN: usize = 255;

/// The key of a request: a quoted structured-field string (RFC 9651, parameters ignored), or the bare value itself.
/// `"abc"` and `abc` are the same key.
pub(crate) fn parse(headers: &HeaderMap) -> Result<Key, Problem> {
    let mut fields = headers.get_all(IDEMPOTENCY_KEY).iter();
    let field = fields.next().ok_or(Problem::KeyMissing)?;
    if fields.next().is_some() {
        return Err(Problem::KeyMalformed("the field was sent more than once"));
    }
    let value = field.as_bytes();
    let key = if value.first() == Some(&b'"') { quoted(value)? } else { bare(value)? };
    if !key.iter().all(u8::is_ascii_graphic) {
        return Err(Problem::KeyMalformed("the key has a character outside of visible ASCII"));
    }
    match key.len() {
        0 => Err(Problem::KeyMalformed("the key is empty")),
        1..=MAX_LEN => Key::new(key).map_err(|_| Problem::KeyMalformed("the key is too long")),
        _ => Err(Problem::KeyMalformed("the key is longer than 255 bytes")),
    }
}

fn quoted(value: &[u8]) -> Result<Vec<u8>, Problem> {
    let malformed = || Problem::KeyMalformed("the quoted key is not one structured-field string");
    let item: Item = Parser::new(value).parse().map_err(|_| malformed())?;
    let key = item.bare_item.as_string().ok_or_else(malformed)?;
    Ok(key.as_str().as_bytes().to_vec())
}

fn bare(value: &[u8]) -> Result<Vec<u8>, Problem> {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._~:/+=@-".contains(byte);
    if value.iter().all(allowed) {
        Ok(value.to_vec())
    } else {
        Err(Problem::KeyMalformed("an unquoted key has a character other than letters, digits and ._~:/+=@-; quote it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn parsed(fields: &[&[u8]]) -> Result<Vec<u8>, Problem> {
        let mut headers = HeaderMap::new();
        for field in fields {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(field).unwrap());
        }
        parse(&headers).map(|key| key.as_bytes().to_vec())
    }

    #[test]
    fn quoted_and_bare_are_the_same_key() {
        let bare = b"8e03978e-40d5-43dd-bc93-6894a57f9324";
        let quoted = b"\"8e03978e-40d5-43dd-bc93-6894a57f9324\"";
        assert_eq!(parsed(&[bare]).unwrap(), bare);
        assert_eq!(parsed(&[quoted]).unwrap(), bare);
        assert_eq!(parsed(&[b"\"abc\";v=1"]).unwrap(), b"abc");
        assert_eq!(parsed(&[br#""a\"b\"\\""#]).unwrap(), br#"a"b"\"#);
    }

    #[test]
    fn every_malformed_form_is_refused() {
        let long = vec![b'a'; 256];
        let fields: &[&[u8]] = &[
            b"",
            b"\"\"",
            b"\"abc",
            b"abc\"",
            b"\"abc\" x",
            b"\"a\", \"b\"",
            b"a, b",
            b"a,b",
            b"a b",
            b"\" \"",
            b"\"a b\"",
            b"(\"a\")",
            b"\"caf\xc3\xa9\"",
            b"caf\xc3\xa9",
            b"\"a\\x\"",
            b"a;b",
            b"?1",
            b"\"tab\there\"",
            &long,
        ];
        for field in fields {
            assert!(matches!(parsed(&[field]), Err(Problem::KeyMalformed(_))), "{:?}", String::from_utf8_lossy(field));
        }
        assert!(matches!(parsed(&[b"a", b"a"]), Err(Problem::KeyMalformed(_))));
        assert!(matches!(parsed(&[]), Err(Problem::KeyMissing)));
    }

    #[test]
    fn a_key_of_255_bytes_is_the_longest() {
        assert_eq!(parsed(&[&vec![b'a'; 255]]).unwrap().len(), 255);
    }
}
