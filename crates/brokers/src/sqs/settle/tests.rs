use futures_util::future::{Either, poll_immediate, select};
use hapax_core::runtime::Tokio;

use super::*;
use crate::open::tests::{delivery, lane};
use crate::sqs::stand_in::StandIn;

const EXTEND: Settlement = Settlement::Extend(Duration::from_secs(30));
const RETRY: Settlement = Settlement::Retry(Duration::from_secs(5));

struct Fixture {
    service: StandIn,
    settle: Arc<SqsSettle>,
    id: DeliveryId,
}

impl Fixture {
    /// With one delivery, whose lease ends in a minute.
    async fn new() -> Self {
        let (service, runtime) = (StandIn::start().await, Arc::new(Tokio::current()));
        let now = runtime.boottime_now();
        let settle = SqsSettle::new("sqs/q", service.queue().await, lane(), runtime);
        let delivery = delivery(1, now + Duration::from_secs(60));
        settle.arrived(&delivery, now);
        Self { service, settle: Arc::new(settle), id: delivery.id }
    }

    fn settle(&self, settlement: Settlement) -> BoxFuture<'static, Result<()>> {
        let (settle, id) = (Arc::clone(&self.settle), self.id.clone());
        Box::pin(async move { settle.settle(vec![(id, settlement)]).await.remove(0) })
    }
}

#[tokio::test]
async fn a_settlement_whose_call_was_dropped_is_sent_again() {
    for settlement in [Settlement::Ack, RETRY] {
        let mut fixture = Fixture::new().await;
        let first = fixture.settle(settlement);
        let Either::Right((call, first)) = select(first, Box::pin(fixture.service.call())).await else {
            panic!("it ends without an answer");
        };
        drop(first);
        let second = fixture.settle(settlement);
        let served = async {
            call.refuse("RequestThrottled");
            fixture.service.call().await.succeed();
        };
        let (settled, ()) = tokio::join!(second, served);
        settled.unwrap();
        fixture.settle(settlement).await.unwrap();
        assert!(fixture.service.is_quiet().await, "it is settled");
    }
}

#[tokio::test]
async fn a_settlement_waits_for_an_extension_that_is_on_its_way() {
    let mut fixture = Fixture::new().await;
    let mut extension = fixture.settle(EXTEND);
    assert!(poll_immediate(&mut extension).await.is_none());
    let mut retry = fixture.settle(RETRY);
    assert!(poll_immediate(&mut retry).await.is_none());
    let call = fixture.service.call().await;
    assert!(fixture.service.is_quiet().await, "the service may apply the extension last");
    // Also after its caller has gone.
    drop(extension);
    assert!(fixture.service.is_quiet().await, "the service may apply the extension last");
    assert_eq!(call.body["Entries"][0]["VisibilityTimeout"], 30);
    call.succeed();
    let served = async {
        let call = fixture.service.call().await;
        assert_eq!(call.body["Entries"][0]["VisibilityTimeout"], 5);
        call.succeed();
    };
    tokio::join!(retry, served).0.unwrap();
}

#[tokio::test]
async fn a_delivery_whose_extension_is_refused_is_acknowledged_all_the_same() {
    for code in ["ReceiptHandleIsInvalid", "InvalidParameterValue"] {
        let mut fixture = Fixture::new().await;
        assert!(fixture.settle.is_ours(&fixture.id));
        let extension = fixture.settle(EXTEND);
        let served = async { fixture.service.call().await.fail(code) };
        tokio::join!(extension, served).0.unwrap();
        assert!(!fixture.settle.is_ours(&fixture.id));
        fixture.settle(EXTEND).await.unwrap();
        let served = async {
            let call = fixture.service.call().await;
            assert_eq!(call.operation, "DeleteMessageBatch");
            call.succeed();
        };
        tokio::join!(fixture.settle.settle(vec![(fixture.id.clone(), Settlement::Ack)]), served).0.remove(0).unwrap();
    }
}

#[test]
fn a_lease_has_whole_seconds_and_ends_less_than_twelve_hours_after_the_receipt() {
    let seconds = |millis, passed| lease_seconds(Duration::from_millis(millis), Duration::from_millis(passed));
    assert_eq!((seconds(0, 0), seconds(1, 0), seconds(1000, 0), seconds(1001, 7000)), (0, 1, 1, 2));
    // The service counts from a second or two before the arrival.
    assert_eq!((seconds(30_000, 43_175_000), seconds(30_000, 43_175_999)), (20, 19));
    assert_eq!((seconds(30_000, 43_195_000), seconds(30_000, 43_200_000), seconds(30_000, 50_000_000)), (0, 0, 0));
    assert_eq!(seconds(86_400_000, 0), 43_195);
}
