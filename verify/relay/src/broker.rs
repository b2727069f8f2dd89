use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;

use crate::nats::NatsStream;
use crate::rabbitmq::SaleQueue;

/// A kind of broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkBroker {
    /// A stream of JetStream, which recognizes repeated ids for a while.
    Nats,
    /// A quorum queue behind an exchange, with one active consumer.
    RabbitMq,
}

impl SinkBroker {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Nats, Self::RabbitMq];

    /// The word of the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::RabbitMq => "rabbitmq",
        }
    }

    /// The name for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Nats => "NATS",
            Self::RabbitMq => "RabbitMQ",
        }
    }
}

/// The broker that the relays publish to, and what its consumer has read.
pub(crate) struct TorturedBroker {
    place: SalesPlace,
    read: Vec<EventCopy>,
    /// How many events the consumer had read at each purge.
    purged: Vec<usize>,
}

/// Where the events are.
enum SalesPlace {
    Nats(NatsStream),
    RabbitMq(SaleQueue),
}

/// What the consumer has read during a run.
pub(crate) struct StreamArrivals {
    /// In the order of the broker.
    pub(crate) copies: Vec<EventCopy>,
    /// After how many of them the broker lost everything up to there.
    pub(crate) purged: Vec<usize>,
}

/// A copy of an event, as the broker has it.
#[derive(Debug)]
pub(crate) struct EventCopy {
    pub(crate) id: String,
    pub(crate) payload: String,
}

impl TorturedBroker {
    pub(crate) async fn start(name: SinkBroker) -> Result<Self> {
        let place = match name {
            SinkBroker::Nats => SalesPlace::Nats(NatsStream::start().await?),
            SinkBroker::RabbitMq => SalesPlace::RabbitMq(SaleQueue::start().await?),
        };
        Ok(Self { place, read: Vec::new(), purged: Vec::new() })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        match &self.place {
            SalesPlace::Nats(stream) => stream.server.address(),
            SalesPlace::RabbitMq(queue) => queue.server.address(),
        }
    }

    /// The URL of a sink that reaches it at this address.
    pub(crate) fn sink(&self, address: SocketAddr) -> String {
        match &self.place {
            SalesPlace::Nats(_) => format!("nats://{address}"),
            SalesPlace::RabbitMq(_) => SaleQueue::sink(address),
        }
    }

    pub(crate) fn kill(&self) {
        match &self.place {
            SalesPlace::Nats(stream) => stream.server.kill(),
            SalesPlace::RabbitMq(queue) => queue.server.kill(),
        }
    }

    pub(crate) async fn restart(&self) -> Result<()> {
        match &self.place {
            SalesPlace::Nats(stream) => stream.server.restart().await?,
            SalesPlace::RabbitMq(queue) => queue.server.restart().await?,
        }
        Ok(())
    }

    /// Lets it recognize a repeated id for this long from now on, if it can.
    pub(crate) async fn recognize_repetitions(&self, window: Duration) -> Result<()> {
        match &self.place {
            SalesPlace::Nats(stream) => stream.recognize_repetitions(window).await,
            SalesPlace::RabbitMq(_) => Ok(()),
        }
    }

    /// Lets the consumer read everything, and removes that from the broker. What arrives meanwhile stays.
    pub(crate) async fn purge_what_is_read(&mut self) -> Result<()> {
        match &self.place {
            SalesPlace::Nats(stream) => stream.purge_what_is_read(&mut self.read).await?,
            SalesPlace::RabbitMq(queue) => queue.take(&mut self.read).await?,
        }
        self.purged.push(self.read.len());
        Ok(())
    }

    /// Lets the consumer read the rest.
    pub(crate) async fn into_arrivals(mut self) -> Result<StreamArrivals> {
        match &self.place {
            SalesPlace::Nats(stream) => stream.read(&mut self.read).await?,
            SalesPlace::RabbitMq(queue) => queue.take(&mut self.read).await?,
        }
        Ok(StreamArrivals { copies: self.read, purged: self.purged })
    }
}
