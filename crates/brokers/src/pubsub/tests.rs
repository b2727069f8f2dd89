use futures_util::future::{Either, select};
use hapax_core::ErrorKind;
use hapax_core::broker::Settlement;
use hapax_core::runtime::Tokio;
use hapax_net::google::GoogleCode;

use super::messages::{
    AcknowledgeRequest, DeadLetterPolicy, ModifyAckDeadlineRequest, Nothing, PushConfig, StreamingPullRequest,
};
use super::stand_in::{PubSubStandIn, PubSubStandInCall, StandInStream};
use super::*;

fn room(messages: usize) -> Room {
    Room { messages, bytes: 1 << 20, ..Room::default() }
}

/// Connects to a subscription like this one.
async fn try_connect(service: &mut PubSubStandIn, found: Subscription) -> Result<PubSubSource> {
    let url = service.url("orders?deadline=30").parse().unwrap();
    let served = async { service.call_of("GetSubscription").await.answer(&found) };
    tokio::join!(PubSubSource::connect(&url, Arc::new(Tokio::current())), served).0
}

fn ordered() -> Subscription {
    let topic = "projects/shop/topics/orders".into();
    Subscription { topic, enable_message_ordering: true, ..Subscription::default() }
}

/// A source, and its first stream.
async fn connect() -> (PubSubStandIn, PubSubSource, StandInStream) {
    let mut service = PubSubStandIn::start().await;
    let mut source = try_connect(&mut service, ordered()).await.unwrap();
    let next = Box::pin(source.next(room(10)));
    let Either::Right((call, _)) = select(next, Box::pin(service.call_of("StreamingPull"))).await else {
        panic!("an event without a stream");
    };
    let request: StreamingPullRequest = call.read();
    // More than the messages that a worker holds by default, whatever there is room for now.
    assert_eq!((request.stream_ack_deadline_seconds, request.max_outstanding_messages), (30, 20_000));
    assert_eq!(request.max_outstanding_bytes, 1 << 20);
    (service, source, call.open())
}

async fn texts(source: &mut PubSubSource, room: Room) -> Vec<String> {
    let Event::Deliveries(taken) = source.next(room).await.unwrap() else { panic!("no deliveries") };
    taken.iter().map(|delivery| String::from_utf8_lossy(&delivery.message.payload).into_owned()).collect()
}

/// The next call while nothing arrives at the source.
async fn call_while_idle(source: &mut PubSubSource, service: &mut PubSubStandIn) -> PubSubStandInCall {
    let next = Box::pin(source.next(room(10)));
    let Either::Right((call, _)) = select(next, Box::pin(service.call())).await else { panic!("an event") };
    call
}

#[tokio::test]
async fn a_stream_that_has_brought_messages_and_ends_is_opened_again() {
    let (mut service, mut source, mut stream) = connect().await;
    for code in [GoogleCode::Unavailable, GoogleCode::Ok, GoogleCode::Internal] {
        stream.send_messages(&["a"]);
        assert_eq!(texts(&mut source, room(10)).await, ["a"]);
        stream.end(code);
        let call = call_while_idle(&mut source, &mut service).await;
        assert_eq!(call.method, "StreamingPull", "{code:?}");
        stream = call.open();
    }
}

