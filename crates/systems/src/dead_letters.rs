use std::str::FromStr;

use anyhow::{Context, Result};
use hapax::outbox::TopicTemplate;

use crate::sink::SinkUrl;
use crate::store::StoreUrl;
use crate::table::{is_broker, one_of};
use crate::watch::WatchedFile;

/// Where a worker writes its dead letters.
#[derive(Clone, Debug)]
pub enum DeadLetterPlace {
    /// A store or a database. They come back from there by a redrive.
    Kept(StoreUrl),
    /// A broker, whose consumers read them.
    Published(SinkUrl),
}

impl DeadLetterPlace {
    /// Whether the URL is that of a broker to which dead letters are published. It has them only for its own consumers.
    pub fn is_at_broker(url: &str) -> bool {
        is_broker(url)
    }

    /// Whether the letters tell which ordering keys they belong to.
    pub fn can_park(&self) -> bool {
        match self {
            Self::Kept(store) => store.can_park(),
            Self::Published(_) => false,
        }
    }

    /// The file of the open place, if it is one.
    ///
    /// # Errors
    /// If the file cannot be found.
    pub fn watch(&self) -> hapax::Result<Option<Box<dyn WatchedFile>>> {
        match self {
            Self::Kept(store) => store.watch(),
            Self::Published(_) => Ok(None),
        }
    }

    /// The same place with another template for the topic. None if the place has no topics.
    pub fn with_topic(self, template: TopicTemplate) -> Option<Self> {
        match self {
            Self::Kept(_) => None,
            Self::Published(sink) => Some(Self::Published(sink.with_topic(template))),
        }
    }
}

impl FromStr for DeadLetterPlace {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self> {
        if Self::is_at_broker(url) {
            return url.parse().map(Self::Published);
        }
        let brokers = || one_of(|offers| offers.broker.as_ref().and(offers.sink.as_ref()).map(|offer| offer.form));
        let context = || format!("dead letters go to {}, or to {}", StoreUrl::dead_letter_forms(), brokers());
        url.parse().map(Self::Kept).with_context(context)
    }
}
