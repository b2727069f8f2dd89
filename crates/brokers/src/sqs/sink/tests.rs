use hapax_core::EventId;
use hapax_core::runtime::Tokio;
use serde_json::{Value, json};

use super::*;
use crate::sqs::stand_in::StandIn;

fn limit(bytes: usize) -> Value {
    json!({ "Attributes": { "MaximumMessageSize": bytes.to_string() } })
}

async fn sink(service: &mut StandIn, max_bytes: usize) -> SqsSink {
    let config = service.url("q", "").to_string().parse().unwrap();
    let served = async { service.call().await.answer(limit(max_bytes)) };
    tokio::join!(SqsSink::open(config, Arc::new(Tokio::current())), served).0.unwrap()
}

fn event(size: usize) -> Arc<OutgoingEvent> {
    Arc::new(OutgoingEvent::new(EventId::from_bytes([7; 16]), "orders", vec![b'x'; size]))
}

#[tokio::test]
async fn a_limit_that_was_raised_counts_before_an_event_is_refused() {
    let mut service = StandIn::start().await;
    let sink = sink(&mut service, 2000).await;
    let served = async {
        let asked = service.call().await;
        assert_eq!(asked.operation, "GetQueueAttributes");
        asked.answer(limit(4000));
        service.call().await.succeed();
    };
    let large = event(3000);
    // The second one waits for the answer, too.
    let (first, second, ()) = tokio::join!(sink.publish(&large), sink.publish(&large), served);
    assert!(matches!((&first, &second), (Published::Yes { .. }, Published::Yes { .. })), "{first:?} {second:?}");
    let refused = sink.publish(&event(5000)).await;
    assert!(matches!(&refused, Published::Refused(why) if why.contains("takes 4000")), "{refused:?}");
    assert!(service.is_quiet().await, "it is asked once in a while");
}

#[tokio::test]
async fn a_check_finds_a_limit_that_was_raised() {
    let mut service = StandIn::start().await;
    let sink = sink(&mut service, 2000).await;
    assert!(sink.max_len() < 2000);
    let served = async {
        for _ in 0..2 {
            service.call().await.answer(limit(MAX_BYTES));
        }
    };
    let (findings, ()) = tokio::join!(sink.check(), served);
    assert!(findings.unwrap().is_empty());
    assert_eq!(sink.max_len(), 1_000_000);
}
