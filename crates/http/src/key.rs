use bytes::Bytes;
use hapax_core::{Error, ErrorKind, Key};
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use serde_json::{Value, json};
use sfv::{Item, Parser};

use crate::headers::IDEMPOTENCY_KEY;

/// The longest key, in bytes.
const MAX_LEN: usize = 255;

/// Reads the key of a request.
///
/// ```
/// use hapax_core::Key;
/// use hapax_http::{FindKey, KeyMalformed};
/// use http::request::Parts;
///
/// /// The field that an older client sends.
/// fn request_id(parts: &Parts) -> Result<Option<Key>, KeyMalformed> {
///     let Some(id) = parts.headers.get("x-request-id") else { return Ok(None) };
///     Key::new(id.as_bytes()).map(Some).map_err(|error| KeyMalformed(error.to_string()))
/// }
/// # fn is_one(_: impl FindKey) {}
/// # is_one(request_id);
/// ```
pub trait FindKey: Send + Sync + 'static {
    /// The key, or none if the request has none.
    ///
    /// # Errors
    /// When there is a key that cannot be read; answered with 400 `key-malformed` and this reason.
    fn key(&self, parts: &Parts) -> Result<Option<Key>, KeyMalformed>;

    /// Whether the key is in the body. Then [`FindKey::key_of_whole`] is asked once the body has arrived, and `key` never.
    fn is_in_body(&self) -> bool {
        false
    }

    /// The key of a request whose body has arrived whole, or none if the request has none.
    ///
    /// # Errors
    /// As [`FindKey::key`].
    fn key_of_whole(&self, parts: &Parts, _body: &Bytes) -> Result<Option<Key>, KeyMalformed> {
        self.key(parts)
    }

    /// What the policy page says about keys.
    fn published(&self) -> Value {
        json!({ "format": "of the application" })
    }
}

impl<F> FindKey for F
where
    F: Fn(&Parts) -> Result<Option<Key>, KeyMalformed> + Send + Sync + 'static,
{
    fn key(&self, parts: &Parts) -> Result<Option<Key>, KeyMalformed> {
        self(parts)
    }
}

/// A key that cannot be read, and why: the end of a sentence that begins "The idempotency key cannot be read:".
///
/// ```
/// use hapax_core::Key;
/// use hapax_http::KeyMalformed;
///
/// fn key(number: &str) -> Result<Key, KeyMalformed> {
///     number.parse::<u64>().map_err(|_| KeyMalformed(format!("{number:?} is no order number")))?;
///     Key::new(number).map_err(|error| KeyMalformed(error.to_string()))
/// }
/// assert_eq!(key("seven").unwrap_err().0, "\"seven\" is no order number");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyMalformed(pub String);

impl From<&str> for KeyMalformed {
    fn from(why: &str) -> Self {
        Self(why.into())
    }
}

/// The key in exactly one field, `Idempotency-Key` by default: 1 to 255 bytes of visible ASCII.
///
/// ```
/// use hapax_http::{Grammar, KeyField, KeyFormat};
///
/// let as_the_draft_says = KeyField::default().grammar(Grammar::Strict).format(KeyFormat::Uuid);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyField {
    name: HeaderName,
    grammar: Grammar,
    format: KeyFormat,
}

impl Default for KeyField {
    fn default() -> Self {
        Self { name: IDEMPOTENCY_KEY, grammar: Grammar::default(), format: KeyFormat::default() }
    }
}

/// How a key is written.
///
/// ```
/// use hapax_http::{FindKey, Grammar, KeyField};
/// use http::Request;
///
/// let (bare, ()) = Request::post("/").header("idempotency-key", "8e03978e").body(()).unwrap().into_parts();
/// assert!(KeyField::default().grammar(Grammar::Lenient).key(&bare).is_ok());
/// assert!(KeyField::default().grammar(Grammar::Strict).key(&bare).is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grammar {
    /// A quoted structured-field string (RFC 9651), its parameters ignored, or the bare value of letters, digits and `._~:/+=@-`.
    /// `"abc"` and `abc` are the same key.
    #[default]
    Lenient,
    /// The quoted string alone, as the draft wants it.
    Strict,
}

/// What a key must look like, once it is read.
///
/// ```
/// use hapax_http::{FindKey, KeyField, KeyFormat};
/// use http::Request;
///
/// let (short, ()) = Request::post("/").header("idempotency-key", "7").body(()).unwrap().into_parts();
/// assert!(KeyField::default().format(KeyFormat::Any).key(&short).is_ok());
/// assert!(KeyField::default().format(KeyFormat::AtLeast(16)).key(&short).is_err());
/// assert!(KeyField::default().format(KeyFormat::Uuid).key(&short).is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyFormat {
    /// Anything.
    #[default]
    Any,
    /// At least so many bytes, so that it cannot be guessed or met by chance.
    AtLeast(usize),
    /// A UUID in its usual form, in either case. The case counts.
    Uuid,
}

impl KeyField {
    /// Reads the field of this name instead.
    #[must_use]
    pub fn named(mut self, name: HeaderName) -> Self {
        self.name = name;
        self
    }

