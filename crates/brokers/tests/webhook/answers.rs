use std::time::Duration;

use hapax_core::ErrorKind;
use hapax_core::outbox::{Published, Sink};
use tokio::net::TcpListener;

use crate::receiver::{Act, Receiver};
use crate::world::{DEADLINE, event, in_time, local, publish, publish_at_last, sink, word};

#[tokio::test]
async fn the_status_decides() {
    for (status, lines, expected) in [
        (200, vec![], "yes"),
        (204, vec![], "yes"),
        (302, vec!["location: /"], "not-published"),
        (400, vec![], "refused"),
        (401, vec![], "not-published"),
        (404, vec![], "not-published"),
        (409, vec![], "refused"),
        (409, vec!["retry-after: 1"], "not-published"),
        (410, vec![], "refused"),
        (429, vec![], "not-published"),
        (500, vec![], "unknown"),
        (503, vec![], "unknown"),
        (503, vec!["retry-after: 1"], "not-published"),
    ] {
        let lines: Vec<String> = lines.into_iter().map(str::to_owned).collect();
        let receiver = Receiver::start("127.0.0.1:0", move |_, _| Act::Answer(status, lines.clone())).await;
        let published = publish(&sink([("e", local(receiver.url()))]), 1).await;
        let (word, reason) = word(&published);
        assert_eq!(word, expected, "{status}: {reason}");
        assert!(reason.is_empty() || reason.contains(&status.to_string()), "{reason}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Receiver::answering(200).await;
    let location = format!("location: {}", elsewhere.url());
    let receiver = Receiver::start("127.0.0.1:0", move |_, _| Act::Answer(307, vec![location.clone()])).await;
    let sink = sink([("e", local(receiver.url()))]);
    for number in 0..3 {
        assert_eq!(word(&publish(&sink, number).await).0, "not-published");
    }
    assert_eq!((receiver.got().len(), elsewhere.connections()), (3, 0));
}

#[tokio::test]
async fn a_receiver_that_asks_for_a_pause_gets_it() {
    let script = |number, _: &_| match number {
        0 => Act::Answer(429, vec!["Retry-After: 2".into()]),
        _ => Act::Answer(200, vec![]),
    };
    let receiver = Receiver::start("127.0.0.1:0", script).await;
    let sink = sink([("e", local(receiver.url()))]);
    let Published::NotPublished { after, .. } = publish(&sink, 1).await else { panic!("a 429 is no publication") };
    assert_eq!(after, Duration::from_secs(2));
    // Another event of the same endpoint waits too.
    let Published::NotPublished { after, .. } = publish(&sink, 2).await else { panic!("nothing starts in the pause") };
    assert!(after > Duration::ZERO && after <= Duration::from_secs(2), "{after:?}");
    assert_eq!(receiver.got().len(), 1);
    publish_at_last(&sink, 2).await;
}

#[tokio::test]
async fn an_answer_after_the_time_limit_is_unknown_and_the_next_try_has_the_same_id() {
    let receiver = Receiver::start("127.0.0.1:0", |number, _| match number {
        0 => Act::Late,
        _ => Act::Answer(200, vec![]),
    })
    .await;
    let mut endpoint = local(receiver.url());
    endpoint.time_limit = Duration::from_secs(1);
    let slow = sink([("e", endpoint)]);
    assert_eq!(word(&publish(&slow, 1).await).0, "unknown");
    receiver.release();
    let patient = sink([("e", local(receiver.url()))]);
    assert_eq!(word(&publish(&patient, 1).await).0, "yes");
    let got = receiver.got();
    assert_eq!(got[0].header("webhook-id"), got[1].header("webhook-id"));
}

#[tokio::test]
async fn a_connection_that_ends_after_the_request_is_unknown() {
    for act in [Act::Close, Act::CloseInAnswer] {
        let answer = act.clone();
        let receiver = Receiver::start("127.0.0.1:0", move |_, _| answer.clone()).await;
        let Published::Unknown(error) = publish(&sink([("e", local(receiver.url()))]), 1).await else {
            panic!("{act:?}: it may have the event")
        };
        assert_eq!(error.kind(), ErrorKind::Unknown);
        assert_eq!(receiver.got().len(), 1, "{act:?}: the sink itself does not repeat it");
    }
}

#[tokio::test]
async fn what_cannot_be_connected_to_was_not_published() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let plain = Receiver::answering(200).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for (url, limit) in [
        (format!("http://127.0.0.1:{closed}/"), DEADLINE),
        // It speaks no TLS.
        (format!("https://127.0.0.1:{}/", plain.port), Duration::from_secs(2)),
        // It never answers the handshake.
        (format!("https://127.0.0.1:{}/", silent.local_addr().unwrap().port()), Duration::from_secs(1)),
    ] {
        let mut endpoint = local(&url);
        endpoint.time_limit = limit;
        let published = publish(&sink([("e", endpoint)]), 1).await;
        assert_eq!(word(&published).0, "not-published", "{url}: {published:?}");
    }
    assert!(plain.got().is_empty());
}

#[tokio::test]
async fn a_receiver_that_takes_nothing_parks_five_keys_and_no_more() {
    let receiver = Receiver::answering(400).await;
    let sink = sink([("e", local(receiver.url()))]);
    let mut words = Vec::new();
    for number in 0..8 {
        words.push(word(&publish(&sink, number).await).0);
    }
    assert_eq!(words[..5], ["refused"; 5]);
    assert_eq!(words[5..], ["not-published"; 3]);
    assert_eq!(receiver.got().len(), 6, "then the endpoint is left alone");
}

#[tokio::test]
async fn an_unknown_endpoint_and_an_event_that_is_too_large_are_refused_with_the_reason() {
    let receiver = Receiver::answering(200).await;
    let sink = sink([("e", local(receiver.url()))]);
    let (result, reason) = word(&in_time(sink.publish(&event(1, "other"))).await);
    assert!(result == "refused" && reason.contains("`other`"), "{reason}");
    let mut large = (*event(2, "e")).clone();
    large.payload = vec![b'x'; 16 * 1024 * 1024].into();
    large.headers.push("a", "b");
    let (result, reason) = word(&in_time(sink.publish(&large.into())).await);
    assert!(result == "refused" && reason.contains("16777218 bytes"), "{reason}");
    assert!(receiver.got().is_empty());
}
