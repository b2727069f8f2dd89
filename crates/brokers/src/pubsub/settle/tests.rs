use futures_util::future::{Either, poll_immediate, select};
use hapax_core::runtime::Tokio;
use hapax_core::{BoxError, ErrorKind, Timestamp};
use hapax_net::google::{GoogleCode, GoogleFailure, GoogleStatus};

use super::*;
use crate::open::tests::{delivery, lane};
use crate::pubsub::messages::{AcknowledgeRequest, ModifyAckDeadlineRequest, Nothing};
use crate::pubsub::stand_in::{PubSubStandIn, PubSubStandInCall};

const EXTEND: Settlement = Settlement::Extend(Duration::from_secs(30));
const RETRY: Settlement = Settlement::Retry(Duration::from_secs(5));

struct Fixture {
    service: PubSubStandIn,
    settle: Arc<PubSubSettle>,
    ids: Vec<DeliveryId>,
}

impl Fixture {
    /// With so many deliveries, whose leases end in a minute.
    async fn new(count: u64) -> Self {
        let (service, runtime) = (PubSubStandIn::start().await, Arc::new(Tokio::current()));
        let now = runtime.boottime_now();
        let settle = PubSubSettle::new(&"pubsub/shop/orders".into(), service.subscription(), lane(), runtime);
        let deliveries: Vec<Delivery> =
            (1..=count).map(|number| delivery(number, now + Duration::from_secs(60))).collect();
        deliveries.iter().for_each(|delivery| settle.arrived(delivery, now));
        let ids = deliveries.into_iter().map(|delivery| delivery.id).collect();
        Self { service, settle: Arc::new(settle), ids }
    }

    fn settle(&self, settlement: Settlement) -> BoxFuture<'static, Vec<Result<()>>> {
        let (settle, ids) = (Arc::clone(&self.settle), self.ids.clone());
        Box::pin(async move { settle.settle(ids.into_iter().map(|id| (id, settlement)).collect()).await })
    }
}

fn kinds(results: Vec<Result<()>>) -> Vec<Option<ErrorKind>> {
    results.into_iter().map(|result| result.err().map(|error| error.kind())).collect()
}

fn seconds(call: &PubSubStandInCall) -> i32 {
    call.read::<ModifyAckDeadlineRequest>().ack_deadline_seconds
}

#[tokio::test]
async fn an_acknowledgement_that_names_failed_ids_has_a_result_for_each() {
    let mut fixture = Fixture::new(3).await;
    let settled = fixture.settle(Settlement::Ack);
    let served = async {
        let call = fixture.service.call_of("Acknowledge").await;
        let request: AcknowledgeRequest = call.read();
        assert_eq!(request.subscription, "projects/shop/subscriptions/orders");
        assert_eq!(request.ack_ids, ["handle 1", "handle 2", "handle 3"]);
        let reasons =
            [("handle 1", "PERMANENT_FAILURE_INVALID_ACK_ID"), ("handle 3", "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE")];
        call.refuse_ids(GoogleCode::FailedPrecondition, &reasons);
    };
    let (results, ()) = tokio::join!(settled, served);
    assert_eq!(kinds(results), [None, None, Some(ErrorKind::NotApplied)]);
    // Only the third one is open.
    let again = fixture.settle(Settlement::Ack);
    let served = async {
        let call = fixture.service.call_of("Acknowledge").await;
        assert_eq!(call.read::<AcknowledgeRequest>().ack_ids, ["handle 3"]);
        call.answer(&Nothing {});
    };
    assert_eq!(kinds(tokio::join!(again, served).0), [None, None, None]);
}

#[tokio::test]
async fn a_refusal_that_names_a_thousand_ids_is_read() {
    let mut fixture = Fixture::new(1).await;
    let settled = fixture.settle(Settlement::Ack);
    let others: Vec<String> = (0..1000).map(|number| format!("the long ack id of another delivery {number}")).collect();
    let named = others.iter().map(String::as_str).chain(["handle 1"]);
    let reasons: Vec<(&str, &str)> = named.map(|id| (id, "PERMANENT_FAILURE_INVALID_ACK_ID")).collect();
    let served = async {
        fixture.service.call_of("Acknowledge").await.refuse_ids(GoogleCode::FailedPrecondition, &reasons);
    };
    assert_eq!(kinds(tokio::join!(settled, served).0), [None]);
}

