use std::sync::Arc;
use std::time::Duration;

use hapax_brokers::WebhookSink;
use hapax_core::outbox::{Published, Sink};
use tokio::task::JoinHandle;

use crate::receiver::{Act, Receiver};
use crate::world::{event, in_time, local, publish, publish_at_last, sink, until, word};

#[tokio::test]
async fn an_endpoint_that_fails_is_left_alone_and_then_tried_with_one_request() {
    let receiver = Receiver::start("127.0.0.1:0", |number, _| match number {
        0..6 => Act::Answer(500, vec![]),
        _ => Act::Answer(200, vec![]),
    })
    .await;
    let other = Receiver::answering(200).await;
    let sink = sink([("e", local(receiver.url())), ("other", local(other.url()))]);
    for number in 0..5 {
        assert_eq!(word(&publish(&sink, number).await).0, "unknown");
    }
    for number in 5..20 {
        let Published::NotPublished { after, .. } = publish(&sink, number).await else { panic!("it is left alone") };
        assert!(after > Duration::ZERO && after <= Duration::from_secs(1), "{after:?}");
        assert_eq!(word(&in_time(sink.publish(&event(number, "other"))).await).0, "yes");
    }
    assert_eq!(receiver.got().len(), 5);
    // After the pause one request finds out that it still fails, and a later one that it works.
    publish_at_last(&sink, 20).await;
    assert_eq!(receiver.got().len(), 7);
    assert_eq!(word(&publish(&sink, 21).await).0, "yes", "it is no longer left alone");
}

#[tokio::test]
async fn an_event_with_more_headers_than_a_request_has_room_for_is_refused() {
    let receiver = Receiver::answering(200).await;
    let sink = sink([("e", local(receiver.url()))]);
    let mut large = (*event(0, "e")).clone();
    large.headers = (0..60_000).map(|number| (format!("ce_{number}"), "")).collect();
    let Published::Refused(reason) = in_time(sink.publish(&Arc::new(large))).await else { panic!("it is refused") };
    assert!(reason.contains("more than 10000 headers"), "{reason}");
    assert_eq!(word(&publish(&sink, 1).await).0, "yes");
    assert_eq!(receiver.got().len(), 1);
}

#[tokio::test]
async fn requests_of_one_endpoint_run_at_once_up_to_their_limit() {
    let receiver = Receiver::start("127.0.0.1:0", |_, _| Act::Late).await;
    let mut endpoint = local(receiver.url());
    endpoint.max_in_flight = 3;
    let sink = Arc::new(sink([("e", endpoint)]));
    let running: Vec<_> = (0..9).map(|number| tokio::spawn(publishing(&sink, number, "e"))).collect();
    until("three requests at once", || receiver.got().len() >= 3).await;
    until("all of them are answered", || {
        receiver.release();
        running.iter().all(JoinHandle::is_finished)
    })
    .await;
    for task in running {
        assert_eq!(word(&task.await.unwrap()).0, "yes");
    }
    assert_eq!((receiver.got().len(), receiver.most_running()), (9, 3));
}

#[tokio::test]
async fn an_endpoint_that_never_answers_leaves_room_to_the_others() {
    let (silent, other) = (Receiver::start("127.0.0.1:0", |_, _| Act::Silence).await, Receiver::answering(200).await);
    let sink = Arc::new(sink([("silent", local(silent.url())), ("other", local(other.url()))]));
    // 64 run and 512 wait: half of what a relay publishes at once.
    let running: Vec<_> = (0..600).map(|number| tokio::spawn(publishing(&sink, number, "silent"))).collect();
    until("the others do not wait", || running.iter().filter(|task| task.is_finished()).count() == 24).await;
    for number in 0..20 {
        assert_eq!(word(&in_time(sink.publish(&event(number, "other"))).await).0, "yes");
    }
    assert_eq!(silent.most_running(), 64);
    for task in running {
        let is_finished = task.is_finished();
        task.abort();
        if is_finished {
            let Published::NotPublished { after, .. } = task.await.unwrap() else { panic!("it found no room") };
            assert!(after > Duration::ZERO);
        }
    }
}

#[tokio::test]
async fn a_sink_that_closes_waits_for_its_requests() {
    let receiver = Receiver::start("127.0.0.1:0", |_, _| Act::Late).await;
    let sink = Arc::new(sink([("e", local(receiver.url()))]));
    let running = tokio::spawn(publishing(&sink, 1, "e"));
    until("the request runs", || receiver.got().len() == 1).await;
    let closing = tokio::spawn({
        let sink = Arc::clone(&sink);
        async move { sink.close().await }
    });
    until("it is answered", || {
        assert!(!closing.is_finished() || running.is_finished());
        receiver.release();
        running.is_finished()
    })
    .await;
    assert_eq!(word(&running.await.unwrap()).0, "yes");
    in_time(closing).await.unwrap();
    assert_eq!(word(&publish(&sink, 2).await).0, "not-published");
}

fn publishing(sink: &Arc<WebhookSink>, number: u32, topic: &str) -> impl Future<Output = Published> + Send + use<> {
    let (sink, event) = (Arc::clone(sink), event(number, topic));
    async move { sink.publish(&event).await }
}
