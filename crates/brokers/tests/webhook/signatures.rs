use hapax_brokers::WebhookSecret;
use hapax_core::EventId;
use hapax_core::outbox::{OutgoingEvent, Published, Sink};
use standardwebhooks::Webhook;
use std::sync::Arc;

use crate::receiver::Receiver;
use crate::world::{SECRET, in_time, local, publish, sink};

const NEXT_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const OTHER_SECRET: &str = "whsec_plJ3nmyCDGBKInavdOK15jsl123456789012";

#[tokio::test]
async fn another_implementation_verifies_the_signature_of_every_secret() {
    let receiver = Receiver::answering(204).await;
    let mut endpoint = local(receiver.url());
    endpoint.secrets.push(WebhookSecret::new(NEXT_SECRET));
    let sink = sink([("e", endpoint)]);
    let json = "{\"größe\": \"5 €\"}\n";
    let event = Arc::new(OutgoingEvent::new(EventId::from_bytes([9; 16]), "e", json));
    assert!(matches!(in_time(sink.publish(&event)).await, Published::Yes { .. }));
    let got = receiver.got().remove(0);
    for secret in [SECRET, NEXT_SECRET] {
        Webhook::new(secret).unwrap().verify(&got.body, &got.headers).unwrap();
        assert!(Webhook::new(secret).unwrap().verify(b"{}", &got.headers).is_err(), "another body");
        for (name, value) in [("webhook-id", "another"), ("webhook-timestamp", "1700000000")] {
            let mut headers = got.headers.clone();
            headers.insert(name, value.parse().unwrap());
            assert!(Webhook::new(secret).unwrap().verify(&got.body, &headers).is_err(), "another {name}");
        }
    }
    assert!(Webhook::new(OTHER_SECRET).unwrap().verify(&got.body, &got.headers).is_err(), "another secret");
}

#[tokio::test]
async fn a_receiver_gets_one_post_with_the_id_as_its_key() {
    let receiver = Receiver::answering(200).await;
    let sink = sink([("e", local(receiver.url()))]);
    for _ in 0..2 {
        assert!(matches!(publish(&sink, 7).await, Published::Yes { .. }));
    }
    let got = receiver.got();
    assert_eq!(got.len(), 2);
    for got in got {
        assert_eq!((got.target.as_str(), got.body.as_slice()), ("POST /hook?tenant=7 HTTP/1.1", &b"event 7"[..]));
        let id = EventId::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]).to_string();
        for name in ["webhook-id", "idempotency-key", "ce-id"] {
            assert_eq!(got.header(name), id, "{name}");
        }
        assert_eq!(got.header("host"), format!("127.0.0.1:{}", receiver.port));
    }
    assert_eq!(receiver.connections(), 1, "the second request uses the connection of the first one");
}

#[tokio::test]
async fn an_event_without_a_body_arrives() {
    let receiver = Receiver::answering(200).await;
    let sink = sink([("e", local(receiver.url()))]);
    let empty = Arc::new(OutgoingEvent::new(EventId::from_bytes([9; 16]), "e", ""));
    assert!(matches!(in_time(sink.publish(&empty)).await, Published::Yes { .. }));
    let got = receiver.got().remove(0);
    Webhook::new(SECRET).unwrap().verify(&got.body, &got.headers).unwrap();
}
