use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::broker::{DeadReason, Message};
use crate::error::{Error, Result};
use crate::key::{Identity, Rule};
use crate::worker::identity::json::JsonPayload;
use crate::worker::identity::{cloud_event, coordinates_key, invalid, join};

/// Where the key of a message is.
///
/// As text: `header:NAME`, `cloudevents`, `json:/pointer`, `coordinates`, or `payload-hash:BUCKET[;/pointer…]` with a
/// bucket such as `10s`, `5m`, `1h` or `1d`. A comma would end the rule in a list of rules.
///
/// ```
/// use hapax::worker::KeyRule;
///
/// assert!("payload-hash:1h;/sent_at".parse::<KeyRule>().is_ok());
/// assert!("header:".parse::<KeyRule>().is_err() && "payload-hash".parse::<KeyRule>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRule {
    /// The value of this header. Two headers of this name with different values are malformed.
    Header(Arc<str>),
    /// Source and id of a CloudEvent, from its headers or from its JSON.
    CloudEvents,
    /// The text or number at this JSON pointer.
    Json(Arc<str>),
    /// The coordinates of the message at its broker. A copy that a producer sends again has others.
    Coordinates,
    /// A hash of the payload's canonical JSON (RFC 8785) and of the time at which the broker got the message. Two equal
    /// payloads within a bucket are the same operation, whatever their producer meant.
    PayloadHash(Bucket),
}

/// How a key is made from a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The length of the spans of time, in the broker's clock.
    pub length: Duration,
    /// JSON pointers to what does not count, for instance the time at which the message was sent.
    pub without: Arc<[Box<str>]>,
}

impl KeyRule {
    /// The bytes of the key. None if the message has no key under this rule.
    pub(super) fn find(
        &self,
        message: &Message,
        payload: &JsonPayload<'_>,
        identity: &Identity,
    ) -> Result<Option<Vec<u8>>, DeadReason> {
        match self {
            Self::Header(name) => Ok(one_header(message, &[name])?.map(<[u8]>::to_vec)),
            Self::CloudEvents => cloud_event::key(message, payload),
            Self::Json(pointer) => payload.text_at(pointer),
            Self::Coordinates => {
                Ok(message.coordinates.as_ref().map(|coordinates| coordinates_key(coordinates, message.timestamp)))
            }
            Self::PayloadHash(bucket) => bucket.key(message, payload, identity),
        }
    }

    /// Whether the payloads of two messages with one key are compared unless a user says otherwise.
    pub(super) const fn compares_payloads(&self) -> bool {
        match self {
            Self::Header(_) | Self::CloudEvents | Self::Json(_) => true,
            Self::Coordinates | Self::PayloadHash(_) => false,
        }
    }
}

impl Bucket {
    /// None if the payload is no JSON, or the broker has no time for the message.
    fn key(
        &self,
        message: &Message,
        payload: &JsonPayload<'_>,
        identity: &Identity,
    ) -> Result<Option<Vec<u8>>, DeadReason> {
        let Some((timestamp, canonical)) = message.timestamp.zip(payload.canonical(&self.without)?) else {
            return Ok(None);
        };
        let length = u64::try_from(self.length.as_micros()).unwrap_or(u64::MAX).max(1);
        let bucket = timestamp.0 / length;
        let hash = identity.fingerprint(Rule::NONE, &[&canonical]);
        Ok(Some(join(&[hash.as_bytes(), &length.to_be_bytes(), &bucket.to_be_bytes()])))
    }
}

impl FromStr for KeyRule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, argument) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        match (name, argument) {
            ("header", Some(name)) if !name.is_empty() => Ok(Self::Header(name.into())),
            ("cloudevents", None) => Ok(Self::CloudEvents),
            ("json", Some(pointer)) if pointer.starts_with('/') => Ok(Self::Json(pointer.into())),
            ("coordinates", None) => Ok(Self::Coordinates),
            ("payload-hash", Some(bucket)) => Ok(Self::PayloadHash(bucket.parse()?)),
            _ => Err(invalid(format!(
                "`{text}` is no rule for keys; use header:NAME, cloudevents, json:/pointer, coordinates or \
                 payload-hash:BUCKET[;/pointer]"
            ))),
        }
    }
}

impl FromStr for Bucket {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(';');
        let length = parts.next().and_then(duration).filter(|length| !length.is_zero());
        let without: Arc<[Box<str>]> = parts.map(Box::from).collect();
        match length {
            Some(length) if without.iter().all(|pointer| pointer.starts_with('/')) => Ok(Self { length, without }),
            _ => {
                Err(invalid(format!("`{text}` is no bucket; write a time such as 1h, then pointers such as ;/sent_at")))
            }
        }
    }
}

/// A number of seconds, minutes, hours or days.
fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return None,
    };
    Some(Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(seconds)?))
}

/// The value of the header with one of these names. Several with one value are one, since a bridge may have copied the
/// header.
pub(super) fn one_header<'m>(message: &'m Message, names: &[&str]) -> Result<Option<&'m [u8]>, DeadReason> {
    let is_named = |name: &str| names.iter().any(|other| other.eq_ignore_ascii_case(name));
    let mut values = message.headers.iter().filter(|(name, _)| is_named(name)).map(|(_, value)| &value[..]);
    let Some(first) = values.next() else { return Ok(None) };
    if values.all(|value| value == first) { Ok(Some(first)) } else { Err(DeadReason::KeyMalformed) }
}