#[tokio::test]
async fn an_ack_id_that_is_none_does_not_keep_the_others_from_being_settled() {
    let mut fixture = Fixture::new(2).await;
    let settled = fixture.settle(RETRY);
    let served = async {
        fixture.service.call_of("ModifyAckDeadline").await.refuse(GoogleCode::InvalidArgument);
        for _ in 0..2 {
            let call = fixture.service.call_of("ModifyAckDeadline").await;
            match &call.read::<ModifyAckDeadlineRequest>().ack_ids[..] {
                [id] if id == "handle 1" => call.refuse(GoogleCode::InvalidArgument),
                ids => {
                    assert_eq!((ids, seconds(&call)), (&["handle 2".to_owned()][..], 5));
                    call.answer(&Nothing {});
                }
            }
        }
    };
    assert_eq!(kinds(tokio::join!(settled, served).0), [None, None]);
    fixture.settle(RETRY).await;
    assert!(fixture.service.is_quiet().await, "both are settled");
}

#[tokio::test]
async fn a_settlement_without_an_answer_is_unknown_and_sent_again() {
    for settlement in [Settlement::Ack, RETRY] {
        let mut fixture = Fixture::new(1).await;
        let settled = fixture.settle(settlement);
        let served = async { drop(fixture.service.call().await) };
        assert_eq!(kinds(tokio::join!(settled, served).0), [Some(ErrorKind::Unknown)]);
        for (code, kind) in [
            (GoogleCode::Unavailable, ErrorKind::Unknown),
            (GoogleCode::PermissionDenied, ErrorKind::NotApplied),
            (GoogleCode::ResourceExhausted, ErrorKind::NotApplied),
        ] {
            let settled = fixture.settle(settlement);
            let served = async { fixture.service.call().await.refuse(code) };
            assert_eq!(kinds(tokio::join!(settled, served).0), [Some(kind)], "{code:?}");
        }
        let settled = fixture.settle(settlement);
        let served = async { fixture.service.call().await.answer(&Nothing {}) };
        assert_eq!(kinds(tokio::join!(settled, served).0), [None]);
        fixture.settle(settlement).await;
        assert!(fixture.service.is_quiet().await, "it is settled");
    }
}

#[tokio::test]
async fn a_settlement_whose_call_was_dropped_is_sent_again() {
    let mut fixture = Fixture::new(1).await;
    let first = fixture.settle(Settlement::Ack);
    let Either::Right((call, first)) = select(first, Box::pin(fixture.service.call())).await else {
        panic!("it ends without an answer");
    };
    drop(first);
    let second = fixture.settle(Settlement::Ack);
    let served = async {
        call.refuse(GoogleCode::ResourceExhausted);
        fixture.service.call().await.answer(&Nothing {});
    };
    assert_eq!(kinds(tokio::join!(second, served).0), [None]);
}

#[tokio::test]
async fn a_settlement_waits_for_an_extension_that_is_on_its_way() {
    let mut fixture = Fixture::new(1).await;
    let mut extension = fixture.settle(EXTEND);
    assert!(poll_immediate(&mut extension).await.is_none());
    let mut retry = fixture.settle(RETRY);
    assert!(poll_immediate(&mut retry).await.is_none());
    let call = fixture.service.call().await;
    assert!(fixture.service.is_quiet().await, "the service may apply the extension last");
    // Also after its caller has gone.
    drop(extension);
    assert!(fixture.service.is_quiet().await, "the service may apply the extension last");
    assert_eq!(seconds(&call), 30);
    call.answer(&Nothing {});
    let served = async {
        let call = fixture.service.call().await;
        assert_eq!(seconds(&call), 5);
        call.answer(&Nothing {});
    };
    assert_eq!(kinds(tokio::join!(retry, served).0), [None]);
}

#[tokio::test]
async fn a_delivery_whose_extension_is_refused_is_acknowledged_all_the_same() {
    let mut fixture = Fixture::new(1).await;
    assert!(fixture.settle.is_ours(&fixture.ids[0]));
    let extension = fixture.settle(EXTEND);
    let reasons = [("handle 1", "PERMANENT_FAILURE_INVALID_ACK_ID")];
    let served = async { fixture.service.call().await.refuse_ids(GoogleCode::FailedPrecondition, &reasons) };
    assert_eq!(kinds(tokio::join!(extension, served).0), [None]);
    assert!(!fixture.settle.is_ours(&fixture.ids[0]));
    assert_eq!(kinds(fixture.settle(EXTEND).await), [None], "nothing is asked");
    let acknowledged = fixture.settle(Settlement::Ack);
    let served = async { fixture.service.call_of("Acknowledge").await.answer(&Nothing {}) };
    assert_eq!(kinds(tokio::join!(acknowledged, served).0), [None]);
}

