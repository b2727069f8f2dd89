use futures_util::future::{Either, select};
use hapax_core::ErrorKind;
use hapax_core::broker::Settlement;
use hapax_core::runtime::Tokio;
use serde_json::{Value, json};

use super::stand_in::{StandIn, StandInCall};
use super::*;

fn room(messages: usize) -> Room {
    Room { messages, bytes: 1 << 20, ..Room::default() }
}

async fn connect(service: &mut StandIn, queue: &str, parameters: &str) -> SqsSource {
    let url = service.url(queue, parameters);
    let served = async { service.call().await.answer(json!({ "Attributes": {} })) };
    tokio::join!(SqsSource::connect(&url, Arc::new(Tokio::current())), served).0.unwrap()
}

/// Messages of one group, with these bodies.
fn messages(bodies: &[&str]) -> Value {
    let message = |body: &&str| {
        let attributes = json!({ "MessageGroupId": "g" });
        json!({ "MessageId": body, "ReceiptHandle": body, "Body": body, "Attributes": attributes })
    };
    json!({ "Messages": bodies.iter().map(message).collect::<Vec<_>>() })
}

/// The next call of this operation. Polls get no messages meanwhile.
async fn call(service: &mut StandIn, operation: &str) -> StandInCall {
    loop {
        let call = service.call().await;
        if call.operation == operation {
            return call;
        }
        assert_eq!(call.operation, "ReceiveMessage");
        call.answer(json!({}));
    }
}

/// The first one of the messages that one request has brought. The others wait.
async fn take_first(source: &mut SqsSource, service: &mut StandIn, bodies: &[&str]) -> Delivery {
    let served = async { service.call().await.answer(messages(bodies)) };
    let (event, ()) = tokio::join!(source.next(Room { bytes: 1, ..room(bodies.len()) }), served);
    let Event::Deliveries(mut taken) = event.unwrap() else { panic!("no delivery") };
    assert_eq!(taken.len(), 1);
    taken.remove(0)
}

/// The handles and the ends of leases in a batch.
fn ends(call: &StandInCall) -> Vec<(String, u64)> {
    let entries = call.body["Entries"].as_array().unwrap().iter();
    let end = |entry: &Value| {
        (entry["ReceiptHandle"].as_str().unwrap().to_owned(), entry["VisibilityTimeout"].as_u64().unwrap())
    };
    entries.map(end).collect()
}

#[tokio::test]
async fn a_lease_runs_from_before_the_arrival() {
    for (visibility, longest) in [(30, Duration::from_secs(29)), (2, Duration::from_millis(1800))] {
        let mut service = StandIn::start().await;
        let mut source = connect(&mut service, "q", &format!("&visibility={visibility}&receivers=1")).await;
        let until = take_first(&mut source, &mut service, &["a"]).await.leased_until.unwrap();
        assert!(until <= Tokio::current().boottime_now() + longest);
    }
}

#[tokio::test]
async fn failures_of_many_requests_are_reported_at_once() {
    const FAILURES: usize = 3;
    let mut service = StandIn::start().await;
    let mut source = connect(&mut service, "q", "&receivers=4").await;
    // Each request of four tasks fails but one, while nobody asks for the next event.
    let asking = Box::pin(source.next(room(40)));
    let Either::Right((first, asking)) = select(asking, Box::pin(service.call())).await else {
        panic!("an event without an answer");
    };
    drop(asking);
    for _ in 0..FAILURES {
        service.call().await.refuse("RequestThrottled");
    }
    let (clock, begun) = (Tokio::current(), Tokio::current().boottime_now());
    while source.polls.arrived.len() < FAILURES {
        assert!(clock.boottime_now() - begun < Duration::from_secs(20), "a failure is missing");
        tokio::task::yield_now().await;
    }
    assert_eq!(source.next(room(40)).await.unwrap_err().kind(), ErrorKind::NotApplied);
    first.answer(messages(&["a"]));
    let event = source.next(room(40)).await;
    assert!(matches!(event, Ok(Event::Deliveries(_))), "the other failures come first: {event:?}");
}

#[tokio::test]
async fn messages_behind_one_whose_lease_has_ended_go_back() {
    let mut service = StandIn::start().await;
    let mut source = connect(&mut service, "q.fifo", "&receivers=1").await;
    let first = take_first(&mut source, &mut service, &["a", "b", "c"]).await;
    let extended = source.settler();
    let extended = extended.settle(vec![(first.id.clone(), Settlement::Extend(Duration::from_secs(30)))]);
    let refused = async { service.call().await.fail("ReceiptHandleIsInvalid") };
    tokio::join!(extended, refused);
    let next = Box::pin(source.next(room(10)));
    let Either::Right((given, _)) = select(next, Box::pin(call(&mut service, "ChangeMessageVisibilityBatch"))).await
    else {
        panic!("a later one of the group is delivered");
    };
    assert_eq!(ends(&given), [("b".to_owned(), 0), ("c".to_owned(), 0)]);
}

#[tokio::test]
async fn a_source_that_closes_gives_back_before_its_last_request_ends() {
    let mut service = StandIn::start().await;
    let mut source = connect(&mut service, "q.fifo", "&receivers=2").await;
    // One of two requests has no answer until the end.
    let served = async {
        let (open, answered) = (service.call().await, service.call().await);
        answered.answer(messages(&["a", "b"]));
        open
    };
    let (event, open) = tokio::join!(source.next(Room { bytes: 1, ..room(20) }), served);
    event.unwrap();
    let closing = Box::pin(source.close());
    let Either::Right((given, closing)) =
        select(closing, Box::pin(call(&mut service, "ChangeMessageVisibilityBatch"))).await
    else {
        panic!("it is closed");
    };
    assert_eq!(ends(&given), [("b".to_owned(), 0)]);
    given.succeed();
    open.answer(messages(&["c"]));
    let served = async {
        let given = call(&mut service, "ChangeMessageVisibilityBatch").await;
        assert_eq!(ends(&given), [("c".to_owned(), 0)]);
        given.succeed();
    };
    tokio::join!(closing, served).0.unwrap();
}
