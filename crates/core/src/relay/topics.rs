use std::collections::BTreeMap;
use std::time::Duration;

use crate::chaos::Mutant;
use crate::outbox::{EventTopic, OutgoingEvent};

/// How many events of a topic fail in a row before the topic may be left out.
const FAILURES: u32 = 5;

/// How long a topic is left out at least. When it is read again, everything is.
const AT_LEAST: Duration = Duration::from_secs(5);

/// How long a topic is left out after the last failure of its events that are held, and the pause that the sink asked
/// for. A topic that is read is forgotten after this time.
const WITHOUT_FAILURE: Duration = Duration::from_secs(30);

/// How many topics are remembered.
const MAX_TOPICS: usize = 1000;

/// Topics of which the sink takes nothing now. Reads leave out their rows without a key, so that those leave the room
/// to others; the rows that are held show when the sink takes them again. The rows T1 to T4 of `rules.md`; pure.
#[derive(Debug, Default)]
pub(super) struct FailingTopics(BTreeMap<EventTopic, FailingTopic>);

#[derive(Debug)]
struct FailingTopic {
    /// In a row.
    failures: u32,
    /// When the last row that failed may be published again.
    due: Duration,
    phase: TopicPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopicPhase {
    Read,
    LeftOut {
        since: Duration,
        /// Whether the sink took an event since then.
        has_succeeded: bool,
    },
    /// It was left out before, and is read: the buckets that are read from their first rows, one after the other, show
    /// its rows. The sink has taken none since.
    Tried,
}

/// An event that the sink did not take.
#[derive(Clone, Copy, Debug)]
pub(super) struct TopicFailure {
    pub(super) now: Duration,
    /// When it may be published again.
    pub(super) due: Duration,
    /// Whether as many rows of its bucket have failed as the bucket has room for.
    pub(super) is_full: bool,
}

impl FailingTopics {
    /// Whether reads leave out the row of this event.
    pub(super) fn is_left_out(&self, event: &OutgoingEvent) -> bool {
        event.ordering_key.is_none() && self.0.get(&EventTopic::of(event)).is_some_and(FailingTopic::is_left_out)
    }

    /// The topics that the next read leaves out.
    pub(super) fn left_out(&self) -> Vec<EventTopic> {
        self.0.iter().filter(|(_, topic)| topic.is_left_out()).map(|(name, _)| name.clone()).collect()
    }

    /// The sink took this event.
    pub(super) fn succeed(&mut self, event: &OutgoingEvent) {
        if self.0.is_empty() {
            return;
        }
        let name = EventTopic::of(event);
        let Some(topic) = self.0.get_mut(&name) else { return };
        match topic.phase {
            TopicPhase::LeftOut { since, .. } => topic.phase = TopicPhase::LeftOut { since, has_succeeded: true },
            TopicPhase::Read => drop(self.0.remove(&name)),
            TopicPhase::Tried => topic.phase = TopicPhase::LeftOut { since: Duration::ZERO, has_succeeded: true },
        }
    }

    /// The sink did not take this event. Returns whether its topic is left out from now on.
    pub(super) fn fail(&mut self, event: &OutgoingEvent, failure: TopicFailure) -> bool {
        let name = EventTopic::of(event);
        if self.0.len() >= MAX_TOPICS && !self.0.contains_key(&name) {
            return false;
        }
        let new = FailingTopic { failures: 0, due: failure.due, phase: TopicPhase::Read };
        let topic = self.0.entry(name).or_insert(new);
        topic.failures = topic.failures.saturating_add(1);
        topic.due = topic.due.max(failure.due);
        let is_left_out = match topic.phase {
            TopicPhase::Read => failure.is_full && topic.failures >= FAILURES, // T1
            TopicPhase::Tried => true,                                         // T2
            TopicPhase::LeftOut { .. } => false,
        };
        if !is_left_out || Mutant::DeadTopicIsRead.is_on() {
            return false;
        }
        topic.phase = TopicPhase::LeftOut { since: failure.now, has_succeeded: false };
        true
    }

