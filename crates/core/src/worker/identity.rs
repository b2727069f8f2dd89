//! Which operation a message is: its key, its tenant and the fingerprint of its payload.
//!
//! ```text
//! key_rule.rs  where a key is: the rules, and their text
//! tenant.rs    where the tenant is
//! cloud_event.rs  events of CloudEvents: key and data
//! received.rs  the operation and fingerprint that a producer sent
//! json.rs      JSON payloads: pointers, canonical form
//! ```

mod cloud_event;
mod json;
mod key_rule;
mod received;
mod tenant;

use std::sync::Arc;

use crate::broker::{Coordinates, DeadLetterId, DeadReason, Message, Position};
use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::key::{Fingerprint, Identity, Key, OperationId, RecordKey, Rule, Scope};
use crate::ledger::Call;
use crate::record::Timestamp;
use cloud_event::EventData;
use json::JsonPayload;

pub use key_rule::{Bucket, KeyRule};
pub use tenant::TenantRule;

/// The rule number of the fingerprint of a message: payload and content type.
pub const MESSAGE_RULE: Rule = Rule(64);

/// The rule number of the fingerprint of a CloudEvent whose key is from its attributes: its data, in either mode.
pub const EVENT_RULE: Rule = Rule(65);

/// Headers of RabbitMQ that tell the number of a delivery, so that each delivery of a message has other values.
const COUNTERS: [&str; 2] = ["x-delivery-count", "x-acquired-count"];

/// How a worker identifies messages.
///
/// ```
/// use hapax::broker::{DeadReason, Headers, Message};
/// use hapax::worker::{KeyRule, MessageIdentity};
///
/// let identity = MessageIdentity::new("billing")?.keys(vec!["header:order-id".parse()?]);
/// let headers: Headers = [("Order-Id", "order-7")].into_iter().collect();
/// let message = Message { headers, ..Message::default() };
/// assert_eq!(identity.identify(&message).map(|found| found.key.as_bytes().to_vec()), Ok(b"order-7".to_vec()));
/// assert_eq!(identity.identify(&Message::default()).unwrap_err(), DeadReason::KeyMissing);
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MessageIdentity {
    identity: Identity,
    namespace: Arc<str>,
    keys: Vec<KeyRule>,
    tenant: TenantRule,
    fingerprint: Option<bool>,
    trusts_operation: bool,
}

/// What a message is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentifiedMessage {
    /// The operation, and the fingerprint of the payload.
    pub call: Call,
    /// The key.
    pub key: Key,
    /// The record key of the key in its scope.
    pub record_key: RecordKey,
}

impl MessageIdentity {
    /// Keys from the header `Idempotency-Key`, else from the attributes of a CloudEvent; no tenants; received
    /// operations are not trusted. The namespace is that of the service or the consumer group.
    ///
    /// # Errors
    /// `Invalid` if the namespace is empty, longer than 255 bytes, or begins with `hapax/`, which is reserved.
    pub fn new(namespace: &str) -> Result<Self> {
        // The terms of a ledger have the same limits.
        let terms = crate::ledger::Terms::new(namespace)?;
        let namespace =
            if Mutant::WorkerNamespaceIgnored.is_on() { "all".into() } else { Arc::clone(terms.namespace()) };
        Ok(Self {
            identity: Identity::plain(),
            namespace,
            keys: vec![KeyRule::Header("idempotency-key".into()), KeyRule::CloudEvents],
            tenant: TenantRule::None,
            fingerprint: None,
            trusts_operation: false,
        })
    }

    /// Looks for the key under these rules, in this order. The first one that finds a key wins.
    #[must_use]
    pub fn keys(mut self, rules: Vec<KeyRule>) -> Self {
        self.keys = rules;
        self
    }

    /// Where the tenant of a message is.
    #[must_use]
    pub fn tenant(mut self, rule: TenantRule) -> Self {
        self.tenant = rule;
        self
    }

