use bytes::Bytes;
use hapax_core::{Error, ErrorKind, Key};
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use serde_json::{Value, json};
use sfv::{Item, Parser};

use crate::headers::IDEMPOTENCY_KEY;

/// The length of the longest key, in bytes.
const MAX_LEN: usize = 255;

/// A character of a structured-field string (RFC 9651, 3.3.3), as a regular expression.
const PRINTABLE: &str = "[ -~]";

/// A character of a key without quotes, as a regular expression.
const BARE: &str = "[A-Za-z0-9._~:/+=@-]";

/// Finds the key of a request.
///
/// ```
/// use hapax::Key;
/// use hapax::http::{FindKey, KeyMalformed};
/// use http::request::Parts;
///
/// /// Older clients send their key in this field.
/// fn request_id(parts: &Parts) -> Result<Option<Key>, KeyMalformed> {
///     let Some(id) = parts.headers.get("x-request-id") else { return Ok(None) };
///     Ok(Some(Key::new(id.as_bytes())?))
/// }
/// # fn is_one(_: impl FindKey) {}
/// # is_one(request_id);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find keys",
    label = "does not implement `FindKey`",
    note = "pass a `KeyField`, a `JsonKey`, or a closure `|parts: &Parts| -> Result<Option<Key>, KeyMalformed>`"
)]
pub trait FindKey: Send + Sync + 'static {
    /// The key in the head of a request. `None` if the request has no key.
    ///
    /// # Errors
    /// Fails if the request has a key that cannot be read. The response is 400 `key-malformed` with this reason.
    fn key(&self, parts: &Parts) -> Result<Option<Key>, KeyMalformed>;

    /// Whether the key is in the body. If so, the layer calls [`FindKey::key_in_body`] with the whole body, and never
    /// `key`.
    fn is_in_body(&self) -> bool {
        false
    }

    /// The key in a request with its whole body. `None` if the request has no key.
    ///
    /// # Errors
    /// Fails like [`FindKey::key`].
    fn key_in_body(&self, parts: &Parts, _body: &Bytes) -> Result<Option<Key>, KeyMalformed> {
        self.key(parts)
    }

    /// Where a client puts its key. The text completes the sentence "Send a new random one, for instance a UUID, in
    /// ...", which a client without a key reads.
    fn place(&self) -> String {
        "the place that the policy page names".into()
    }

    /// The member `key` of the policy page.
    fn describe(&self) -> Value {
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

/// A key that cannot be read. The text is the reason, and completes the sentence "The idempotency key cannot be read:
/// ...".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyMalformed(pub String);

impl From<Error> for KeyMalformed {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

impl From<&str> for KeyMalformed {
    fn from(why: &str) -> Self {
        Self(why.into())
    }
}

/// The key in exactly one field, `Idempotency-Key` by default: 1 to 255 bytes of printable ASCII. A space needs quotes.
///
/// ```
/// use hapax::http::{Grammar, KeyField, KeyFormat};
///
/// let as_in_the_draft = KeyField::default().grammar(Grammar::Strict).format(KeyFormat::Uuid);
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

/// The syntax of a key in a header field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grammar {
    /// A quoted structured-field string (RFC 9651) whose parameters are ignored, or a bare value of letters, digits and
    /// `._~:/+=@-`. `"abc"` and `abc` are the same key.
    #[default]
    Lenient,
    /// Only the quoted string, as the draft requires.
    Strict,
}

/// The format that a key must have after it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyFormat {
    /// Any key.
    #[default]
    Any,
    /// At least this many bytes, so that a key is hard to guess and two clients do not choose the same one by chance.
    AtLeast(usize),
    /// A UUID with hyphens, in upper or lower case. A key keeps its case: the same UUID in another case is another key.
    Uuid,
}

impl KeyField {
    /// Reads the key from the field of this name.
    #[must_use]
    pub fn in_field(mut self, name: HeaderName) -> Self {
        self.name = name;
        self
    }

    /// The name of the field.
    pub fn name(&self) -> &HeaderName {
        &self.name
    }

    /// Reads keys of this syntax.
    #[must_use]
    pub fn grammar(mut self, grammar: Grammar) -> Self {
        self.grammar = grammar;
        self
    }

    /// Refuses keys of another format.
    #[must_use]
    pub fn format(mut self, format: KeyFormat) -> Self {
        self.format = format;
        self
    }

    /// The name as documents write it.
    fn shown_name(&self) -> &str {
        if self.name == IDEMPOTENCY_KEY { "Idempotency-Key" } else { self.name.as_str() }
    }

    fn parse(&self, headers: &HeaderMap) -> Result<Option<Key>, KeyMalformed> {
        let mut fields = headers.get_all(&self.name).iter();
        let Some(field) = fields.next() else { return Ok(None) };
        // With two fields, a proxy and this layer could pick different keys (H4).
        if fields.next().is_some() {
            return Err("the field was sent more than once".into());
        }
        let value = field.as_bytes();
        let key = match self.grammar {
            Grammar::Strict => parse_quoted(value)?,
            Grammar::Lenient if value.first() == Some(&b'"') => parse_quoted(value)?,
            Grammar::Lenient => parse_bare(value)?,
        };
        self.format.into_key(key).map(Some)
    }
}