    /// Ends that topics are left out. Returns whether all buckets are to be read from their first rows.
    pub(super) fn end(&mut self, now: Duration) -> bool {
        let mut has_ended = false;
        self.0.retain(|_, topic| {
            let is_late = now >= topic.due.saturating_add(WITHOUT_FAILURE);
            match topic.phase {
                TopicPhase::LeftOut { since, has_succeeded: true } if now >= since.saturating_add(AT_LEAST) => {
                    has_ended = true; // T3
                    false
                }
                TopicPhase::LeftOut { .. } if is_late => {
                    (topic.phase, topic.due) = (TopicPhase::Tried, now); // T4
                    true
                }
                TopicPhase::LeftOut { .. } => true,
                TopicPhase::Read | TopicPhase::Tried => !is_late,
            }
        });
        has_ended
    }
}

impl FailingTopic {
    fn is_left_out(&self) -> bool {
        matches!(self.phase, TopicPhase::LeftOut { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::EventId;

    const NOW: Duration = Duration::from_secs(1000);
    const MS: Duration = Duration::from_millis(1);

    fn event() -> OutgoingEvent {
        OutgoingEvent::new(EventId::from_bytes([0; 16]), "dead", "5")
    }

    fn fail(topics: &mut FailingTopics, is_full: bool) -> bool {
        topics.fail(&event(), TopicFailure { now: NOW, due: NOW, is_full })
    }

    fn left_out() -> FailingTopics {
        let mut topics = FailingTopics::default();
        for _ in 1..FAILURES {
            assert!(!fail(&mut topics, true));
        }
        assert!(!fail(&mut topics, false), "there is room for rows that have failed");
        assert!(fail(&mut topics, true));
        topics
    }

    #[test]
    fn a_topic_that_fails_is_left_out_once_the_room_is_full() {
        let topics = left_out();
        assert_eq!(topics.left_out(), [EventTopic::of(&event())], "T1");
        assert!(topics.is_left_out(&event()));
        assert!(!topics.is_left_out(&OutgoingEvent { ordering_key: Some("key".into()), ..event() }));
        assert!(!topics.is_left_out(&OutgoingEvent { namespace: "another".into(), ..event() }));
    }

    #[test]
    fn a_topic_of_which_an_event_was_taken_is_read_again_and_counts_anew() {
        let mut topics = left_out();
        assert!(!topics.end(NOW + AT_LEAST), "it has only failed");
        topics.succeed(&event());
        assert!(!fail(&mut topics, true), "it is left out already");
        assert!(!topics.end(NOW + AT_LEAST - MS));
        assert!(topics.end(NOW + AT_LEAST), "T3");
        assert!(topics.left_out().is_empty());
        assert!(!fail(&mut topics, true), "it counts from the start");
    }

    #[test]
    fn a_topic_without_a_failure_for_long_is_tried_and_left_out_at_its_next_failure() {
        let mut topics = left_out();
        assert!(!topics.end(NOW + WITHOUT_FAILURE - MS));
        assert_eq!(topics.left_out().len(), 1);
        assert!(!topics.end(NOW + WITHOUT_FAILURE), "T4 sets no cursor back");
        assert!(topics.left_out().is_empty());
        assert!(fail(&mut topics, false), "T2");
    }

    #[test]
    fn a_topic_that_is_tried_and_takes_an_event_is_read_from_the_first_rows() {
        let mut topics = left_out();
        assert!(!topics.end(NOW + WITHOUT_FAILURE), "T4");
        topics.succeed(&event());
        assert!(topics.end(NOW + WITHOUT_FAILURE), "T3");
        assert!(topics.left_out().is_empty());
        assert!(!fail(&mut topics, true), "it counts from the start");
    }

    #[test]
    fn a_topic_that_stopped_to_fail_is_forgotten() {
        let mut topics = FailingTopics::default();
        fail(&mut topics, true);
        assert!(!topics.end(NOW + WITHOUT_FAILURE - MS) && topics.0.len() == 1);
        assert!(!topics.end(NOW + WITHOUT_FAILURE) && topics.0.is_empty());
    }
}
