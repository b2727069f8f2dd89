use super::*;
use crate::kafka::topics::{FoundTopics, TopicId};

fn lanes(count: i32) -> (SharedLanes, Vec<Partition>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _inside = runtime.enter();
    let lanes = SharedLanes::new(Arc::new(hapax_core::runtime::Tokio::current()));
    let partitions: Vec<Partition> = (0..count).map(|partition| ("orders".into(), partition)).collect();
    lanes.add(partitions.iter().map(|partition| taken_up(partition, None)).collect());
    (lanes, partitions)
}

fn taken_up(partition: &Partition, topic: Option<TopicId>) -> TakenUp {
    let note = topic.map(|topic| OffsetNote { topic, began_with: None });
    TakenUp { partition: partition.clone(), note, progress: LaneProgress::new(None) }
}

fn push_until_paused(lanes: &SharedLanes, partition: &Partition, payload: usize) -> usize {
    let message = || Message { payload: vec![0; payload].into(), ..Message::default() };
    1 + (0..).take_while(|offset| !lanes.push(partition, *offset, message())).count()
}

/// Takes the messages that have arrived. Returns their number.
fn take_all(lanes: &SharedLanes) -> usize {
    let room = Room { messages: usize::MAX, bytes: usize::MAX, closed: Arc::default() };
    match lanes.next(&room).unwrap() {
        Some(Event::Deliveries(deliveries)) => deliveries.len(),
        Some(event @ (Event::Revoking { .. } | Event::Lost { .. })) => panic!("{event:?}"),
        None => 0,
    }
}

#[test]
fn a_partition_stays_marked_as_paused_until_the_driver_has_resumed_it() {
    let (lanes, partitions) = lanes(1);
    push_until_paused(&lanes, &partitions[0], 10);
    assert!(lanes.resumable().is_empty(), "it is full");
    take_all(&lanes);
    // The driver fails the first time.
    assert_eq!(lanes.resumable(), partitions);
    assert_eq!(lanes.resumable(), partitions, "it is tried again");
    lanes.resumed(&partitions);
    assert!(lanes.resumable().is_empty());
}

#[test]
fn many_partitions_hold_together_no_more_than_a_few() {
    let (lanes, partitions) = lanes(1000);
    let held: usize = partitions.iter().map(|partition| push_until_paused(&lanes, partition, 8 << 10)).sum();
    assert!(held * (8 << 10) <= MAX_BYTES + 1000 * (8 << 10), "{held} messages");
}

#[test]
fn a_late_leave_of_a_generation_before_does_not_end_the_wait_for_the_new_one() {
    let (lanes, partitions) = lanes(1);
    let lane_of = |lanes: &SharedLanes| lanes.state().lanes[&partitions[0]].lane.clone();
    let old = lane_of(&lanes);
    lanes.lose(&partitions);
    lanes.add(vec![taken_up(&partitions[0], None)]);
    let new = lane_of(&lanes);
    assert!(lanes.leave(std::slice::from_ref(&old)).is_none(), "it is gone");
    assert!(!lanes.state().have_left(&partitions), "the worker has not left the new one");
    assert!(lanes.leave(std::slice::from_ref(&new)).is_some());
    assert!(lanes.state().have_left(&partitions));
}

fn topic(id: u8) -> Option<TopicId> {
    TopicId::of_text(&id.to_string())
}

fn found(id: Option<TopicId>) -> FoundTopics {
    FoundTopics::from([("orders".to_owned(), id)])
}

fn confirm(lanes: &SharedLanes, found: &FoundTopics) -> usize {
    lanes.confirm(found, Duration::ZERO).len()
}

#[test]
fn a_topic_that_is_gone_or_has_another_id_is_lost() {
    let (lanes, partitions) = lanes(1);
    lanes.add(vec![taken_up(&partitions[0], topic(1))]);
    // A broker that does not tell the id of a topic says nothing about it.
    for same in [topic(1), None] {
        assert_eq!(confirm(&lanes, &found(same)), 0);
    }
    for other in [FoundTopics::new(), found(topic(2))] {
        lanes.add(vec![taken_up(&partitions[0], topic(1))]);
        assert_eq!(confirm(&lanes, &other), 1);
        assert!(lanes.state().lanes.is_empty());
    }
}

#[test]
fn what_comes_after_a_pause_waits_until_its_topic_is_confirmed() {
    let (lanes, partitions) = lanes(1);
    let push = |last: Duration| {
        lanes.state().confirmed_at = Duration::ZERO;
        lanes.state().lanes.get_mut(&partitions[0]).unwrap().arrived_at = last;
        lanes.push(&partitions[0], 7, Message::default());
    };
    push(Duration::MAX);
    assert_eq!((lanes.is_doubtful(), take_all(&lanes)), (false, 1), "the last one has just come");
    push(Duration::ZERO);
    push(Duration::MAX);
    assert_eq!((lanes.is_doubtful(), take_all(&lanes)), (true, 0));
    assert_eq!(confirm(&lanes, &found(topic(1))), 0);
    assert_eq!((lanes.is_doubtful(), take_all(&lanes)), (false, 2));
}

#[test]
fn a_lag_is_unknown_while_that_of_one_partition_is() {
    let (lanes, partitions) = lanes(2);
    let lag = || lanes.state().lag();
    let tell = |partition: usize, end: i64| {
        let mut state = lanes.state();
        let lane = state.lanes.get_mut(&partitions[partition]).unwrap();
        lane.progress.note_statistics(None, Some(0), Some(end));
    };
    assert_eq!(lag(), None);
    tell(0, 3);
    assert_eq!(lag(), None);
    tell(1, 4);
    assert_eq!(lag(), Some(7));
}

#[test]
fn a_small_message_takes_more_than_its_bytes() {
    let (lanes, partitions) = lanes(100);
    assert!(push_until_paused(&lanes, &partitions[0], 0) <= MAX_BYTES / 100 / OVERHEAD + 1);
}

#[test]
fn an_error_that_ends_the_worker_is_not_hidden_by_the_next_report_of_the_driver() {
    let (lanes, _) = lanes(1);
    lanes.fail(crate::errors::unusable("messages are lost"));
    lanes.fail(crate::errors::not_applied("all brokers are down"));
    let room = Room { messages: 1, bytes: 1, closed: Arc::default() };
    assert_eq!(lanes.next(&room).unwrap_err().kind(), ErrorKind::Unusable);
}
