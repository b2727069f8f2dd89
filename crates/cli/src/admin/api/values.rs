//! Times, bytes and text as the API, its commands and the audit file have them.

use std::fmt;
use std::time::{Duration, SystemTime};

use hapax::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Serializes a value as its text.
pub(crate) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'a, T: FromStr<Err: Display>, D: Deserializer<'a>>(from: D) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(Error::custom)
    }
}

/// As [`text`], for a value that may be missing.
pub(crate) mod optional_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::{Serialize, Serializer};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(ToString::to_string).serialize(serializer)
    }

    pub(crate) fn deserialize<'a, T: FromStr<Err: Display>, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(Error::custom)).transpose()
    }
}

/// The id of a row of an outbox. One that exceeds 64 bits, as in Spanner, is a string of digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowNumber(pub(crate) u128);

impl fmt::Display for RowNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for RowNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match u64::try_from(self.0) {
            Ok(number) => serializer.serialize_u64(number),
            Err(_) => serializer.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for RowNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum NumberOrDigits {
            Number(u64),
            Digits(String),
        }
        match NumberOrDigits::deserialize(deserializer)? {
            NumberOrDigits::Number(number) => Ok(Self(number.into())),
            NumberOrDigits::Digits(digits) => digits.parse().map(Self).map_err(serde::de::Error::custom),
        }
    }
}

/// Text as a string, and other bytes as `{"hex": digits}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub(crate) enum TextOrHex {
    Text(String),
    Hex { hex: String },
}

impl TextOrHex {
    /// # Errors
    /// If the digits are none.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, &'static str> {
        match self {
            Self::Text(text) => Ok(text.clone().into_bytes()),
            Self::Hex { hex } => unhex(hex).ok_or("write an even number of hexadecimal digits"),
        }
    }
}

impl From<&[u8]> for TextOrHex {
    fn from(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).map(|text| Self::Text(text.to_owned()));
        text.unwrap_or_else(|_| Self::Hex { hex: hexadecimal(bytes) })
    }
}

/// The names and values of header fields.
pub(crate) fn shown_headers<N: AsRef<str>, V: AsRef<[u8]>>(
    headers: impl IntoIterator<Item = (N, V)>,
) -> Vec<(String, TextOrHex)> {
    let shown = |(name, value): (N, V)| (name.as_ref().to_owned(), value.as_ref().into());
    headers.into_iter().map(shown).collect()
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads hexadecimal digits.
pub(crate) fn unhex(digits: &str) -> Option<Vec<u8>> {
    let is_whole = digits.len().is_multiple_of(2) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = |place| u8::from_str_radix(&digits[place..place + 2], 16).ok();
    is_whole.then(|| (0..digits.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>())?
}

/// The time in the form of RFC 3339, in milliseconds.
pub(crate) fn time(time: Timestamp) -> String {
    humantime::format_rfc3339_millis(system_time(time)).to_string()
}

/// The time in the form of RFC 3339, in microseconds, so that a command which gets it back means the same time.
pub(crate) fn exact_time(time: Timestamp) -> String {
    humantime::format_rfc3339_micros(system_time(time)).to_string()
}

pub(crate) fn system_time(time: Timestamp) -> SystemTime {
    // A time that the system cannot express is damaged; the largest one shows that.
    let largest = Duration::from_secs(253_402_300_799);
    SystemTime::UNIX_EPOCH + time.since(Timestamp(0)).min(largest)
}

/// The time of a clock of this host.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