#[tokio::test]
async fn a_stream_that_cannot_be_opened_is_reported() {
    for (code, kind) in [
        (GoogleCode::Unavailable, ErrorKind::NotApplied),
        (GoogleCode::NotFound, ErrorKind::Unusable),
        (GoogleCode::PermissionDenied, ErrorKind::Unusable),
    ] {
        let (_service, mut source, stream) = connect().await;
        stream.end(code);
        let error = source.next(room(10)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{code:?}");
        assert!(error.to_string().contains("the subscription `orders`"), "{error}");
    }
    // Also behind messages, if only an operator can help.
    let (_service, mut source, mut stream) = connect().await;
    stream.send_messages(&["a"]);
    assert_eq!(texts(&mut source, room(10)).await, ["a"]);
    stream.end(GoogleCode::NotFound);
    assert_eq!(source.next(room(10)).await.unwrap_err().kind(), ErrorKind::Unusable);
}

#[tokio::test]
async fn a_source_whose_reader_is_gone_is_unusable() {
    let (_service, mut source, _stream) = connect().await;
    source.pulls.arrived.close();
    assert_eq!(source.next(room(10)).await.unwrap_err().kind(), ErrorKind::Unusable);
}

#[tokio::test]
async fn a_worker_with_more_room_gets_another_stream() {
    let (mut service, mut source, mut stream) = connect().await;
    let more = || Room { bytes: 2 << 20, ..room(10) };
    let asked = source.next(more());
    let Either::Right(((), asked)) = select(Box::pin(asked), Box::pin(stream.client_end())).await else {
        panic!("an event");
    };
    drop(asked);
    // Messages that are on their way still arrive.
    stream.send_messages(&["a"]);
    stream.end(GoogleCode::Ok);
    assert_eq!(texts(&mut source, more()).await, ["a"]);
    let call = call_while_idle(&mut source, &mut service).await;
    assert_eq!(call.read::<StreamingPullRequest>().max_outstanding_bytes, 2 << 20);
    let _stream = call.open();
    // Less room is not a reason.
    let asked = Box::pin(source.next(room(1)));
    let quiet = Box::pin(service.is_quiet());
    let Either::Right((true, _)) = select(asked, quiet).await else { panic!("another stream") };
}

#[tokio::test]
async fn messages_without_room_wait_and_go_back_at_the_end() {
    let (mut service, mut source, mut stream) = connect().await;
    stream.send_messages(&["a", "b", "c"]);
    assert_eq!(texts(&mut source, Room { bytes: 1, ..room(10) }).await, ["a"]);
    let closing = source.close();
    let served = async {
        let call = service.call_of("ModifyAckDeadline").await;
        let request: ModifyAckDeadlineRequest = call.read();
        assert_eq!((request.ack_ids, request.ack_deadline_seconds), (vec!["b".to_owned(), "c".to_owned()], 0));
        call.answer(&Nothing {});
        stream.client_end().await;
        stream.send_messages(&["d"]);
        stream.end(GoogleCode::Ok);
        let call = service.call_of("ModifyAckDeadline").await;
        assert_eq!(call.read::<ModifyAckDeadlineRequest>().ack_ids, ["d"]);
        call.answer(&Nothing {});
    };
    tokio::join!(closing, served).0.unwrap();
    let settled = source.settler().settle(Vec::new()).await;
    assert!(settled.is_empty());
}

#[tokio::test]
async fn a_stream_that_does_not_end_does_not_keep_a_source_from_closing() {
    let (_service, mut source, _stream) = connect().await;
    source.close().await.unwrap();
}

#[tokio::test]
async fn messages_behind_one_whose_lease_has_ended_go_back() {
    let (mut service, mut source, mut stream) = connect().await;
    stream.send_messages(&["a", "b", "c"]);
    let Event::Deliveries(taken) = source.next(Room { bytes: 1, ..room(10) }).await.unwrap() else { panic!("none") };
    let settler = source.settler();
    let extended = settler.settle(vec![(taken[0].id.clone(), Settlement::Extend(Duration::from_secs(30)))]);
    let reasons = [("a", "PERMANENT_FAILURE_INVALID_ACK_ID")];
    let served = async { service.call().await.refuse_ids(GoogleCode::FailedPrecondition, &reasons) };
    tokio::join!(extended, served).0.remove(0).unwrap();
    let call = call_while_idle(&mut source, &mut service).await;
    let request: ModifyAckDeadlineRequest = call.read();
    assert_eq!((request.ack_ids, request.ack_deadline_seconds), (vec!["b".to_owned(), "c".to_owned()], 0));
    call.answer(&Nothing {});
    // One that was sent before the end of the lease stays away until it is clear that it was sent after it.
    stream.send_messages(&["d"]);
    let call = call_while_idle(&mut source, &mut service).await;
    let request: ModifyAckDeadlineRequest = call.read();
    assert_eq!(request.ack_ids, ["d"]);
    assert!((1..=2).contains(&request.ack_deadline_seconds), "{request:?}");
    call.answer(&Nothing {});
    stream.send_messages(&["a", "b", "c", "d"]);
    assert_eq!(texts(&mut source, room(10)).await, ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn acknowledgements_go_on_while_the_stream_is_away() {
    let (mut service, mut source, mut stream) = connect().await;
    stream.send_messages(&["a"]);
    let Event::Deliveries(taken) = source.next(room(10)).await.unwrap() else { panic!("none") };
    stream.end(GoogleCode::Unavailable);
    let settler = source.settler();
    let settled = settler.settle(vec![(taken[0].id.clone(), Settlement::Ack)]);
    let served = async {
        loop {
            let call = service.call().await;
            if call.method == "Acknowledge" {
                assert_eq!(call.read::<AcknowledgeRequest>().ack_ids, ["a"]);
                break call.answer(&Nothing {});
            }
            call.refuse(GoogleCode::Unavailable);
        }
    };
    tokio::join!(settled, served).0.remove(0).unwrap();
}

#[tokio::test]
async fn a_subscription_that_cannot_be_read_is_refused_at_the_start() {
    let push = PushConfig { push_endpoint: "https://shop.example".into() };
    let policy = DeadLetterPolicy { max_delivery_attempts: 5, ..DeadLetterPolicy::default() };
    for (found, cause) in [
        (Subscription { push_config: Some(push), ..ordered() }, Some("create one without push")),
        (Subscription { detached: true, ..ordered() }, Some("is detached")),
        // An empty one is none.
        (Subscription { push_config: Some(PushConfig::default()), ..ordered() }, None),
        (Subscription { dead_letter_policy: Some(policy), ..ordered() }, None),
        (Subscription { enable_exactly_once_delivery: true, ..ordered() }, None),
    ] {
        let mut service = PubSubStandIn::start().await;
        let error = try_connect(&mut service, found).await.err();
        assert_eq!(error.as_ref().map(hapax_core::Error::kind), cause.map(|_| ErrorKind::Unusable));
        assert!(error.is_none_or(|error| error.to_string().contains(cause.unwrap())));
    }
    let url = "pubsub://shop/orders?endpoint=http://127.0.0.1:9".parse().unwrap();
    let error = PubSubSource::connect(&url, Arc::new(Tokio::current())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotApplied, "{error:?}");
}