    /// Derives operations under this identity.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Whether payloads are compared. By default they are, except under keys from coordinates and payload hashes: a
    /// payload hash identifies the payload, and coordinates identify the message.
    #[must_use]
    pub fn fingerprint(mut self, is_compared: bool) -> Self {
        self.fingerprint = Some(is_compared);
        self
    }

    /// Takes the operation and the fingerprint from the headers `Hapax-Operation` and `Hapax-Fingerprint`, if a message
    /// has them. Only for topics whose producers are all trusted: whoever sends an operation decides what counts as the
    /// same.
    #[must_use]
    pub fn trust_operation(mut self) -> Self {
        self.trusts_operation = true;
        self
    }

    /// The namespace.
    pub fn namespace(&self) -> &Arc<str> {
        &self.namespace
    }

    /// Identifies a message.
    ///
    /// # Errors
    /// Why it cannot be identified: `Unreadable`, `KeyMissing`, `KeyMalformed` or `CallerUnknown`.
    pub fn identify(&self, message: &Message) -> Result<IdentifiedMessage, DeadReason> {
        if message.damage.is_some() {
            return Err(DeadReason::Unreadable);
        }
        let payload = JsonPayload::new(&message.payload);
        let scope = self.scope(message, &payload)?;
        if self.trusts_operation
            && let Some(call) = received::call(message)?
        {
            let key = Key::new(call.operation().to_string()).map_err(|_| DeadReason::KeyMalformed)?;
            return Ok(IdentifiedMessage { call, record_key: self.identity.record_key(&scope, &key), key });
        }
        for rule in &self.keys {
            let Some(found) = rule.find(message, &payload, &self.identity)? else {
                continue;
            };
            let key = Key::new(found).map_err(|_| DeadReason::KeyMalformed)?;
            let record_key = self.identity.record_key(&scope, &key);
            let mut call = Call::new(record_key.operation());
            if self.fingerprint.unwrap_or(rule.compares_payloads()) {
                call = self.compared(call, rule, message, &payload);
            }
            return Ok(IdentifiedMessage { call, key, record_key });
        }
        Err(DeadReason::KeyMissing)
    }

    /// The call with the fingerprint of a message whose key was found under this rule.
    fn compared(&self, call: Call, rule: &KeyRule, message: &Message, payload: &JsonPayload<'_>) -> Call {
        let whole = self.fingerprint_of(message);
        let event = if *rule == KeyRule::CloudEvents { EventData::of(message, payload) } else { None };
        match event {
            Some(data) => call.fingerprint(self.identity.fingerprint(EVENT_RULE, &data.parts())).or_older(whole),
            None => call.fingerprint(whole),
        }
    }

    /// The fingerprint of a message: payload and content type, never its coordinates.
    fn fingerprint_of(&self, message: &Message) -> Fingerprint {
        let content_type = message.headers.all("content-type").next();
        let content_type = content_type.map_or(&b""[..], |value| &value[..]);
        self.identity.fingerprint(MESSAGE_RULE, &[&message.payload, content_type])
    }

    /// All of a message that its next delivery has, too. The letters of two messages with one hash are one.
    fn hash_of(&self, message: &Message) -> Fingerprint {
        let is_kept = |name: &str| !COUNTERS.iter().any(|counter| counter.eq_ignore_ascii_case(name));
        let headers = message.headers.iter().filter(|(name, _)| is_kept(name));
        let headers: Vec<&[u8]> = headers.flat_map(|(name, value)| [name.as_bytes(), &value[..]]).collect();
        let ordering_key = message.ordering_key.as_ref().map_or_else(Vec::new, |key| join(&[key]));
        self.identity.fingerprint(MESSAGE_RULE, &[&message.payload, &ordering_key, &join(&headers)])
    }

    fn scope(&self, message: &Message, payload: &JsonPayload<'_>) -> Result<Scope, DeadReason> {
        let unknown = |_: Error| DeadReason::CallerUnknown;
        match self.tenant.find(message, payload)? {
            None => Scope::untenanted(&self.namespace).map_err(unknown),
            Some(tenant) => Scope::tenant(&self.namespace, tenant).map_err(unknown),
        }
    }