#[tokio::test]
async fn a_delay_that_is_too_long_for_a_lease_begins_with_the_longest() {
    let mut fixture = Fixture::new(1).await;
    let retry = fixture.settle(Settlement::Retry(Duration::from_secs(3600)));
    let served = async {
        let call = fixture.service.call().await;
        assert_eq!(seconds(&call), 600);
        call.answer(&Nothing {});
    };
    assert_eq!(kinds(tokio::join!(retry, served).0), [None]);
}

/// A runtime whose clock moves by each sleep, which takes no time.
#[derive(Debug)]
struct Leaping {
    now: Mutex<Duration>,
    tokio: Tokio,
}

impl Runtime for Leaping {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.tokio.spawn(task);
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        *self.now.lock() += duration;
        Box::pin(async {})
    }
    fn thread(&self, name: &str, task: BoxFuture<'static, ()>) -> std::io::Result<()> {
        self.tokio.thread(name, task)
    }
    fn blocking(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        self.tokio.blocking(name, body)
    }
    fn boottime_now(&self) -> Duration {
        *self.now.lock()
    }
    fn wall_now(&self) -> Timestamp {
        self.tokio.wall_now()
    }
    fn fill_random(&self, bytes: &mut [u8]) {
        self.tokio.fill_random(bytes);
    }
}

/// The times and the lengths of the renewals of a delay that began at zero with the longest lease. `answer` gives the
/// result of each.
async fn renewals(delay: u64, answer: fn(usize) -> PubSubResult<()>) -> Vec<(u64, u64)> {
    let clock = Arc::new(Leaping { now: Mutex::default(), tokio: Tokio::current() });
    let sent: Arc<Mutex<Vec<(u64, u64)>>> = Arc::default();
    let (noted, now) = (Arc::clone(&sent), Arc::clone(&clock));
    let change = move |entries: Vec<SettledAck>| -> BoxFuture<'static, Vec<AnsweredAck>> {
        let mut noted = noted.lock();
        let results = entries.into_iter().map(|entry| {
            noted.push((now.boottime_now().as_secs(), entry.seconds));
            (answer(noted.len()), None)
        });
        let results = results.collect();
        Box::pin(async move { results })
    };
    let gathering: Arc<dyn Runtime> = Arc::new(Tokio::current());
    let size = |entry: &SettledAck| entry.ack_id.len();
    let long = LongDelay {
        ack_id: "a".into(),
        until: Duration::from_secs(delay),
        changes: Arc::new(Batcher::start(&gathering, BATCH, size, Box::new(change))),
        is_closed: Arc::default(),
        runtime: clock,
    };
    long.run().await;
    std::mem::take(&mut *sent.lock())
}

fn lost(message: &'static str) -> PubSubFailure {
    PubSubFailure::of(GoogleFailure::Unknown(BoxError::from(message)))
}

#[tokio::test]
async fn a_long_delay_is_renewed_until_it_ends() {
    assert_eq!(renewals(600, |_| Ok(())).await, []);
    assert_eq!(renewals(1500, |_| Ok(())).await, [(540, 600), (1080, 420)]);
}

#[tokio::test]
async fn a_renewal_that_fails_is_tried_again_until_its_lease_has_ended() {
    let second = |number| if number == 1 { Err(lost("once")) } else { Ok(()) };
    assert_eq!(renewals(1000, second).await, [(540, 460), (545, 455)]);
    let never = renewals(1500, |_| Err(lost("always"))).await;
    assert_eq!((never.len(), never[0], never[11]), (12, (540, 600), (595, 600)));
}

#[tokio::test]
async fn the_delay_of_a_message_that_belongs_to_nobody_here_is_not_renewed_again() {
    let gone = |_| {
        let named = [("a".to_owned(), "PERMANENT_FAILURE_INVALID_ACK_ID".to_owned())].into();
        let (code, message) = (GoogleCode::FailedPrecondition, String::new());
        let failure = GoogleFailure::Answered(GoogleStatus { code, message, details: named });
        PubSubFailure::of(failure).by_ack_id(&["a".to_owned()]).unwrap().remove(0)
    };
    assert_eq!(renewals(9000, gone).await.len(), 1);
}

#[test]
fn a_lease_has_whole_seconds_and_a_long_delay_is_renewed_before_its_lease_ends() {
    let millis = |millis| lease_seconds(Duration::from_millis(millis));
    assert_eq!((millis(0), millis(1), millis(1000), millis(1001)), (0, 1, 1, 2));
    assert_eq!((millis(600_000), millis(600_001), millis(9_000_000)), (600, 600, 600));
    let pause = |seconds| pause_of(Duration::from_secs(seconds)).map(|pause| pause.as_secs());
    assert_eq!((pause(600), pause(601), pause(9000)), (None, Some(540), Some(540)));
}
