//! One source with an order, which stops, or whose connection breaks.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use hapax_brokers::{NatsSource, NatsUrl};
use hapax_core::broker::{Delivery, Event, Settlement, Source as _};
use hapax_testkit::proxy::{Direction, NetworkFault, Proxy};
use hapax_testkit::servers::NatsServer;

use crate::Fixture;
use crate::common::{DEADLINE, is_quiet, room, runtime, settle, some, take, text, texts};

impl Fixture {
    /// Sends messages of one ordering key, whose payloads are their numbers.
    pub(crate) async fn send_ordered(&self, numbers: std::ops::Range<usize>) {
        for number in numbers {
            let mut headers = HeaderMap::new();
            headers.append("Order", "k");
            let (subject, payload) = (format!("{}.x", self.name), number.to_string().into());
            self.context.publish_with_headers(subject, headers, payload).await.unwrap().await.unwrap();
        }
    }

    async fn source_behind(&self, proxy: &Proxy, parameters: &str) -> NatsSource {
        let url = format!("nats://{}/{}?durable=d&order=header:Order{parameters}", proxy.address(), self.name);
        NatsSource::connect(&url.parse::<NatsUrl>().unwrap(), runtime()).await.unwrap()
    }
}

pub(crate) async fn what_is_given_back_at_a_stop_arrives_again_in_its_order() {
    let fixture = Fixture::new("stopping").await;
    fixture.send_ordered(0..40).await;
    let mut source = fixture.source("&order=header:Order&ack-wait=3").await;
    let held = take(&mut source, 20).await;
    // Its request is still open.
    assert!(tokio::time::timeout(Duration::from_millis(200), source.next(room(100))).await.is_ok());
    source.stop_reading().await;
    let back = held.iter().map(|delivery| (delivery.id.clone(), Settlement::Retry(Duration::ZERO))).collect();
    assert!(source.settler().settle(back).await.iter().all(Result::is_ok));
    source.close().await.unwrap();
    let mut next = fixture.source("&order=header:Order").await;
    let expected: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    assert_eq!(texts(&take(&mut next, 20).await), expected);
}

/// Takes and acknowledges until the server has nothing left. Calls `disturb` when some have arrived. Returns the
/// numbers in the order of their first arrival.
async fn first_arrivals(fixture: &Fixture, source: &mut NatsSource, disturb: impl AsyncFnOnce()) -> Vec<usize> {
    let (settler, begun, mut disturb) = (source.settler(), Instant::now(), Some(disturb));
    let mut first: Vec<usize> = Vec::new();
    while first.len() < 10 || fixture.consumer().await.num_ack_pending > 0 || fixture.consumer().await.num_pending > 0 {
        assert!(begun.elapsed() < DEADLINE, "{first:?}");
        let Ok(event) = tokio::time::timeout(Duration::from_millis(500), source.next(room(100))).await else {
            continue;
        };
        let Ok(Event::Deliveries(deliveries)) = event else { continue };
        for delivery in deliveries {
            let number: usize = text(&delivery).parse().unwrap();
            if !first.contains(&number) {
                first.push(number);
            }
            drop(settler.settle(vec![(delivery.id, Settlement::Ack)]).await);
        }
        if first.len() >= 10
            && let Some(disturb) = disturb.take()
        {
            disturb().await;
        }
    }
    first
}

pub(crate) async fn the_order_holds_when_a_connection_breaks_with_messages_on_the_way() {
    let server = NatsServer::start(&[]).await.unwrap();
    for cut_after in [0, 500, 3_000, 10_000] {
        let fixture = Fixture::on(&server.url(), &format!("cut-{cut_after}"), 1).await;
        let proxy = Proxy::start(server.address()).await.unwrap();
        fixture.send_ordered(0..60).await;
        let mut source = fixture.source_behind(&proxy, "&ack-wait=3").await;
        let first = first_arrivals(&fixture, &mut source, async || {
            let reset = NetworkFault::ResetAfter { direction: Direction::ToClient, bytes: cut_after };
            proxy.inject(reset.times(1));
            fixture.send_ordered(60..200).await;
        })
        .await;
        assert_eq!(first, (0..200).collect::<Vec<_>>(), "cut after {cut_after} bytes");
    }
}

pub(crate) async fn the_order_holds_when_a_worker_dies_with_messages() {
    let fixture = Fixture::new("crashed").await;
    fixture.send_ordered(0..50).await;
    let mut killed = fixture.source("&order=header:Order&ack-wait=3").await;
    let held: Vec<Delivery> = some(&mut killed, room(30)).await;
    assert!(!held.is_empty());
    drop(killed);
    fixture.send_ordered(50..60).await;
    let mut source = fixture.source("&order=header:Order").await;
    let first = first_arrivals(&fixture, &mut source, async || {}).await;
    assert_eq!(first, (0..60).collect::<Vec<_>>());
}

/// Each lease is extended at a time of its own.
pub(crate) async fn the_order_holds_when_the_lease_of_an_earlier_message_ends_later() {
    let fixture = Fixture::new("crashed-later").await;
    fixture.send_ordered(0..20).await;
    let mut killed = fixture.source("&order=header:Order&ack-wait=3").await;
    let held = take(&mut killed, 20).await;
    assert!(is_quiet(&mut killed, Duration::from_millis(1500)).await);
    settle(&killed.settler(), &held[0].id, Settlement::Extend(Duration::from_secs(3))).await;
    drop(killed);
    let mut source = fixture.source("&order=header:Order").await;
    let first = first_arrivals(&fixture, &mut source, async || {}).await;
    assert_eq!(first, (0..20).collect::<Vec<_>>());
}

pub(crate) async fn a_long_message_keeps_nothing_back_after_a_cut() {
    let server = NatsServer::start(&[]).await.unwrap();
    let fixture = Fixture::on(&server.url(), "long", 1).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    fixture.send_ordered(0..3).await;
    let mut source = fixture.source_behind(&proxy, "&ack-wait=600").await;
    let held = take(&mut source, 3).await;
    proxy.reset();
    fixture.send_ordered(3..6).await;
    // Nothing is missing: all that the server counts as unfinished is here.
    assert_eq!(texts(&take(&mut source, 3).await), ["3", "4", "5"]);
    drop(held);
}