    /// The name of the field.
    pub fn name(&self) -> &HeaderName {
        &self.name
    }

    /// Reads keys that are written like this.
    #[must_use]
    pub fn grammar(mut self, grammar: Grammar) -> Self {
        self.grammar = grammar;
        self
    }

    /// Takes only keys of this format.
    #[must_use]
    pub fn format(mut self, format: KeyFormat) -> Self {
        self.format = format;
        self
    }

    fn parse(&self, headers: &HeaderMap) -> Result<Option<Key>, KeyMalformed> {
        let mut fields = headers.get_all(&self.name).iter();
        let Some(field) = fields.next() else { return Ok(None) };
        if fields.next().is_some() {
            return Err("the field was sent more than once".into());
        }
        let value = field.as_bytes();
        let key = match self.grammar {
            Grammar::Strict => quoted(value)?,
            Grammar::Lenient if value.first() == Some(&b'"') => quoted(value)?,
            Grammar::Lenient => bare(value)?,
        };
        self.format.key(key).map(Some)
    }
}

impl FindKey for KeyField {
    fn key(&self, parts: &Parts) -> Result<Option<Key>, KeyMalformed> {
        self.parse(&parts.headers)
    }

    fn published(&self) -> Value {
        let grammar = match self.grammar {
            Grammar::Lenient => "lenient",
            Grammar::Strict => "strict",
        };
        let field = if self.name == IDEMPOTENCY_KEY { "Idempotency-Key" } else { self.name.as_str() };
        let (format, least) = self.format.published();
        json!({ "field": field, "grammar": grammar, "format": format, "minLength": least, "maxLength": MAX_LEN })
    }
}

/// The key in a member of a JSON body, a string or a whole number: 1 to 255 bytes of visible ASCII.
///
/// For services whose clients send an id of their own with every request. Every body must be JSON then.
///
/// ```
/// use hapax_http::{JsonKey, KeyFormat};
///
/// let id = JsonKey::at("/payment/id")?.format(KeyFormat::Uuid);
/// # Ok::<(), hapax_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonKey {
    pointer: String,
    format: KeyFormat,
}

impl JsonKey {
    /// Reads the member that this JSON pointer (RFC 6901) leads to.
    ///
    /// # Errors
    /// `Invalid` if it does not begin with a slash.
    pub fn at(pointer: impl Into<String>) -> Result<Self, Error> {
        let pointer = pointer.into();
        if !pointer.starts_with('/') {
            return Err(Error::new(ErrorKind::Invalid, "a JSON pointer begins with a slash, /id for instance"));
        }
        Ok(Self { pointer, format: KeyFormat::default() })
    }

    /// Takes only keys of this format.
    #[must_use]
    pub fn format(mut self, format: KeyFormat) -> Self {
        self.format = format;
        self
    }
}

impl FindKey for JsonKey {
    fn key(&self, _: &Parts) -> Result<Option<Key>, KeyMalformed> {
        Ok(None)
    }

    fn is_in_body(&self) -> bool {
        true
    }

    fn key_of_whole(&self, _: &Parts, body: &Bytes) -> Result<Option<Key>, KeyMalformed> {
        if body.is_empty() {
            return Ok(None);
        }
        let document: Value = serde_json::from_slice(body).map_err(|_| KeyMalformed::from("the body is no JSON"))?;
        let key = match document.pointer(&self.pointer) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(key)) => key.clone(),
            Some(Value::Number(number)) if !number.is_f64() => number.to_string(),
            Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                return Err("it is neither a string nor a whole number".into());
            }
        };
        self.format.key(key.into_bytes()).map(Some)
    }

    fn published(&self) -> Value {
        let (format, least) = self.format.published();
        json!({ "pointer": self.pointer, "format": format, "minLength": least, "maxLength": MAX_LEN })
    }
}

impl KeyFormat {
    fn key(self, key: Vec<u8>) -> Result<Key, KeyMalformed> {
        self.check(&key)?;
        Key::new(key).map_err(|error| KeyMalformed(error.to_string()))
    }

    /// Its name, and the length of the shortest key.
    fn published(self) -> (&'static str, usize) {
        match self {
            Self::Any => ("any", 1),
            Self::AtLeast(least) => ("any", least),
            Self::Uuid => ("uuid", 36),
        }
    }

    fn check(self, key: &[u8]) -> Result<(), KeyMalformed> {
        if !key.iter().all(u8::is_ascii_graphic) {
            return Err("the key has a character outside of visible ASCII".into());
        }
        match (key.len(), self) {
            (0, _) => Err("the key is empty".into()),
            (len, _) if len > MAX_LEN => Err("the key is longer than 255 bytes".into()),
            (len, Self::AtLeast(least)) if len < least => {
                Err(KeyMalformed(format!("the key is shorter than {least} bytes")))
            }
            (_, Self::Uuid) if !is_uuid(key) => Err("the key is no UUID".into()),
            (_, Self::Any | Self::AtLeast(_) | Self::Uuid) => Ok(()),
        }
    }
}

