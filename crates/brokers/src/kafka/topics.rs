//! The ids of topics. A topic that was deleted and created again under the same name has another one.

#![expect(unsafe_code, reason = "the safe interface of the driver does not tell the id of a topic")]

use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, CString, c_int};
use std::time::Duration;
use std::{fmt, ptr};

use rdkafka::bindings::{
    rd_kafka_AdminOptions_destroy, rd_kafka_AdminOptions_new, rd_kafka_AdminOptions_set_request_timeout,
    rd_kafka_DescribeTopics, rd_kafka_DescribeTopics_result_topics, rd_kafka_TopicCollection_destroy,
    rd_kafka_TopicCollection_of_topic_names, rd_kafka_TopicDescription_error, rd_kafka_TopicDescription_name,
    rd_kafka_TopicDescription_t, rd_kafka_TopicDescription_topic_id, rd_kafka_Uuid_least_significant_bits,
    rd_kafka_Uuid_most_significant_bits, rd_kafka_admin_op_t, rd_kafka_error_code,
    rd_kafka_event_DescribeTopics_result, rd_kafka_event_destroy, rd_kafka_event_error, rd_kafka_queue_destroy,
    rd_kafka_queue_new, rd_kafka_queue_poll,
};
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::types::RDKafkaRespErr;

/// The id of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TopicId(u128);

impl TopicId {
    pub(super) fn of_text(text: &str) -> Option<Self> {
        u128::from_str_radix(text, 16).ok().map(Self)
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The topics that exist. One without an id is on a broker that knows none, before Kafka 2.8.
pub(super) type FoundTopics = HashMap<String, Option<TopicId>>;

/// Whether both are known and not the same.
pub(super) fn differ(one: Option<TopicId>, other: Option<TopicId>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one != other)
}

/// The topics that one driver has found, and those that were missing. A driver does not notice that a topic was created
/// again: it reads on from the position in the old topic, and ignores the leader epoch of the new one, which is lower.
#[derive(Default)]
pub(super) struct SeenTopics {
    ids: FoundTopics,
    missing: BTreeSet<String>,
    is_outdated: bool,
}

impl SeenTopics {
    /// Notes which of these topics were found.
    pub(super) fn note<'t>(&mut self, topics: impl Iterator<Item = &'t String>, found: &FoundTopics) {
        for topic in topics {
            let Some(id) = found.get(topic) else {
                self.missing.insert(topic.clone());
                continue;
            };
            let seen = *self.ids.entry(topic.clone()).or_insert(*id);
            self.is_outdated |= self.missing.remove(topic) || differ(seen, *id);
        }
    }

    /// Notes that the driver may have read another topic.
    pub(super) fn doubt(&mut self) {
        self.is_outdated = true;
    }

    /// Whether a topic was created again, so that another driver is needed.
    pub(super) fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    pub(super) fn has_missing(&self) -> bool {
        !self.missing.is_empty()
    }
}

/// Something of the C library, and the function that frees it.
struct Owned<T>(*mut T, unsafe extern "C" fn(*mut T));

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: nothing else frees it. Only an event may be missing, and its function takes a null pointer.
        unsafe { (self.1)(self.0) }
    }
}

/// Asks a broker which of these topics exist. Blocks.
///
/// # Errors
/// What the broker or the driver says. Then nothing is known of any topic.
pub(super) fn find<'t, C: ClientContext>(
    client: &Client<C>,
    topics: impl Iterator<Item = &'t str>,
    within: Duration,
) -> Result<FoundTopics, RDKafkaErrorCode> {
    let names: Vec<CString> = topics.filter_map(|topic| CString::new(topic).ok()).collect();
    let mut pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
    let (driver, millis) = (client.native_ptr(), c_int::try_from(within.as_millis()).unwrap_or(c_int::MAX));
    // SAFETY: the client lives until the end of this function, and so do the names, which the library copies. What the
    // library creates is freed once, in the reverse order. The result belongs to the event, and is read while that
    // lives.
    unsafe {
        let list = rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        let list = Owned(list, rd_kafka_TopicCollection_destroy);
        let options = rd_kafka_AdminOptions_new(driver, rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS);
        let options = Owned(options, rd_kafka_AdminOptions_destroy);
        // Without the place for a text it only says whether it has failed; it then keeps its default.
        let _ = rd_kafka_AdminOptions_set_request_timeout(options.0, millis, ptr::null_mut(), 0);
        let queue = Owned(rd_kafka_queue_new(driver), rd_kafka_queue_destroy);
        rd_kafka_DescribeTopics(driver, list.0, options.0, queue.0);
        let event = Owned(rd_kafka_queue_poll(queue.0, millis), rd_kafka_event_destroy);
        if event.0.is_null() {
            return Err(RDKafkaErrorCode::OperationTimedOut);
        }
        checked(rd_kafka_event_error(event.0))?;
        let (result, mut count) = (rd_kafka_event_DescribeTopics_result(event.0), 0);
        if result.is_null() {
            return Err(RDKafkaErrorCode::BadMessage);
        }
        let topics = rd_kafka_DescribeTopics_result_topics(result, &mut count);
        (0..count).filter_map(|index| read(*topics.add(index)).transpose()).collect()
    }
}

/// The name and the id of a topic. None if it does not exist.
///
/// # Safety
/// The description must be alive.
unsafe fn read(
    topic: *const rd_kafka_TopicDescription_t,
) -> Result<Option<(String, Option<TopicId>)>, RDKafkaErrorCode> {
    // SAFETY: the caller keeps the description alive, and all of these are parts of it.
    unsafe {
        let error = rd_kafka_error_code(rd_kafka_TopicDescription_error(topic));
        if error == RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART {
            return Ok(None);
        }
        checked(error)?;
        let name = CStr::from_ptr(rd_kafka_TopicDescription_name(topic)).to_string_lossy().into_owned();
        let id = rd_kafka_TopicDescription_topic_id(topic);
        if id.is_null() {
            return Ok(Some((name, None)));
        }
        let halves = [rd_kafka_Uuid_most_significant_bits(id), rd_kafka_Uuid_least_significant_bits(id)];
        let [high, low] = halves.map(|half| u128::from(half.cast_unsigned()));
        Ok(Some((name, Some(TopicId(high << 64 | low)).filter(|id| id.0 != 0))))
    }
}

fn checked(error: RDKafkaRespErr) -> Result<(), RDKafkaErrorCode> {
    if error == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR { Ok(()) } else { Err(error.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a driver that has found these in turn is outdated.
    fn is_outdated(looks: &[Option<Option<TopicId>>]) -> bool {
        let (mut seen, topic) = (SeenTopics::default(), "orders".to_owned());
        for look in looks {
            seen.note([&topic].into_iter(), &look.iter().map(|id| (topic.clone(), *id)).collect());
        }
        seen.is_outdated()
    }

    #[test]
    fn a_driver_is_outdated_once_a_topic_has_another_id_or_is_there_again() {
        let [one, other] = [TopicId(1), TopicId(2)].map(|id| Some(Some(id)));
        let without_id = Some(None);
        assert!(!is_outdated(&[one, one]) && !is_outdated(&[one, without_id, one]) && !is_outdated(&[one, None]));
        assert!(is_outdated(&[one, other]) && is_outdated(&[one, other, one]));
        assert!(is_outdated(&[without_id, None, without_id]) && is_outdated(&[None, one]));
    }
}