impl FindKey for KeyField {
    fn key(&self, parts: &Parts) -> Result<Option<Key>, KeyMalformed> {
        self.parse(&parts.headers)
    }

    fn place(&self) -> String {
        format!("one {} field", self.shown_name())
    }

    fn describe(&self) -> Value {
        let grammar = match self.grammar {
            Grammar::Lenient => "lenient",
            Grammar::Strict => "strict",
        };
        let (format, least) = self.format.describe();
        let bare = match self.grammar {
            Grammar::Lenient => json!(BARE),
            Grammar::Strict => Value::Null,
        };
        json!({
            "field": self.shown_name(),
            "grammar": grammar,
            "format": format,
            "minLength": least,
            "maxLength": MAX_LEN,
            // Each is one character of a key in this form, as a regular expression.
            "quoted": PRINTABLE,
            "bare": bare,
        })
    }
}

/// The key in a member of a JSON body, a string or a whole number: 1 to 255 bytes of printable ASCII.
///
/// For services whose clients already send an id in each request. The body of every protected request must be JSON.
///
/// ```
/// use hapax::http::{JsonKey, KeyFormat};
///
/// let id = JsonKey::at("/payment/id")?.format(KeyFormat::Uuid);
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonKey {
    pointer: String,
    format: KeyFormat,
}

impl JsonKey {
    /// Reads the member at this JSON pointer (RFC 6901).
    ///
    /// # Errors
    /// `Invalid` if the pointer does not begin with a slash.
    pub fn at(pointer: impl Into<String>) -> Result<Self, Error> {
        let pointer = pointer.into();
        if !pointer.starts_with('/') {
            return Err(Error::new(ErrorKind::Invalid, "a JSON pointer begins with a slash, /id for instance"));
        }
        Ok(Self { pointer, format: KeyFormat::default() })
    }

    /// Refuses keys of another format.
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

    fn key_in_body(&self, _: &Parts, body: &Bytes) -> Result<Option<Key>, KeyMalformed> {
        if body.is_empty() {
            return Ok(None);
        }
        let document: Value = serde_json::from_slice(body).map_err(|_| KeyMalformed::from("the body is not JSON"))?;
        let key = match document.pointer(&self.pointer) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(key)) => key.clone(),
            // Other numbers are rounded when they are parsed, so two of them could become one key.
            Some(Value::Number(number)) if !number.is_f64() => number.to_string(),
            Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                return Err("the member is neither a string nor an integer".into());
            }
        };
        self.format.into_key(key.into_bytes()).map(Some)
    }

    fn place(&self) -> String {
        format!("the member {} of the JSON body", self.pointer)
    }

    fn describe(&self) -> Value {
        let (format, least) = self.format.describe();
        json!({
            "pointer": self.pointer,
            "format": format,
            "minLength": least,
            "maxLength": MAX_LEN,
            "characters": PRINTABLE,
        })
    }
}

impl KeyFormat {
    fn into_key(self, key: Vec<u8>) -> Result<Key, KeyMalformed> {
        self.check(&key)?;
        Key::new(key).map_err(|error| KeyMalformed(error.to_string()))
    }

    /// The name on the policy page, and the length of the shortest key.
    fn describe(self) -> (&'static str, usize) {
        match self {
            Self::Any => ("any", 1),
            Self::AtLeast(least) => ("any", least),
            Self::Uuid => ("uuid", 36),
        }
    }

    fn check(self, key: &[u8]) -> Result<(), KeyMalformed> {
        if !key.iter().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err("the key has a character outside of printable ASCII".into());
        }
        match (key.len(), self) {
            (0, _) => Err("the key is empty".into()),
            (len, _) if len > MAX_LEN => Err("the key is longer than 255 bytes".into()),
            (len, Self::AtLeast(least)) if len < least => {
                Err(KeyMalformed(format!("the key is shorter than {least} bytes")))
            }
            (_, Self::Uuid) if !is_uuid(key) => Err("the key is not a UUID".into()),
            (_, Self::Any | Self::AtLeast(_) | Self::Uuid) => Ok(()),
        }
    }
}

fn is_uuid(key: &[u8]) -> bool {
    let is_expected = |(index, byte): (usize, &u8)| match index {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    key.len() == 36 && key.iter().enumerate().all(is_expected)
}

fn parse_quoted(value: &[u8]) -> Result<Vec<u8>, KeyMalformed> {
    let malformed = || KeyMalformed::from("the field is not one quoted structured-field string");
    let item: Item = Parser::new(value).parse().map_err(|_| malformed())?;
    // Parameters of the item are ignored (H2).
    let key = item.bare_item.as_string().ok_or_else(malformed)?;
    Ok(key.as_str().as_bytes().to_vec())
}

fn parse_bare(value: &[u8]) -> Result<Vec<u8>, KeyMalformed> {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._~:/+=@-".contains(byte);
    if value.iter().all(is_allowed) {
        Ok(value.to_vec())
    } else {
        Err("an unquoted key may hold only letters, digits and ._~:/+=@-; put the key in double quotes".into())
    }
}

#[cfg(test)]
mod tests;