fn is_uuid(key: &[u8]) -> bool {
    let fits = |(place, byte): (usize, &u8)| match place {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    key.len() == 36 && key.iter().enumerate().all(fits)
}

fn quoted(value: &[u8]) -> Result<Vec<u8>, KeyMalformed> {
    let malformed = || KeyMalformed::from("it is not one quoted structured-field string");
    let item: Item = Parser::new(value).parse().map_err(|_| malformed())?;
    let key = item.bare_item.as_string().ok_or_else(malformed)?;
    Ok(key.as_str().as_bytes().to_vec())
}

fn bare(value: &[u8]) -> Result<Vec<u8>, KeyMalformed> {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._~:/+=@-".contains(byte);
    if value.iter().all(allowed) {
        Ok(value.to_vec())
    } else {
        Err("an unquoted key has a character other than letters, digits and ._~:/+=@-; quote it".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn read(field: &KeyField, values: &[&[u8]]) -> Result<Option<Vec<u8>>, KeyMalformed> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
        }
        field.parse(&headers).map(|key| key.map(|key| key.as_bytes().to_vec()))
    }

    fn lenient(values: &[&[u8]]) -> Option<Vec<u8>> {
        read(&KeyField::default(), values).unwrap()
    }

    const BARE: &[u8] = b"8e03978e-40d5-43dd-bc93-6894a57f9324";
    const QUOTED: &[u8] = b"\"8e03978e-40d5-43dd-bc93-6894a57f9324\"";

    #[test]
    fn quoted_and_bare_are_the_same_key() {
        assert_eq!(lenient(&[BARE]).unwrap(), BARE);
        assert_eq!(lenient(&[QUOTED]).unwrap(), BARE);
        assert_eq!(lenient(&[b"\"abc\";v=1"]).unwrap(), b"abc");
        assert_eq!(lenient(&[br#""a\"b\"\\""#]).unwrap(), br#"a"b"\"#);
        assert_eq!(lenient(&[]), None);
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
            b":YWJj:!",
            b"\"tab\there\"",
            &long,
        ];
        for field in fields {
            for grammar in [Grammar::Lenient, Grammar::Strict] {
                let read = read(&KeyField::default().grammar(grammar), &[field]);
                assert!(read.is_err(), "{grammar:?} {:?}", String::from_utf8_lossy(field));
            }
        }
        assert!(read(&KeyField::default(), &[b"a", b"a"]).is_err());
    }

    #[test]
    fn the_strict_grammar_takes_quoted_strings_alone() {
        let strict = KeyField::default().grammar(Grammar::Strict);
        assert_eq!(read(&strict, &[QUOTED]).unwrap().unwrap(), BARE);
        for bare in [BARE, b"abc", b"123", b":YWJj:", b"?1"] {
            assert!(read(&strict, &[bare]).is_err(), "{:?}", String::from_utf8_lossy(bare));
        }
    }

    #[test]
    fn a_format_is_kept() {
        let uuid = KeyField::default().format(KeyFormat::Uuid);
        assert!(read(&uuid, &[QUOTED]).is_ok() && read(&uuid, &[&BARE.to_ascii_uppercase()]).is_ok());
        assert!(read(&uuid, &[b"abc"]).is_err() && read(&uuid, &[&BARE.repeat(2)[..36].to_ascii_lowercase()]).is_ok());
        assert!(read(&uuid, &[b"8e03978e-40d5-43dd-bc93-6894a57f932g"]).is_err());
        let long = KeyField::default().format(KeyFormat::AtLeast(16));
        assert!(read(&long, &[b"0123456789abcdef"]).is_ok() && read(&long, &[b"0123456789abcde"]).is_err());
    }

    #[test]
    fn a_key_of_255_bytes_is_the_longest() {
        assert_eq!(lenient(&[&vec![b'a'; 255]]).unwrap().len(), 255);
    }

    fn in_body(pointer: &str, body: &'static str) -> Result<Option<Vec<u8>>, KeyMalformed> {
        let (parts, ()) = http::Request::new(()).into_parts();
        let key = JsonKey::at(pointer).unwrap().key_of_whole(&parts, &Bytes::from(body));
        key.map(|key| key.map(|key| key.as_bytes().to_vec()))
    }

    #[test]
    fn a_member_of_the_body_can_be_the_key() {
        assert_eq!(in_body("/id", r#"{"id":"abc"}"#).unwrap().unwrap(), b"abc");
        assert_eq!(
            in_body("/a~1b/0/id", r#"{"a/b":[{"id":18446744073709551615}]}"#).unwrap().unwrap(),
            b"18446744073709551615"
        );
        assert_eq!(in_body("/id", "{}").unwrap(), None);
        assert_eq!(in_body("/id", "").unwrap(), None);
        assert_eq!(in_body("/id", r#"{"id":null}"#).unwrap(), None);
        for body in
            ["id=abc", r#"{"id":""}"#, r#"{"id":"a b"}"#, r#"{"id":1.5}"#, r#"{"id":["abc"]}"#, r#"{"id":true}"#]
        {
            assert!(in_body("/id", body).is_err(), "{body}");
        }
        assert!(JsonKey::at("id").is_err() && JsonKey::at("").is_err());
    }
}
