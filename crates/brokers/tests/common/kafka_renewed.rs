//! A topic that was created again under a running worker: in the order of its messages, and also when brokers were
//! started again before.

use std::collections::BTreeSet;
use std::time::Duration;

use hapax_brokers::KafkaSource;
use hapax_core::broker::{Event, Settlement, Source};
use hapax_testkit::servers::KafkaServer;

use crate::common::{event, is_quiet, room, settle, text};
use crate::{Fixture, connect};

/// Takes and settles this many messages. Returns them in the order of their arrival, each with its topic.
async fn arrivals(source: &mut KafkaSource, count: usize) -> Vec<(String, String)> {
    let (settler, mut arrived) = (source.settler(), Vec::new());
    while arrived.len() < count {
        match event(source, room(count - arrived.len())).await {
            Event::Deliveries(deliveries) => {
                for delivery in deliveries {
                    settle(&settler, &delivery.id, Settlement::UpTo).await;
                    arrived.push((delivery.id.lane.topic.to_string(), text(&delivery)));
                }
            }
            Event::Revoking { lanes, .. } => drop(settler.leave(&lanes).await),
            Event::Lost { .. } => {}
        }
    }
    arrived
}

fn of_topic<'a>(arrived: &'a [(String, String)], topic: &str) -> Vec<&'a str> {
    arrived.iter().filter(|(of, _)| of == topic).map(|(_, number)| &**number).collect()
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

pub(crate) async fn a_topic_that_was_created_again_arrives_in_order() {
    arrive_in_order(Fixture::new("recreated-in-order", 1).await, "").await;
}

/// The new driver takes the name of the old one, which the group keeps.
pub(crate) async fn a_topic_that_was_created_again_arrives_in_order_at_a_static_member() {
    arrive_in_order(Fixture::new("recreated-static", 1).await, "&member=one").await;
}

/// The new topic is longer than the old one as the driver learns of it, and the driver goes on in its middle.
async fn arrive_in_order(fixture: Fixture, parameters: &str) {
    let mut source = fixture.source(parameters).await;
    let mut next = 0;
    for length in [10, 50] {
        fixture.send(next..next + length, 1);
        let arrived = arrivals(&mut source, length).await;
        assert_eq!(of_topic(&arrived, fixture.topic), numbers(next..next + length));
        next += length;
        fixture.delete().await;
        fixture.create(1).await;
    }
    fixture.send(next..next + 200, 1);
    let arrived = arrivals(&mut source, 200).await;
    assert_eq!(of_topic(&arrived, fixture.topic), numbers(next..next + 200));
}

/// The driver knows a higher leader epoch of the old topic, and would refuse the lower one of the new topic.
pub(crate) async fn a_topic_that_was_created_again_after_restarts_of_the_broker_is_read() {
    let server = KafkaServer::start(&[]).await.unwrap();
    let hosts = server.address().to_string();
    let kept = Fixture::on(hosts.clone(), "kept", 1, 1).await;
    let renewed = Fixture::on(hosts.clone(), "renewed", 1, 1).await;
    let url = format!("kafka://{hosts}/kept,renewed?group=both&session-timeout=6").parse().unwrap();
    let mut source = connect(&url).await;
    for number in 0..4 {
        if number > 0 {
            server.kill();
            server.restart().await.unwrap();
        }
        kept.send(number..number + 1, 1);
        renewed.send(number..number + 1, 1);
        let mut awaited = BTreeSet::from(["kept", "renewed"].map(|topic| (topic.to_owned(), number.to_string())));
        while !awaited.is_empty() {
            // Earlier ones may arrive again.
            awaited.remove(&arrivals(&mut source, 1).await[0]);
        }
    }
    renewed.delete().await;
    renewed.create(1).await;
    renewed.with_another_producer().send(1000..1050, 1);
    kept.send(4..14, 1);
    // Offsets are committed every second, so the last messages before that may arrive again.
    let mut seen: BTreeSet<(String, String)> = numbers(0..4)
        .into_iter()
        .flat_map(|number| ["kept", "renewed"].map(|topic| (topic.to_owned(), number.clone())))
        .collect();
    let mut first = Vec::new();
    while first.len() < 60 {
        let arrived = arrivals(&mut source, 1).await.remove(0);
        if seen.insert(arrived.clone()) {
            first.push(arrived);
        }
    }
    assert_eq!(of_topic(&first, "renewed"), numbers(1000..1050));
    assert_eq!(of_topic(&first, "kept"), numbers(4..14));
    assert!(is_quiet(&mut source, Duration::from_secs(1)).await, "a message arrives twice");
}
