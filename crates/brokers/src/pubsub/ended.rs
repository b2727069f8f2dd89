//! The keys of messages whose leases have ended here. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::broker::Message;

use crate::open::{EndedDelivery, id_of};

/// A message comes again when its lease has ended, and the later ones of its key behind it. Those that were sent before
/// that are still on their way in the stream, and must not run first.
#[derive(Default)]
pub(super) struct EndedKeys {
    by_key: BTreeMap<Bytes, EndedKey>,
}

struct EndedKey {
    /// When the last of the leases ended, on the boot-time clock.
    since: Duration,
    /// The ids of the messages.
    messages: BTreeSet<Bytes>,
}

impl EndedKeys {
    /// Notes deliveries whose leases have ended by now.
    pub(super) fn note(&mut self, ended: Vec<EndedDelivery>, now: Duration) {
        for EndedDelivery { group, message } in ended {
            let key = self.by_key.entry(group).or_insert_with(|| EndedKey { since: now, messages: BTreeSet::new() });
            key.since = now;
            key.messages.extend(message);
        }
    }

    /// Forgets the keys whose leases had ended by this time. Messages that arrive from now on were sent at this time or
    /// later, and the service sends the messages of a key in order after the end of a lease.
    pub(super) fn pass(&mut self, sent: Duration) {
        self.by_key.retain(|_, key| key.since > sent);
    }

    /// How long the service shall keep a message that was sent at this time. None if the message may run now, because
    /// no earlier message of its key is about to come again.
    pub(super) fn away(&mut self, message: &Message, sent: Duration) -> Option<Duration> {
        let name = message.ordering_key.as_ref()?;
        let key = self.by_key.get(name)?;
        if id_of(message).is_some_and(|id| key.messages.contains(&id)) {
            // It has come again. The stream has the later ones behind it.
            self.by_key.remove(name);
            return None;
        }
        Some(key.since.saturating_sub(sent))
    }
}

#[cfg(test)]
mod tests {
    use hapax_core::broker::{Coordinates, Position};

    use super::*;

    fn message(key: &str, id: &str) -> Message {
        let position = Position::Id(Bytes::copy_from_slice(id.as_bytes()));
        let coordinates = Coordinates { origin: "pubsub/shop/orders".into(), partition: 0, position };
        let ordering_key = Some(Bytes::copy_from_slice(key.as_bytes())).filter(|key| !key.is_empty());
        Message { ordering_key, coordinates: Some(coordinates), ..Message::default() }
    }

    fn ended(key: &str, id: &str) -> Vec<EndedDelivery> {
        let message = message(key, id);
        vec![EndedDelivery { group: message.ordering_key.clone().unwrap(), message: id_of(&message) }]
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_was_sent_before_the_end_of_a_lease_stays_away_until_the_message_comes_again() {
        let mut keys = EndedKeys::default();
        keys.note(ended("k", "a"), 10 * SECOND);
        assert_eq!(keys.away(&message("k", "b"), 7 * SECOND), Some(3 * SECOND));
        assert_eq!(keys.away(&message("other", "b"), 7 * SECOND), None);
        assert_eq!(keys.away(&message("", "b"), 7 * SECOND), None);
        keys.note(ended("k", "b"), 12 * SECOND);
        assert_eq!(keys.away(&message("k", "c"), 11 * SECOND), Some(SECOND));
        assert_eq!(keys.away(&message("k", "a"), 11 * SECOND), None);
        assert_eq!(keys.away(&message("k", "c"), 11 * SECOND), None, "behind the message that has come again");
    }

    #[test]
    fn what_is_sent_after_the_end_of_a_lease_is_in_its_place() {
        let mut keys = EndedKeys::default();
        keys.note(ended("k", "a"), 10 * SECOND);
        keys.pass(9 * SECOND);
        assert_eq!(keys.away(&message("k", "b"), 9 * SECOND), Some(SECOND));
        keys.pass(10 * SECOND);
        assert_eq!(keys.away(&message("k", "b"), 10 * SECOND), None);
    }
}
