//! Charges without any layer: the effects of a batch in one transaction, then its events, then its offsets.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use tokio::runtime::Runtime;

use super::publishing::DirectPublisher;
use super::worker::{BATCH, insert_of};
use super::{StagePlaces, StampedTransaction, microseconds, number_of};
use crate::subjects::connect;

pub(super) fn work(runtime: &Runtime, address: SocketAddr, places: &StagePlaces) -> anyhow::Result<()> {
    let (url, schema) = places.schema()?;
    let insert = insert_of(schema);
    let mut client = runtime.block_on(connect(url))?;
    let publisher = runtime.block_on(DirectPublisher::connect(places))?;
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &places.kafka)
        .set("group.id", &places.topic)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .create()?;
    consumer.subscribe(&[&places.topic])?;
    let stamps = File::create(&places.stamps)?;
    let _ready = TcpListener::bind(address)?;
    loop {
        let numbers = receive(&consumer)?;
        if numbers.is_empty() {
            continue;
        }
        let received = microseconds();
        let keys: Vec<i64> = numbers.iter().map(|number| number.cast_signed()).collect();
        runtime.block_on(async {
            let transaction = client.transaction().await?;
            transaction.execute(&insert, &[&keys]).await?;
            transaction.commit().await?;
            StampedTransaction { received, committed: microseconds() }.write(&stamps, &numbers)?;
            publisher.publish(&numbers).await
        })?;
        consumer.commit_consumer_state(CommitMode::Async)?;
    }
}

/// Waits for a message, and takes what has arrived behind it. Returns the numbers of the payments.
fn receive(consumer: &BaseConsumer) -> anyhow::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    let mut patience = Duration::from_millis(50);
    while numbers.len() < BATCH
        && let Some(message) = consumer.poll(patience)
    {
        numbers.push(number_of(message?.payload().unwrap_or_default())?);
        // As long as a worker lets messages wait for others.
        patience = Duration::from_millis(2);
    }
    Ok(numbers)
}