    /// The id of the dead letter about a message: the same for each redelivery.
    pub(crate) fn dead_letter_id(
        &self,
        message: &Message,
        identified: Option<&IdentifiedMessage>,
        reason: DeadReason,
    ) -> DeadLetterId {
        let fingerprint = identified.map_or(Fingerprint::NONE, |identified| identified.call.newest_fingerprint());
        let subject = match (identified, &message.coordinates) {
            (Some(identified), _) => identified.call.operation().as_bytes().to_vec(),
            (None, Some(coordinates)) => coordinates_key(coordinates, message.timestamp),
            (None, None) => self.hash_of(message).as_bytes().to_vec(),
        };
        let fingerprint = [&[fingerprint.rule().0][..], fingerprint.as_bytes()].concat();
        let parts = [self.namespace.as_bytes(), &subject, &fingerprint, reason.as_str().as_bytes()];
        DeadLetterId(self.identity.dead_letter(&parts))
    }
}

/// The operation and fingerprint of a dead letter.
pub(crate) fn identity_of_letter(identified: Option<&IdentifiedMessage>) -> (Option<OperationId>, Fingerprint) {
    identified
        .map_or((None, Fingerprint::NONE), |found| (Some(found.call.operation()), found.call.newest_fingerprint()))
}

/// The parts one after the other, each after its length as four bytes.
fn join(parts: &[&[u8]]) -> Vec<u8> {
    let length = |part: &[u8]| u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes();
    parts.iter().flat_map(|part| [&length(part)[..], part].concat()).collect()
}

/// A key from the coordinates of a message. The time tells a topic from its successor of the same name.
fn coordinates_key(coordinates: &Coordinates, timestamp: Option<Timestamp>) -> Vec<u8> {
    let position = match &coordinates.position {
        Position::Number(number) => number.to_be_bytes().to_vec(),
        Position::Id(id) => id.to_vec(),
    };
    let timestamp = timestamp.map(|at| at.0.to_be_bytes());
    let timestamp = timestamp.as_ref().map_or(&[][..], |at| &at[..]);
    let partition = if Mutant::PartitionIgnored.is_on() { 0 } else { coordinates.partition };
    join(&[coordinates.origin.as_bytes(), &partition.to_be_bytes(), &position, timestamp])
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(message: &Message) -> DeadLetterId {
        MessageIdentity::new("billing").unwrap().dead_letter_id(message, None, DeadReason::KeyMissing)
    }

    fn with_headers(headers: &[(&str, &'static str)]) -> Message {
        Message { headers: headers.iter().copied().collect(), payload: "5".into(), ..Message::default() }
    }

    #[test]
    fn two_messages_without_coordinates_have_two_letters_if_anything_tells_them_apart() {
        let plain = with_headers(&[("account", "7")]);
        let ordered = |key: &'static str| Message { ordering_key: Some(key.into()), ..plain.clone() };
        let others = [
            Message { payload: "6".into(), ..plain.clone() },
            with_headers(&[("account", "8")]),
            with_headers(&[("account", "7"), ("x-own", "1")]),
            with_headers(&[("accoun", "t7")]),
            with_headers(&[]),
            ordered(""),
            ordered("a"),
            ordered("b"),
        ];
        let mut letters: Vec<DeadLetterId> = others.iter().chain([&plain]).map(letter).collect();
        letters.sort_unstable();
        letters.dedup();
        assert_eq!(letters.len(), others.len() + 1);
    }

    #[test]
    fn each_delivery_of_a_message_without_coordinates_has_the_same_letter() {
        let first = with_headers(&[("account", "7")]);
        let later = |count| with_headers(&[("account", "7"), ("x-acquired-count", count), ("X-Delivery-Count", count)]);
        assert_eq!(letter(&first), letter(&later("1")));
        assert_eq!(letter(&first), letter(&later("2")));
    }
}
