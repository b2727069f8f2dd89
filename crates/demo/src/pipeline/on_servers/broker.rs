use anyhow::{Context, Result, bail};

use crate::pipeline::places::EACH;

/// The topics or streams of a run, and the URLs by which its processes know them.
#[derive(Debug, Clone)]
pub(super) struct RunBroker {
    kind: Kind,
    url: String,
    run: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    #[cfg(feature = "kafka")]
    Kafka,
    #[cfg(feature = "nats")]
    Nats,
}

impl RunBroker {
    /// The topics or streams of a run at the broker of this URL. Creates nothing.
    pub(super) fn new(url: &str, run: String) -> Result<Self> {
        let url = url.trim_end_matches('/');
        let (scheme, host) = url.split_once("://").context("write kafka://HOST or nats://HOST")?;
        if host.contains(['/', '?']) {
            bail!("write only kafka://HOST or nats://HOST: each run has topics or streams of its own");
        }
        let kind = match scheme {
            #[cfg(feature = "kafka")]
            "kafka" => Kind::Kafka,
            #[cfg(feature = "nats")]
            "nats" => Kind::Nats,
            _ => bail!(
                "this build has no broker for {scheme}://; write nats://HOST, or build it with the feature `full`"
            ),
        };
        Ok(Self { kind, url: url.to_owned(), run })
    }

    /// Creates the topics or streams.
    pub(super) async fn create(&self) -> Result<()> {
        match self.kind {
            #[cfg(feature = "kafka")]
            Kind::Kafka => kafka::create_topics(self.url.trim_start_matches("kafka://"), self.names()).await,
            #[cfg(feature = "nats")]
            Kind::Nats => nats::create_streams(self).await,
        }
    }

    /// Removes the topics or streams.
    pub(super) async fn remove(&self) -> Result<()> {
        match self.kind {
            #[cfg(feature = "kafka")]
            Kind::Kafka => kafka::delete_topics(self.url.trim_start_matches("kafka://"), self.names()).await,
            #[cfg(feature = "nats")]
            Kind::Nats => nats::delete_streams(&self.url, self.names()).await,
        }
    }

    /// Where the ingest service publishes.
    pub(super) fn charges(&self) -> String {
        self.sink(&self.name("charges"))
    }

    /// Where the workers get its messages. They share them.
    #[cfg_attr(not(feature = "kafka"), expect(unused_variables, reason = "the workers of a stream share a consumer"))]
    pub(super) fn to_workers(&self) -> [String; EACH] {
        std::array::from_fn(|number| match self.kind {
            #[cfg(feature = "kafka")]
            Kind::Kafka => self.kafka_source("charges", number),
            #[cfg(feature = "nats")]
            Kind::Nats => format!("{}?durable=workers&ack-wait=2", self.at(&self.name("charges"))),
        })
    }

    /// Where the relays publish.
    pub(super) fn receipts(&self) -> String {
        match self.kind {
            #[cfg(feature = "kafka")]
            Kind::Kafka => self.sink(&self.name("receipts")),
            #[cfg(feature = "nats")]
            Kind::Nats => self.sink(&format!("{}-{{topic}}", self.run)),
        }
    }

    /// Where the consumers get events.
    pub(super) fn to_consumers(&self) -> [String; EACH] {
        std::array::from_fn(|number| match self.kind {
            #[cfg(feature = "kafka")]
            Kind::Kafka => self.kafka_source("receipts", number),
            #[cfg(feature = "nats")]
            Kind::Nats => {
                let (stream, durable) = (self.at(&self.name("receipts")), nats::consumer(number));
                format!("{stream}?durable={durable}&order=header:ce-partitionkey")
            }
        })
    }

    /// Each process keeps its place in the group when it is killed, so that it goes on at once when it is back.
    #[cfg(feature = "kafka")]
    fn kafka_source(&self, topic: &str, number: usize) -> String {
        let topic = self.name(topic);
        format!("{}?group={topic}&member=member-{number}&session-timeout=6", self.at(&topic))
    }

    /// A confirmation that does not come within this time was lost with its server.
    fn sink(&self, name: &str) -> String {
        format!("{}?timeout=4", self.at(name))
    }

    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.url)
    }

    fn names(&self) -> [String; 2] {
        ["charges", "receipts"].map(|what| self.name(what))
    }

    fn name(&self, what: &str) -> String {
        format!("{}-{what}", self.run)
    }
}

#[cfg(feature = "kafka")]
mod kafka {
    use anyhow::{Context, Result, anyhow};
    use rdkafka::ClientConfig;
    use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
    use rdkafka::client::DefaultClientContext;

    const PARTITIONS: i32 = 4;

    fn admin(host: &str) -> Result<AdminClient<DefaultClientContext>> {
        Ok(ClientConfig::new().set("bootstrap.servers", host).create()?)
    }

    pub(super) async fn delete_topics(host: &str, names: [String; 2]) -> Result<()> {
        let names = names.each_ref().map(String::as_str);
        admin(host)?.delete_topics(&names, &AdminOptions::new()).await.context("cannot delete topics").map(drop)
    }

    /// Creates topics. One copy is enough where the broker is alone, so the broker decides.
    pub(super) async fn create_topics(host: &str, names: [String; 2]) -> Result<()> {
        let admin = admin(host)?;
        let topics = names.each_ref().map(|name| NewTopic::new(name, PARTITIONS, TopicReplication::Fixed(-1)));
        let created = admin.create_topics(&topics, &AdminOptions::new()).await.context("cannot create topics")?;
        for result in created {
            result.map_err(|(name, error)| anyhow!("cannot create the topic {name}: {error}"))?;
        }
        Ok(())
    }
}

#[cfg(feature = "nats")]
mod nats {
    use std::time::Duration;

    use anyhow::Result;
    use async_nats::jetstream::{self, consumer, stream};

    use super::{EACH, RunBroker};

    /// Copies are recognized by the ledger and the inbox, not by the server.
    const WINDOW: Duration = Duration::from_millis(100);

    /// The name of a durable consumer of events.
    pub(super) fn consumer(number: usize) -> String {
        format!("consumer-{number}")
    }

    /// Creates the streams. The consumers of events have one at a time: a later event never overtakes one that its
    /// consumer lost, as it died.
    pub(super) async fn create_streams(broker: &RunBroker) -> Result<()> {
        let jetstream = jetstream::new(async_nats::connect(&broker.url).await?);
        let (charges, receipts) = (broker.name("charges"), broker.name("receipts"));
        jetstream.create_stream(stream_of(&charges, &charges)).await?;
        let stream = jetstream.create_stream(stream_of(&receipts, &format!("{receipts}.*"))).await?;
        for number in 0..EACH {
            let config = consumer::pull::Config {
                durable_name: Some(consumer(number)),
                filter_subject: format!("{receipts}.{number}"),
                ack_wait: Duration::from_secs(2),
                max_ack_pending: 1,
                ..consumer::pull::Config::default()
            };
            stream.create_consumer(config).await?;
        }
        Ok(())
    }

    pub(super) async fn delete_streams(url: &str, names: [String; 2]) -> Result<()> {
        let jetstream = jetstream::new(async_nats::connect(url).await?);
        for name in names {
            jetstream.delete_stream(name).await?;
        }
        Ok(())
    }

    fn stream_of(name: &str, subject: &str) -> stream::Config {
        stream::Config {
            name: name.to_owned(),
            subjects: vec![subject.to_owned()],
            duplicate_window: WINDOW,
            ..stream::Config::default()
        }
    }
}
