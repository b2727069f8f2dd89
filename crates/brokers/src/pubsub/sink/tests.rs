use futures_util::future::join_all;
use hapax_core::EventId;
use hapax_core::runtime::Tokio;
use hapax_net::google::GoogleCode;

use super::*;
use crate::pubsub::messages::{PublishRequest, PublishResponse, TopicName};
use crate::pubsub::stand_in::{PubSubStandIn, PubSubStandInCall};

fn sink(service: &PubSubStandIn, path: &str) -> PubSubSink {
    PubSubSink::open(service.url(path).parse().unwrap(), Arc::new(Tokio::current())).unwrap()
}

fn event(number: u8, key: Option<&'static str>) -> Arc<OutgoingEvent> {
    let mut event = OutgoingEvent::new(EventId::from_bytes([number; 16]), "paid", vec![number]);
    event.ordering_key = key.map(|key| key.as_bytes().into());
    Arc::new(event)
}

/// The data of the messages.
fn numbers(call: &PubSubStandInCall) -> Vec<u8> {
    let request: PublishRequest = call.read();
    assert_eq!(request.topic, "projects/shop/topics/paid");
    request.messages.iter().map(|message| message.data[0]).collect()
}

fn succeed(call: PubSubStandInCall) {
    let message_ids = numbers(&call).iter().map(u8::to_string).collect();
    call.answer(&PublishResponse { message_ids });
}

fn end(published: &Published) -> &'static str {
    match published {
        Published::Yes { caught: false } => "published",
        Published::Yes { caught: true } => "caught",
        Published::NotPublished { .. } => "not published",
        Published::Unknown(_) => "unknown",
        Published::Refused(_) => "refused",
    }
}

#[tokio::test]
async fn a_request_has_one_fate_for_all_of_its_events() {
    for (code, fate) in [
        (GoogleCode::Unavailable, "unknown"),
        (GoogleCode::ResourceExhausted, "not published"),
        (GoogleCode::NotFound, "not published"),
        (GoogleCode::PermissionDenied, "not published"),
    ] {
        let mut service = PubSubStandIn::start().await;
        let sink = sink(&service, "");
        let events: Vec<_> = (1..=3).map(|number| event(number, None)).collect();
        let published = join_all(events.iter().map(|event| sink.publish(event)));
        let served = async {
            let call = service.call_of("Publish").await;
            assert_eq!(numbers(&call), [1, 2, 3]);
            call.refuse(code);
        };
        let (published, ()) = tokio::join!(published, served);
        assert_eq!(published.iter().map(end).collect::<Vec<_>>(), [fate; 3], "{code:?}");
        assert!(service.is_quiet().await);
    }
}

#[tokio::test]
async fn events_of_a_request_that_is_refused_are_sent_alone() {
    let mut service = PubSubStandIn::start().await;
    let sink = sink(&service, "");
    let events: Vec<_> = (1..=2).map(|number| event(number, None)).collect();
    let published = join_all(events.iter().map(|event| sink.publish(event)));
    let served = async {
        service.call_of("Publish").await.refuse(GoogleCode::InvalidArgument);
        for _ in 0..2 {
            let call = service.call_of("Publish").await;
            match &numbers(&call)[..] {
                [1] => call.refuse(GoogleCode::InvalidArgument),
                others => {
                    assert_eq!(others, [2]);
                    succeed(call);
                }
            }
        }
    };
    let (published, ()) = tokio::join!(published, served);
    assert_eq!(published.iter().map(end).collect::<Vec<_>>(), ["refused", "published"]);
}

#[tokio::test]
async fn events_of_different_keys_share_no_request() {
    let mut service = PubSubStandIn::start().await;
    let sink = sink(&service, "");
    let events = [event(1, Some("a")), event(2, Some("b")), event(3, None), event(4, None)];
    let published = join_all(events.iter().map(|event| sink.publish(event)));
    let served = async {
        let mut requests = Vec::new();
        for _ in 0..3 {
            let call = service.call_of("Publish").await;
            requests.push(numbers(&call));
            succeed(call);
        }
        requests.sort();
        assert_eq!(requests, [vec![1], vec![2], vec![3, 4]]);
    };
    let (published, ()) = tokio::join!(published, served);
    assert!(published.iter().all(|published| end(published) == "published"), "{published:?}");
}

#[tokio::test]
async fn an_event_without_a_confirmation_is_unknown() {
    let mut service = PubSubStandIn::start().await;
    let sink = sink(&service, "?timeout=1");
    for answers in [0, 1, 2] {
        for key in [None, Some("a")] {
            let event = event(1, key);
            let mut kept = None;
            let served = async {
                let call = service.call_of("Publish").await;
                match answers {
                    // Without an answer, and with one of another length.
                    0 => kept = Some(call),
                    1 => call.answer(&PublishResponse::default()),
                    _ => drop(call),
                }
            };
            let (published, ()) = tokio::join!(sink.publish(&event), served);
            assert_eq!(end(&published), "unknown", "{answers} {key:?}");
            drop(kept);
        }
    }
}

#[tokio::test]
async fn an_event_that_pubsub_never_takes_is_refused_before_it_is_sent() {
    let mut service = PubSubStandIn::start().await;
    let sink = sink(&service, "");
    let mut many = (*event(1, None)).clone();
    many.headers = [("x", vec![b'v'; 200_000])].into_iter().collect();
    let large = OutgoingEvent::new(many.id, "paid", vec![0; 9_999_000]);
    let named = OutgoingEvent::new(many.id, "p", "x");
    for (event, cause) in [(many, "100 attributes"), (large, "Pub/Sub takes"), (named, "is no name of Pub/Sub")] {
        let Published::Refused(reason) = sink.publish(&Arc::new(event)).await else { panic!("it is sent") };
        assert!(reason.contains(cause), "{reason}");
    }
    assert!(service.is_quiet().await);
}

#[tokio::test]
async fn a_check_finds_a_missing_topic_but_needs_no_right_to_look_at_it() {
    let mut service = PubSubStandIn::start().await;
    for (path, code, is_fine) in [
        ("paid", GoogleCode::NotFound, false),
        ("paid", GoogleCode::PermissionDenied, true),
        ("paid", GoogleCode::Unavailable, false),
        ("", GoogleCode::NotFound, true),
        ("", GoogleCode::Unauthenticated, false),
    ] {
        let sink = sink(&service, path);
        let served = async {
            let call = service.call_of("GetTopic").await;
            let topic = if path.is_empty() { ANY_TOPIC } else { path };
            assert_eq!(call.read::<TopicName>().name, format!("projects/shop/topics/{topic}"));
            call.refuse(code);
        };
        assert_eq!(tokio::join!(sink.check(), served).0.is_ok(), is_fine, "{path} {code:?}");
    }
}
